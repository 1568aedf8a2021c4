//! What may be read of a log and of what was built on it: the same on a live process and on the files of a stopped one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    Cursor, Known, LogReader, OpenError, cursor, directory::Directory, disk::Volume, recent::Recent, segment,
    store::Store,
};

/// A log, to be read.
#[derive(Clone)]
pub struct View {
    pub(super) log_id: Arc<str>,
    pub(super) segment_directory: PathBuf,
    pub(super) cursor_directory: PathBuf,
    pub(super) segments: Arc<RwLock<Vec<u64>>>,
    pub(super) recent: Arc<Recent>,
    pub(super) head: watch::Receiver<u64>,
    pub(super) known: Known,
}

/// One file of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    /// The file's name.
    pub file: String,
    /// Its first record; if it has none yet, the one that will be.
    pub first_seq: u64,
    /// Its last record; one less than the first if it has none yet.
    pub last_seq: u64,
    /// Its size.
    pub bytes: u64,
    /// When it was begun.
    pub opened_at: Timestamp,
}

impl View {
    /// The id of the log.
    pub fn log_id(&self) -> &str {
        &self.log_id
    }

    /// The seq of the last durable record; 0 if there is none.
    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// The seq of the oldest record that is still there; one more than the head if there is none.
    pub fn oldest(&self) -> u64 {
        let segments = self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        segments.first().copied().unwrap_or(1)
    }

    /// A reader whose first record is `next`.
    pub fn reader(&self, next: u64) -> LogReader {
        LogReader {
            log_id: self.log_id.clone(),
            disk: Volume::shared(),
            directory: self.segment_directory.clone(),
            segments: self.segments.clone(),
            recent: self.recent.clone(),
            head: self.head.clone(),
            next,
            open: None,
        }
    }

    /// The last known state of every object.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// The files of the log, oldest first.
    pub fn segments(&self) -> io::Result<Vec<SegmentInfo>> {
        let firsts = self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let mut infos = Vec::new();
        for (index, first_seq) in firsts.iter().copied().enumerate() {
            let path = segment::segment_path(&self.segment_directory, first_seq);
            let metadata = std::fs::metadata(&path)?;
            let last_seq = firsts.get(index + 1).map_or_else(|| self.head(), |next| next - 1);
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let header = segment::read_header(&Volume, &self.segment_directory, &self.log_id, first_seq);
            let opened_at = header.map_err(io::Error::other)?.opened_at;
            infos.push(SegmentInfo { file, first_seq, last_seq, bytes: metadata.len(), opened_at });
        }
        Ok(infos)
    }

    /// How far each sink is that was ever attached.
    pub fn cursors(&self) -> io::Result<Vec<(String, Cursor)>> {
        cursor::all_in(&self.cursor_directory)
    }
}

/// The files of a process that does not run. Nothing else can open them meanwhile.
pub struct Archive {
    view: View,
    directory: Directory,
    // Readers wait for its changes, of which there will be none.
    _head: watch::Sender<u64>,
}

impl Archive {
    /// Opens an existing data directory. Records that the store has missed are applied to it first.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let directory = Directory::open(path)?;
        let log_id: Arc<str> = directory.log_id().into();
        let store = Store::open(&directory.store())?;
        let (writer, segments) = super::recover(&directory, &log_id, &store, Timestamp::now(), segment::SEGMENT_LEN)?;
        let (sender, head) = watch::channel(writer.place().next_seq - 1);
        let view = View {
            log_id,
            segment_directory: directory.segments(),
            cursor_directory: directory.cursors(),
            segments: Arc::new(RwLock::new(segments)),
            recent: Arc::default(),
            head,
            known: Known::new(store),
        };
        Ok(Self { view, directory, _head: sender })
    }

    /// What is in it.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Where the cursors are.
    pub fn cursor_directory(&self) -> PathBuf {
        self.directory.cursors()
    }
}
