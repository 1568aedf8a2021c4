//! Stage 3: the durable change log, and the only source of truth.
//!
//! ```text
//!  entries ─▶ commit: one frame ─▶ segment file, synced ─▶ store (rows, states) ─▶ head ─▶ readers
//! ```
//!
//! A frame holds records and the stream states they lead to, so that a position never moves without its records. The
//! store can always be rebuilt from the log and is never ahead of it.

mod attached;
mod bare;
mod catch_up;
mod commit;
mod cursor;
#[cfg(test)]
mod damage;
mod directory;
mod disk;
mod frame;
mod keeper;
mod known;
mod present;
mod purge;
mod reader;
mod recent;
mod retention;
mod room;
mod segment;
mod state;
mod store;
mod today;
mod verify;
mod view;

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use jiff::Timestamp;
use kubetide_sink::Stream;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

#[doc(hidden)]
pub use bare::BareLog;
pub use catch_up::{Page, PageLimits};
pub use commit::Entry;
pub use cursor::{CatchUp, Cause, Cursor, CursorFile, Errand, Given, Loss, Slot};
pub use keeper::{Size, hours_of};
pub use known::{Glimpse, Known};
pub use present::Present;
pub use purge::Removed;
pub use reader::{LogReader, ReadError};
pub use room::{is_want_of_room, shortage};
pub use state::{Fingerprint, Phase, Purpose, Removal, StreamState};
pub use store::StoreError;
pub use verify::{Damage, Inspected};
pub use view::{Archive, SegmentInfo, View};

use crate::{
    change::{Cleaning, ObjectKey, Observed, compare::Detail},
    clock::Clock,
    config::{self, Start, WhenBehind},
    vitals::Vitals,
};
use attached::Attached;
use commit::{Committer, Following, Message, Purge, Submission, Unsynced};
use directory::Directory;
use disk::Volume;
use keeper::Keeper;
use recent::Recent;
use segment::{Recovery, SEGMENT_LEN, Writer};
use store::Store;
use today::Today;

/// What all streams together may hold in memory on the way to the log. When it is spent, they stop reading.
const BUDGET_BYTES: usize = 32 * 1024 * 1024;
/// The budget is counted in units of this, because permits are counted in 32 bits.
const BUDGET_UNIT: usize = 256;
/// Entries in the queue; the budget bounds their bytes, this bounds their number.
const QUEUE_ENTRIES: usize = 4096;

/// Why the log cannot be opened or read. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the directory.
    #[error(
        "data directory {} is in use by another kubetide process; stop it, or give this one another data_dir",
        path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The directory was written by another version.
    #[error(
        "data directory {} has format {found}, this kubetide knows format {known}; use the version that wrote it, or another data_dir",
        path.display()
    )]
    Format {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: String,
        /// Ours.
        known: u32,
    },
    /// A file is not what was written. It is left as it is.
    #[error(
        "{} is damaged at byte {offset}: {problem}; restore the data directory from a copy, or move it away and start anew with a new snapshot",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// The rows are of another cluster.
    #[error(
        "data directory {} belongs to the cluster with uid {known}, but this cluster has uid {found}; check cluster.context, use another data_dir, or, if this cluster replaces that one, start once with --accept-new-cluster",
        path.display()
    )]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// The cluster of the rows.
        known: String,
        /// The cluster at hand.
        found: String,
    },
    /// The operating system refused.
    #[error("cannot {operation} {}: {source}", path.display())]
    Directory {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// What came of it.
        source: io::Error,
    },
    /// fjall refused.
    #[error(
        "cannot open the store in {}: {}; if its files are damaged, restore the data directory from a copy, or move it away and start anew with a new snapshot",
        path.display(),
        store::plain(source)
    )]
    Store {
        /// Where.
        path: PathBuf,
        /// What came of it.
        source: fjall::Error,
    },
    /// The store opened and then failed.
    #[error(
        "cannot read the store: {0}; if its files are damaged, restore the data directory from a copy, or move it away and start anew with a new snapshot"
    )]
    Rows(#[from] StoreError),
}

/// Why the log can no longer be written. The process must end; what was acknowledged before is safe.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Appending or syncing failed.
    #[error(
        "cannot append to the change log: {0}; nothing that was logged is lost: make room or mend the volume, and start again"
    )]
    Append(#[source] io::Error),
    /// The store failed.
    #[error(
        "cannot apply to the store: {0}; nothing that was logged is lost: make room or mend the volume, and start again"
    )]
    Store(#[source] StoreError),
    /// The store found no room on the volume. What is in the log is safe; with room the log can be opened again.
    #[error("the store found no room on the volume: {0}")]
    NoRoom(#[source] StoreError),
    /// The writer is gone: it has failed before, or the log was closed.
    #[error("the change log is closed")]
    Closed,
}

/// What a log is opened for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The uid of the cluster whose changes it holds.
    pub uid: String,
    /// Whether that cluster may take the place of another.
    pub accept_new: bool,
    /// How much a change tells.
    pub detail: Detail,
    /// How the log is kept.
    pub keep: config::Log,
}

impl Setup {
    /// For this cluster, and all else as by default.
    pub fn of(uid: &str) -> Self {
        Self { uid: uid.into(), accept_new: false, detail: Detail::default(), keep: config::Log::default() }
    }
}

/// The open change log.
pub struct Changelog {
    directory: Directory,
    log_id: Arc<str>,
    known: Known,
    segments: Arc<RwLock<Vec<u64>>>,
    recent: Arc<Recent>,
    attached: Attached,
    purger: Purger,
    ending: Arc<AtomicBool>,
    today: Today,
    head: watch::Receiver<u64>,
    appender: Appender,
    committer: JoinHandle<Result<(), WriteError>>,
    failed: oneshot::Receiver<()>,
}

impl Changelog {
    /// Opens the log in `path`, replays what the store has missed, and starts the writer.
    pub fn open(path: &Path, setup: Setup, clock: Clock, vitals: &Vitals) -> Result<Self, OpenError> {
        let directory = Directory::open(path)?;
        let log_id: Arc<str> = directory.log_id().into();
        let sinks = Sinks::read(&directory, &log_id)?;
        let store = Store::open(&directory.store())?;
        match store.cluster_uid()? {
            Some(known) if known == setup.uid => {}
            Some(known) if !setup.accept_new => {
                return Err(OpenError::OtherCluster { path: path.into(), known, found: setup.uid });
            }
            _ => store.set_cluster_uid(&setup.uid)?,
        }
        let (writer, segments) = recover(&directory, &log_id, &store, segment_len(&setup.keep), (sinks, clock.wall()))?;

        let mut following = HashMap::new();
        for (stream, state) in store.states()? {
            following.insert(stream.to_string(), Following::known(Arc::new(stream), state, vitals));
        }
        let attached = Attached::default();
        let keeper =
            Keeper::new(directory.segments(), &log_id, &setup.keep, segments, attached.clone(), store.clone())?;
        let segments = keeper.segments();
        let ending = Arc::new(AtomicBool::new(false));
        let today = Today::default();
        let recent = Arc::new(Recent::default());
        let (head_sender, head) = watch::channel(writer.place().next_seq - 1);
        let (sender, receiver) = mpsc::channel(QUEUE_ENTRIES);
        let (purge_sender, purges) = mpsc::channel(1);
        let committer = Committer {
            log_id: log_id.clone(),
            writer,
            store: store.clone(),
            keeper,
            sync: setup.keep.sync,
            ending: ending.clone(),
            was_short: false,
            today: today.clone(),
            purges,
            asked_to_purge: Vec::new(),
            unsynced: Unsynced::default(),
            recent: recent.clone(),
            head: head_sender,
            clock: clock.clone(),
            streams: following,
            vitals: vitals.clone(),
            detail: setup.detail,
        };
        let (failing, failed) = oneshot::channel();
        let committer = std::thread::Builder::new()
            .name("committer".into())
            .spawn(move || {
                let ended = committer.run(receiver);
                if ended.is_err() {
                    // The bridge may be gone already; then nobody needs to know.
                    let _ = failing.send(());
                }
                ended
            })
            .map_err(|source| OpenError::Directory { operation: "start the writer for", path: path.into(), source })?;
        let budget = Arc::new(Semaphore::new(BUDGET_BYTES / BUDGET_UNIT));
        let appender = Appender { sender, budget, store: store.clone(), clock, vitals: vitals.clone() };
        let known = Known::new(store);
        Ok(Self {
            directory,
            log_id,
            known,
            segments,
            recent,
            attached,
            purger: Purger(purge_sender),
            ending,
            today,
            head,
            appender,
            committer,
            failed,
        })
    }

    /// The id of this log.
    pub fn log_id(&self) -> &str {
        &self.log_id
    }

    /// The seq of the last durable record.
    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// From now on what is told from rows is cleaned by these rules, whatever it was cleaned by when it was logged. To be said
    /// before anything is appended or read.
    pub fn clean_rows_by(&self, cleaning: Cleaning) {
        self.today.set(cleaning);
    }

    /// What is known, for the sources to read.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// The way in, for the sources.
    pub fn appender(&self) -> Appender {
        self.appender.clone()
    }

    /// Attaches a sink: what it needs of the log is kept from now on. A new one begins where `start` says.
    pub fn attach(&self, sink: &str, start: Start, when_behind: WhenBehind) -> Result<CursorFile, OpenError> {
        let directory = self.directory.cursors();
        let head = self.head();
        let mut cursor = match CursorFile::open(&directory, sink, &self.log_id)? {
            Some(cursor) => cursor,
            None => match start {
                Start::Earliest => CursorFile::create(&directory, sink, &self.log_id, self.view().oldest() - 1)?,
                Start::Now => CursorFile::create(&directory, sink, &self.log_id, head)?,
                // The beginning of a log is its snapshot.
                Start::Snapshot if head == 0 => CursorFile::create(&directory, sink, &self.log_id, 0)?,
                Start::Snapshot => {
                    let at = self.appender.clock.wall();
                    CursorFile::create_behind(&directory, sink, &self.log_id, |cursor| {
                        cursor.catch_up(sink, Cause::New, 0, head, at);
                    })?
                }
            },
        };
        cursor.hold(self.attached.hold(sink, when_behind));
        Ok(cursor)
    }

    /// Every sink there is has been attached: from now on, what none of them needs may go.
    pub fn all_attached(&self) {
        self.attached.complete();
    }

    /// A way to have segments removed.
    pub fn purger(&self) -> Purger {
        self.purger.clone()
    }

    /// From now on nobody waits for room any more: what could not be appended is given up, as if it had not been seen.
    pub fn give_up_waiting(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// What may be read of it.
    pub fn view(&self) -> View {
        View {
            log_id: self.log_id.clone(),
            segment_directory: self.directory.segments(),
            cursor_directory: self.directory.cursors(),
            segments: self.segments.clone(),
            recent: self.recent.clone(),
            head: self.head.clone(),
            known: self.known.clone(),
            today: self.today.clone(),
        }
    }

    /// A reader whose first record is `next`.
    pub fn reader(&self, next: u64) -> LogReader {
        self.view().reader(next)
    }

    /// Returns if the writer fails; why is told by [`Changelog::close`].
    pub async fn failed(&mut self) {
        if (&mut self.failed).await.is_err() {
            // The writer ended well, or has been reported already: there is nothing more to wait for.
            std::future::pending().await
        }
    }

    /// Ends the writer after everything that was appended is durable. All other appenders must be gone.
    pub fn close(self) -> Result<(), WriteError> {
        drop(self.appender);
        self.committer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// What all sinks that were ever attached say of the log.
struct Sinks {
    /// The highest seq that one of them has passed; none if nobody knows.
    passed: Option<u64>,
    /// The oldest one that one of them has not.
    oldest_needed: u64,
}

impl Sinks {
    /// Where a cursor is damaged: it may have passed anything. What it needs is checked when it is read.
    const UNKNOWN: Self = Self { passed: None, oldest_needed: u64::MAX };

    fn read(directory: &Directory, log_id: &str) -> Result<Self, OpenError> {
        let cursors = cursor::all_in(&directory.cursors(), log_id)?;
        let passed = cursors.iter().map(|(_, cursor)| cursor.reached).max().unwrap_or(0);
        let oldest_needed = cursors.iter().map(|(_, cursor)| cursor.needs()).min().unwrap_or(1);
        Ok(Self { passed: Some(passed), oldest_needed })
    }
}

/// Finds the end of the log and applies to the store what it has missed.
fn recover(
    directory: &Directory,
    log_id: &Arc<str>,
    store: &Store,
    segment_len: u64,
    (Sinks { passed, oldest_needed }, now): (Sinks, Timestamp),
) -> Result<(Writer, Vec<u64>), OpenError> {
    let applied = store.applied()?;
    let replay = |frame, place| Ok(store.apply(&frame, &store.rows_after(&frame)?, &[], place)?);
    let recovery = Recovery {
        disk: Volume::shared(),
        directory: &directory.segments(),
        log_id,
        segment_len,
        now,
        applied,
        oldest_needed,
        passed,
    };
    recovery.run(replay)
}

/// A small log has small segments, or it could not be trimmed.
fn segment_len(keep: &config::Log) -> u64 {
    SEGMENT_LEN.min(keep.max_bytes.get() / 8)
}

/// The way to have segments removed. It does not keep the log open.
#[derive(Clone)]
pub struct Purger(mpsc::Sender<Purge>);

impl Purger {
    /// Removes the whole segments in front of the record `before`, as far as no attached sink needs them.
    pub async fn purge(&self, before: u64) -> Result<Removed, WriteError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((before, answer)).await.map_err(|_| WriteError::Closed)?;
        answered.await.map_err(|_| WriteError::Closed)
    }
}

/// The way into the log.
#[derive(Clone)]
pub struct Appender {
    sender: mpsc::Sender<Message>,
    budget: Arc<Semaphore>,
    store: Store,
    clock: Clock,
    vitals: Vitals,
}

impl Appender {
    /// Queues an entry. Waits while the byte budget of all readers is spent, never for a sink.
    pub async fn append(&self, stream: &Arc<Stream>, entry: Entry) -> Result<(), WriteError> {
        let weight = entry.weight();
        let units = weight.div_ceil(BUDGET_UNIT).min(BUDGET_BYTES / BUDGET_UNIT) as u32;
        let permit = self.budget.clone().acquire_many_owned(units).await.map_err(|_| WriteError::Closed)?;
        self.vitals.budget(BUDGET_BYTES - self.budget.available_permits() * BUDGET_UNIT);
        // As fine as it is stored: whoever reads it from memory sees the same as who reads it from the disk.
        let at = self.clock.wall();
        let at = Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at);
        let submission = Submission { stream: stream.clone(), at, entry, weight, _permit: permit };
        self.sender.send(Message::Submission(Box::new(submission))).await.map_err(|_| WriteError::Closed)
    }

    /// Waits until everything that was appended before is durable.
    pub async fn flush(&self) -> Result<(), WriteError> {
        let (sender, receiver) = oneshot::channel();
        self.sender.send(Message::Barrier(sender)).await.map_err(|_| WriteError::Closed)?;
        receiver.await.map_err(|_| WriteError::Closed)
    }

    /// Appends a delete for every known object that the LIST of `generation` did not show. The LIST must be complete; where
    /// there was none, because the resource is proven gone, that is every known object.
    pub async fn append_vanished(&self, stream: &Arc<Stream>, generation: u64) -> Result<(), WriteError> {
        self.flush().await?;
        // A page of keys at a time: memory does not grow with the number of objects.
        let (page_sender, mut pages) = mpsc::channel::<Result<ObjectKey, StoreError>>(512);
        let (store, of) = (self.store.clone(), stream.clone());
        let walk = tokio::task::spawn_blocking(move || {
            for key in store.vanished(&of, generation) {
                if page_sender.blocking_send(key).is_err() {
                    return Ok(());
                }
            }
            store.forget_listed(&of, generation)
        });
        while let Some(key) = pages.recv().await {
            self.append(stream, Entry::Vanished(key.map_err(WriteError::Store)?)).await?;
        }
        walk.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())).map_err(WriteError::Store)
    }
}

impl Entry {
    /// About how many bytes this entry holds in memory.
    fn weight(&self) -> usize {
        // Names, versions, bookkeeping.
        const FLAT: usize = 512;
        match self {
            Self::Listed(Observed { object: Ok(object), .. })
            | Self::Present(Observed { object: Ok(object), .. })
            | Self::Deleted(Observed { object: Ok(object), .. }) => FLAT + object.len(),
            _ => FLAT,
        }
    }
}
