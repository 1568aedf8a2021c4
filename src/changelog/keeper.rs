//! Keeps the log as large as it may be: removes what retention lets go, and says when nothing more may be appended.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    OpenError, Removed, WriteError,
    attached::Attached,
    disk::{Disk, Volume},
    retention::{self, Held, Rules},
    room, segment,
    store::Store,
};
use crate::config;

/// Tombstones that are removed in one go, so that the writer is not kept from its work.
const BURIED_AT_ONCE: usize = 10_000;

/// How the log stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Its bytes.
    pub bytes: u64,
    /// For how many hours `log.max_bytes` would last at the rate of the log that there is; none before there is a rate.
    pub hours: Option<f64>,
}

/// The keeper of one log's segments.
pub(super) struct Keeper {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    rules: Rules,
    /// The segments, oldest first; the last one is being written.
    held: Vec<Held>,
    /// The same for the readers, by their first seq.
    segments: Arc<RwLock<Vec<u64>>>,
    attached: Attached,
    store: Store,
}

impl Keeper {
    pub(super) fn new(
        directory: PathBuf,
        log_id: &str,
        keep: &config::Log,
        segments: Vec<u64>,
        attached: Attached,
        store: Store,
    ) -> Result<Self, OpenError> {
        let disk = Volume::shared();
        let mut held = Vec::new();
        for first_seq in &segments {
            let path = segment::segment_path(&directory, *first_seq);
            let failed = |source| OpenError::Directory { operation: "read", path: path.clone(), source };
            let bytes = std::fs::metadata(&path).map_err(failed)?.len();
            let opened_at = segment::read_header(&*disk, &directory, log_id, *first_seq)?.opened_at;
            held.push(Held { first_seq: *first_seq, bytes, opened_at });
        }
        let rules = Rules { retention: Duration::from_secs(keep.retention_secs), max_bytes: keep.max_bytes.get() };
        Ok(Self { directory, disk, rules, held, segments: Arc::new(RwLock::new(segments)), attached, store })
    }

    /// The segments by their first seq, for the readers.
    pub(super) fn segments(&self) -> Arc<RwLock<Vec<u64>>> {
        self.segments.clone()
    }

    /// A segment was opened, and there is something in it to read.
    pub(super) fn opened(&mut self, first_seq: u64, at: Timestamp) {
        self.held.push(Held { first_seq, bytes: 0, opened_at: at });
        self.segments.write().unwrap_or_else(PoisonError::into_inner).push(first_seq);
    }

    /// The segment that is being written has this size now.
    pub(super) fn grown(&mut self, bytes: u64) {
        if let Some(last) = self.held.last_mut() {
            last.bytes = bytes;
        }
    }

    /// Removes what may go. Why nothing may be appended, if so.
    pub(super) fn trim(&mut self, now: Timestamp) -> Result<Option<String>, WriteError> {
        let Some(needs) = self.attached.needs() else { return Ok(None) };
        let verdict = retention::decide(self.rules, &self.held, &needs, now);
        self.remove(verdict.remove)?;
        let obstacle = |sink: String| {
            format!("the log has reached log.max_bytes ({}), and sink {sink} has not read it yet", self.rules.max_bytes)
        };
        Ok(verdict.blocked_by.map(obstacle))
    }

    /// Why nothing may be appended for want of space on the volume, if so.
    pub(super) fn no_space(&self) -> Option<String> {
        room::shortage(&self.directory)
    }

    /// Removes the tombstones that no attached sink needs.
    pub(super) fn bury(&self) -> Result<(), WriteError> {
        let needs = self.attached.needs().unwrap_or_default();
        let Some(settled) = needs.iter().map(|(_, need)| need.settled).min() else { return Ok(()) };
        self.store.bury(settled, BURIED_AT_ONCE).map_err(WriteError::Store)?;
        Ok(())
    }

    /// Removes the whole segments in front of the record `before`, as far as no attached sink needs them.
    pub(super) fn purge(&mut self, before: u64) -> Result<Removed, WriteError> {
        let mut removed = Removed::default();
        let Some(needs) = self.attached.needs() else {
            removed.kept = Some("the process has only begun".into());
            return Ok(removed);
        };
        for pair in self.held.windows(2).take_while(|pair| pair[1].first_seq <= before) {
            let [oldest, next] = pair else { continue };
            if let Some((sink, need)) = needs.iter().find(|(_, need)| need.from < next.first_seq) {
                removed.kept = Some(format!("sink {sink} has acknowledged only up to seq {}", need.from - 1));
                break;
            }
            removed.segments += 1;
            removed.bytes += oldest.bytes;
            removed.records += next.first_seq - oldest.first_seq;
        }
        self.remove(removed.segments)?;
        Ok(removed)
    }

    /// How the log stands.
    pub(super) fn size(&self, now: Timestamp) -> Size {
        let bytes = self.held.iter().map(|segment| segment.bytes).sum();
        let since = self.held.first().map(|segment| segment.opened_at);
        Size { bytes, hours: since.and_then(|since| hours_of(self.rules.max_bytes, bytes, since, now)) }
    }

    /// Removes so many of the oldest. Each is taken from the readers first, and gone for good before the next one goes.
    fn remove(&mut self, count: usize) -> Result<(), WriteError> {
        if count == 0 {
            return Ok(());
        }
        // From the log alone the store could not be built again: it must not need what goes.
        self.store.sync().map_err(WriteError::Store)?;
        for segment in self.held.drain(..count) {
            self.segments.write().unwrap_or_else(PoisonError::into_inner).retain(|first| *first != segment.first_seq);
            segment::remove(&*self.disk, &self.directory, segment.first_seq).map_err(WriteError::Append)?;
            tracing::debug!(first_seq = segment.first_seq, bytes = segment.bytes, "removed a segment");
        }
        Ok(())
    }
}

/// For how many hours a log of `max_bytes` lasts if it grows as fast as the one of `bytes` since `since`.
pub fn hours_of(max_bytes: u64, bytes: u64, since: Timestamp, now: Timestamp) -> Option<f64> {
    let seconds = now.duration_since(since).as_secs_f64();
    // A rate over less than a minute says nothing.
    (seconds >= 60.0 && bytes > 0).then(|| max_bytes as f64 / (bytes as f64 / seconds) / 3600.0)
}
