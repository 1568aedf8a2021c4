//! Removes whole segments of a log that no process has open.

use super::{
    Archive, OpenError,
    disk::Volume,
    segment::{self, segment_path},
};

/// What was removed, and why no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files.
    pub segments: usize,
    /// Their size.
    pub bytes: u64,
    /// Records.
    pub records: u64,
    /// Why not everything before the given record is gone.
    pub kept: Option<String>,
}

impl Archive {
    /// Removes the segments whose records are all before `before`, oldest first, as far as every sink has acknowledged them
    /// and the store is built on them. The last segment stays. Where a cursor is damaged, nothing goes.
    pub fn purge(&self, before: u64) -> Result<Removed, OpenError> {
        let view = self.view();
        let failed = |operation, path: &std::path::Path| {
            let path = path.to_path_buf();
            move |source| OpenError::Directory { operation, path, source }
        };
        let directory = &view.segment_directory;
        let cursors = view.cursors()?;
        // What the store has of them must be durable before they go.
        view.known.store.sync()?;
        let applied = view.known.store.applied()?;
        let mut removed = Removed::default();
        for info in view.segments().map_err(failed("read", directory))? {
            if info.last_seq >= before || info.last_seq == view.head() {
                break;
            }
            let behind = cursors.iter().find(|(_, cursor)| cursor.needs() <= info.last_seq);
            if let Some((sink, cursor)) = behind {
                removed.kept = Some(format!("sink {sink} has acknowledged only up to seq {}", cursor.acknowledged));
                break;
            }
            if applied.is_none_or(|applied| applied.segment <= info.first_seq) {
                removed.kept = Some(format!("the store was not built on {} yet", info.file));
                break;
            }
            view.segments
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .retain(|segment| *segment != info.first_seq);
            let path = segment_path(directory, info.first_seq);
            segment::remove(&Volume, directory, info.first_seq).map_err(failed("remove", &path))?;
            removed.segments += 1;
            removed.bytes += info.bytes;
            removed.records += info.last_seq + 1 - info.first_seq;
        }
        Ok(removed)
    }
}
