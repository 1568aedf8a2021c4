//! The one writer of the log: takes what the streams have queued, makes one frame of it, syncs it, applies it.
//!
//! Group commit without a timer: while one frame is being synced the next group forms in the queue. The order is fixed:
//! frame synced, store batch, visible to sinks.

mod entry;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kubetide_sink::Stream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tracing::{error, info};

pub use entry::Entry;
pub(super) use entry::Following;

use super::{
    Removed, WriteError,
    frame::Frame,
    keeper::Keeper,
    recent::Recent,
    room,
    segment::{AppendError, Place, Writer},
    store::{Rows, Store},
    today::Today,
};
use crate::{change::compare::Detail, clock::Clock, config::Sync, vitals::Vitals};
use entry::Group;

/// A group is closed at this size: large enough to pay for its sync, small enough to hold in memory.
const GROUP_BYTES: usize = 1024 * 1024;
/// How often it is looked what may go from the log.
const KEEPING_INTERVAL: Duration = Duration::from_secs(5);
/// What is written and not synced yet is in memory too: beyond this it is synced before its time.
const UNSYNCED_BYTES: usize = 4 * 1024 * 1024;
/// How often it is looked whether appending may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Positions that moved by bookmarks alone are written this seldom: losing one costs nothing but a replayed event.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

/// An entry on its way to the log.
pub(super) struct Submission {
    pub(super) stream: Arc<Stream>,
    pub(super) at: Timestamp,
    pub(super) entry: Entry,
    pub(super) weight: usize,
    /// The entry's share of the readers' byte budget: given back when the entry is in the log.
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) enum Message {
    Submission(Box<Submission>),
    /// Answered when everything before it is durable.
    Barrier(oneshot::Sender<()>),
}

/// The segments in front of a record are to be removed.
pub(super) type Purge = (u64, oneshot::Sender<Removed>);

pub(super) struct Committer {
    pub(super) log_id: Arc<str>,
    pub(super) writer: Writer,
    pub(super) store: Store,
    pub(super) keeper: Keeper,
    pub(super) sync: Sync,
    /// Asked to end: whoever waits for room gives up.
    pub(super) ending: Arc<AtomicBool>,
    /// Whether the volume was ever full.
    pub(super) was_short: bool,
    pub(super) today: Today,
    /// What somebody wants to be removed, on a way of its own: the queue is not read while there is no room.
    pub(super) purges: mpsc::Receiver<Purge>,
    pub(super) asked_to_purge: Vec<Purge>,
    /// Written, and not synced yet.
    pub(super) unsynced: Unsynced,
    pub(super) recent: Arc<Recent>,
    pub(super) head: watch::Sender<u64>,
    pub(super) clock: Clock,
    /// By name: a stream may come back with another version.
    pub(super) streams: HashMap<String, Following>,
    pub(super) vitals: Vitals,
    pub(super) detail: Detail,
}

/// Groups that are in the file and not durable, in order.
#[derive(Default)]
pub(super) struct Unsynced {
    /// With the place behind each.
    groups: Vec<(Group, Place)>,
    /// Rows as they leave them.
    rows: Rows,
    bytes: usize,
    since: Option<Instant>,
}

/// Whether the committer goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    On,
    /// There is no room, and it was asked to end: what is not written was never seen.
    GivenUp,
}

impl Committer {
    /// Runs until the queue is closed. An error means that the log can no longer be trusted to grow: it must be opened anew.
    pub(super) fn run(mut self, queue: mpsc::Receiver<Message>) -> Result<(), WriteError> {
        self.work(queue).map_err(|error| match error {
            // What a thread of the store died of is not known; where there was no room, it is that.
            WriteError::Store(store)
                if room::is_want_of_room(&store)
                    || store.is_dead() && (self.was_short || self.keeper.no_space().is_some()) =>
            {
                WriteError::NoRoom(store)
            }
            error => error,
        })
    }

    fn work(&mut self, mut queue: mpsc::Receiver<Message>) -> Result<(), WriteError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(WriteError::Append)?;
        let mut bookmarks_due = Instant::now() + BOOKMARK_INTERVAL;
        let mut keeping_due = Instant::now();
        loop {
            let patience = self.patience();
            let received = runtime.block_on(async {
                tokio::select! {
                    biased;
                    message = queue.recv() => Some(message),
                    Some(purge) = self.purges.recv() => {
                        self.asked_to_purge.push(purge);
                        None
                    }
                    () = tokio::time::sleep(patience) => None,
                }
            });
            let mut next = match received {
                Some(Some(message)) => Some(message),
                Some(None) => break,
                None => None,
            };
            self.vitals.heartbeat();
            let mut group = self.new_group();
            let mut barriers = Vec::new();
            // Permits live until the group is in the log, so that the budget counts what is in memory.
            let mut permits = Vec::new();
            while let Some(message) = next {
                match message {
                    Message::Barrier(answer) => barriers.push(answer),
                    Message::Submission(submission) => {
                        let Submission { stream, at, entry, weight, _permit: permit } = *submission;
                        group.bytes += weight;
                        permits.push(permit);
                        self.enter(&mut group, stream, at, entry)?;
                    }
                }
                next = if group.bytes < GROUP_BYTES { queue.try_recv().ok() } else { None };
            }
            let due = Instant::now() >= bookmarks_due;
            if due || !barriers.is_empty() || !group.frame.is_empty() {
                bookmarks_due = Instant::now() + BOOKMARK_INTERVAL;
                self.add_states(&mut group);
            }
            if self.write(group)? == Course::GivenUp {
                return self.store.sync().map_err(WriteError::Store);
            }
            if !barriers.is_empty() || self.is_sync_due() {
                self.settle()?;
            }
            for barrier in barriers {
                // Whoever asked may have gone away meanwhile.
                let _ = barrier.send(());
            }
            if Instant::now() >= keeping_due {
                keeping_due = Instant::now() + KEEPING_INTERVAL;
                self.keep()?;
            }
            self.purge()?;
        }
        let mut last = self.new_group();
        self.add_states(&mut last);
        self.write(last)?;
        self.settle()?;
        self.store.sync().map_err(WriteError::Store)
    }

    /// How long it may wait for the next message.
    fn patience(&self) -> Duration {
        match (self.sync, self.unsynced.since) {
            (Sync::Every(interval), Some(since)) => interval.saturating_sub(since.elapsed()),
            _ => KEEPING_INTERVAL,
        }
    }

    fn is_sync_due(&self) -> bool {
        match (self.sync, self.unsynced.since) {
            (_, None) => false,
            (Sync::Always, Some(_)) => true,
            (Sync::Every(interval), Some(since)) => {
                since.elapsed() >= interval || self.unsynced.bytes >= UNSYNCED_BYTES
            }
        }
    }

    /// Removes what somebody wants to be removed. Also while appending is blocked: that may be what it takes.
    fn purge(&mut self) -> Result<(), WriteError> {
        while let Ok(purge) = self.purges.try_recv() {
            self.asked_to_purge.push(purge);
        }
        for (before, answer) in std::mem::take(&mut self.asked_to_purge) {
            // Whoever asked may have gone away meanwhile.
            let _ = answer.send(self.keeper.purge(before)?);
        }
        Ok(())
    }

    /// What has to be done now and then: the segments and tombstones that may go, and how the log stands.
    fn keep(&mut self) -> Result<(), WriteError> {
        self.keeper.trim(self.clock.wall())?;
        self.keeper.bury()?;
        self.vitals.log_size(self.keeper.size(self.clock.wall()));
        Ok(())
    }

    fn new_group(&self) -> Group {
        let frame = Frame { first_seq: self.writer.place().next_seq, ..Frame::default() };
        Group { frame, bytes: 0, listed: Vec::new(), rows: Rows::new() }
    }

    /// The positions that have moved go into the frame with the records that moved them.
    fn add_states(&mut self, group: &mut Group) {
        for following in self.streams.values_mut() {
            if std::mem::take(&mut following.moved) {
                group.frame.states.push((following.stream.clone(), following.state.clone()));
            }
        }
    }

    /// Writes the group's frame, as soon as there is room for it.
    fn write(&mut self, mut group: Group) -> Result<Course, WriteError> {
        if group.frame.is_empty() {
            // Objects that a LIST showed unchanged: nothing for the log, but the comparison at its end needs to know.
            if !group.listed.is_empty() {
                let place = self.writer.place();
                self.unsynced.push(group, place, self.sync);
            }
            return Ok(Course::On);
        }
        let place = loop {
            if self.wait_for_room()? == Course::GivenUp {
                return Ok(Course::GivenUp);
            }
            let written = self.append(&group.frame)?;
            match written {
                Ok(place) => break place,
                Err(AppendError::Full(error)) => {
                    self.was_short = true;
                    if self.wait(&error.to_string())? == Course::GivenUp {
                        return Ok(Course::GivenUp);
                    }
                }
                Err(error @ AppendError::Broken(_)) => return Err(error.into()),
            }
        };
        self.resume();
        self.keeper.grown(place.offset);
        for (stream, state) in &group.frame.states {
            if let Some(following) = self.streams.get_mut(&stream.to_string()) {
                following.written = Some(state.clone());
            }
        }
        group.bytes = group.bytes.max(1);
        self.unsynced.push(group, place, self.sync);
        Ok(Course::On)
    }

    /// Frames synced, then store, then visible.
    fn settle(&mut self) -> Result<(), WriteError> {
        self.writer.sync()?;
        let Unsynced { groups, .. } = std::mem::take(&mut self.unsynced);
        for (group, place) in groups {
            self.store.apply(&group.frame, &group.rows, &group.listed, place).map_err(WriteError::Store)?;
            self.recent.push(group.frame.records);
            self.head.send_replace(place.next_seq - 1);
        }
        Ok(())
    }

    /// Writes a frame, into a new segment if the last one is full.
    fn append(&mut self, frame: &Frame) -> Result<Result<Place, AppendError>, WriteError> {
        if self.writer.is_full() {
            self.settle()?;
            // A segment opens with the states of all streams, as they were before the frame that is about to be written: they
            // must not be ahead of their records if a crash falls in between.
            let (first_seq, at) = (self.writer.place().next_seq, self.clock.wall());
            let written = |following: &Following| Some((following.stream.clone(), following.written.clone()?));
            let states = self.streams.values().filter_map(written).collect();
            let opening = Frame { first_seq, states, ..Frame::default() };
            if let Err(error) = self.writer.roll(&opening, at) {
                return Ok(Err(error));
            }
            // Nothing of the store needs the segments before it any more: they may go at any time.
            let place = self.writer.place();
            self.store.apply(&opening, &Rows::new(), &[], place).map_err(WriteError::Store)?;
            // Readers look for the next segment only when there is something in it to read.
            self.keeper.opened(first_seq, at);
        }
        Ok(self.writer.write(frame))
    }

    /// Waits until the log may grow.
    fn wait_for_room(&mut self) -> Result<Course, WriteError> {
        loop {
            let behind = self.keeper.trim(self.clock.wall())?;
            let full = self.keeper.no_space();
            self.was_short |= full.is_some();
            let Some(obstacle) = behind.or(full) else { return Ok(Course::On) };
            if self.wait(&obstacle)? == Course::GivenUp {
                return Ok(Course::GivenUp);
            }
        }
    }

    /// Appending is blocked: says so, and waits a moment.
    fn wait(&mut self, obstacle: &str) -> Result<Course, WriteError> {
        // What is written already must reach the sinks, or the one that is waited for would wait too.
        self.settle()?;
        if self.ending.load(Ordering::Relaxed) {
            return Ok(Course::GivenUp);
        }
        if self.vitals.block(obstacle) {
            error!(obstacle, "appending to the log is blocked; nothing is lost, but nothing new is captured");
        }
        self.vitals.heartbeat();
        self.vitals.log_size(self.keeper.size(self.clock.wall()));
        self.purge()?;
        std::thread::sleep(LOOK_AGAIN);
        Ok(Course::On)
    }

    fn resume(&mut self) {
        if self.vitals.unblock() {
            info!("appending to the log goes on");
        }
    }
}

impl Unsynced {
    fn push(&mut self, group: Group, place: Place, sync: Sync) {
        self.since.get_or_insert_with(Instant::now);
        self.bytes += group.bytes;
        // With a sync for every group the store has the rows before anybody asks for them.
        if sync != Sync::Always {
            self.rows.extend(group.rows.iter().map(|(key, row)| (key.clone(), row.clone())));
        }
        self.groups.push((group, place));
    }
}
