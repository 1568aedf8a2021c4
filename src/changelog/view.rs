//! What may be read of a log and of what was built on it: the same on a live process and on the files of a stopped one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    Cursor, Damage, Known, LogReader, OpenError, Sinks,
    cursor::{self, Found},
    directory::Directory,
    disk::Volume,
    recent::Recent,
    segment,
    store::Store,
    today::{self, Today},
};
use crate::change::Cleaning;

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
    pub(super) today: Today,
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
    /// When it was begun; none if its header cannot be read.
    pub opened_at: Option<Timestamp>,
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
            ahead: None,
        }
    }

    /// An object of a row or of a record, cleaned by the rules of today, if they are known; none if it cannot be told by them.
    pub fn cleaned(&self, stream: &Stream, object: Bytes) -> Option<Bytes> {
        today::cleaned(self.today.cleaner(stream).as_ref(), object).ok()
    }

    /// The last known state of every object, as it was logged: what is told of an object goes through [`View::cleaned`] first.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// The seqs that the files of the log begin with, oldest first.
    pub fn firsts(&self) -> Vec<u64> {
        self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The files of the log, oldest first, also those that are damaged.
    pub fn segments(&self) -> io::Result<Vec<SegmentInfo>> {
        let firsts = self.firsts();
        let mut infos = Vec::new();
        for (index, first_seq) in firsts.iter().copied().enumerate() {
            let path = segment::segment_path(&self.segment_directory, first_seq);
            let bytes = match std::fs::metadata(&path) {
                Ok(metadata) => metadata.len(),
                // Retention was here meanwhile.
                Err(_) if !self.firsts().contains(&first_seq) => continue,
                // That it is missing is damage as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                Err(error) => return Err(error),
            };
            let last_seq = firsts.get(index + 1).map_or_else(|| self.head(), |next| next - 1);
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let header = segment::read_header(&Volume, &self.segment_directory, &self.log_id, first_seq);
            let opened_at = header.ok().map(|header| header.opened_at);
            infos.push(SegmentInfo { file, first_seq, last_seq, bytes, opened_at });
        }
        Ok(infos)
    }

    /// How far each sink is that was ever attached. A damaged cursor is refused by its file.
    pub fn cursors(&self) -> Result<Vec<(String, Cursor)>, OpenError> {
        cursor::all_in(&self.cursor_directory, &self.log_id)
    }
}

/// The files of a process that does not run. Nothing else can open them meanwhile.
pub struct Archive {
    view: View,
    directory: Directory,
    refused: Option<Damage>,
    // Readers wait for its changes, of which there will be none.
    _head: watch::Sender<u64>,
}

impl Archive {
    /// Opens an existing data directory. Records that the store has missed are applied to it first.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let directory = Directory::open(path)?;
        let store = Store::open(&directory.store())?;
        let log_id: Arc<str> = directory.log_id().into();
        let sinks = match Sinks::read(&directory, &log_id) {
            // Whoever needs the cursors is told by [`View::cursors`]; the rest can be looked at, with nothing cut off.
            Err(OpenError::Damaged { .. }) => Sinks::UNKNOWN,
            sinks => sinks?,
        };
        let (writer, segments) =
            super::recover(&directory, &log_id, &store, segment::SEGMENT_LEN, (sinks, Timestamp::now()))?;
        Ok(Self::of(directory, store, segments, writer.place().next_seq - 1))
    }

    /// The same to find out what is damaged. What is refused otherwise is opened as it is: nothing is applied, nothing is cut
    /// off, and its head is the last record that is known to have been durable.
    pub fn open_to_verify(path: &Path) -> Result<Self, OpenError> {
        let refused = match Self::open(path) {
            Err(OpenError::Damaged { file, offset, problem }) => Damage { path: file, offset, problem },
            opened => return opened,
        };
        let directory = Directory::open(path)?;
        let store = Store::open(&directory.store())?;
        let failed = |path: PathBuf| move |source| OpenError::Directory { operation: "read", path, source };
        let segments = segment::segments_in(&Volume, &directory.segments()).map_err(failed(directory.segments()))?;
        let cursors = cursor::each_on(&Volume, &directory.cursors(), directory.log_id())?;
        // The damaged ones are named by whoever looks at the cursors.
        let passed = cursors.iter().filter_map(|Found { cursor, .. }| Some(cursor.as_ref().ok()?.reached));
        let applied = store.applied()?.map(|applied| applied.next_seq - 1);
        let head = passed.chain(applied).max().unwrap_or(0);
        Ok(Self { refused: Some(refused), ..Self::of(directory, store, segments, head) })
    }

    fn of(directory: Directory, store: Store, segments: Vec<u64>, head: u64) -> Self {
        let (sender, head) = watch::channel(head);
        let view = View {
            log_id: directory.log_id().into(),
            segment_directory: directory.segments(),
            cursor_directory: directory.cursors(),
            segments: Arc::new(RwLock::new(segments)),
            recent: Arc::default(),
            head,
            known: Known::new(store),
            today: Today::default(),
        };
        Self { view, directory, refused: None, _head: sender }
    }

    /// The damage for which it would be refused.
    pub fn refused(&self) -> Option<&Damage> {
        self.refused.as_ref()
    }

    /// What is in it.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// From now on what is told of rows is cleaned by these rules, as by a process that has them.
    pub fn clean_rows_by(&self, cleaning: Cleaning) {
        self.view.today.set(cleaning);
    }

    /// Where the cursors are.
    pub fn cursor_directory(&self) -> PathBuf {
        self.directory.cursors()
    }
}
