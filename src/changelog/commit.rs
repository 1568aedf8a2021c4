//! The one writer of the log: takes what the streams have queued, makes one frame of it, syncs it, applies it.
//!
//! Group commit without a timer: while one frame is being synced the next group forms in the queue. The order is fixed:
//! frame synced, store batch, visible to sinks.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kubetide_sink::{Body, Control, Counts, From as GapFrom, Op, Reason, Record, Scope, Stream, What};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tracing::{error, info};

use super::{
    Fingerprint, Phase, Purpose, Removal, Removed, StreamState, WriteError,
    frame::{Frame, Seen},
    keeper::Keeper,
    recent::Recent,
    segment::{AppendError, Place, Writer},
    state::breaks_lineage,
    store::{Listed, Rows, Store, row_change, row_key},
};
use crate::{
    change::{
        Managed, ObjectKey, Observed, ResourceVersion, Row,
        compare::{self, By, Detail, Draft, Meaning, View},
        id,
    },
    clock::Clock,
    config::Sync,
    vitals::{StreamChanges, Vitals},
};

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

/// What a stream tells the log.
pub enum Entry {
    /// A LIST is needed: the stream's first, or one to mend a break. Logged once, before the LIST begins.
    ListNeeded {
        /// Why; none for the first.
        reason: Option<Reason>,
        /// How the stream is read from now on.
        fingerprint: Fingerprint,
        /// The configuration's word for it.
        asked_as: String,
    },
    /// A LIST begins, from its first page. Each attempt has a generation of its own.
    ListStarted(u64),
    /// The LIST shows an object.
    Listed(Observed),
    /// The object was deleted after the LIST under way had shown it.
    Unlisted(ObjectKey),
    /// The LIST is complete and does not have this object.
    Vanished(ObjectKey),
    /// The LIST is complete, and so is the comparison: the stream continues from here.
    ListFinished(ResourceVersion),
    /// The watch shows an object as added or modified.
    Present(Observed),
    /// The watch shows an object as deleted.
    Deleted(Observed),
    /// The watch says that there is nothing else up to here.
    Bookmark(ResourceVersion),
    /// The configuration has another word for the stream now.
    AskedAs(String),
    /// The stream was taken out of the configuration. Its rows stay for a while.
    Unfollowed,
    /// The resource is gone from the cluster, and every object that was known has been told as vanished.
    Gone,
    /// The rows of a stream that was taken out of the configuration are dropped.
    Forgotten,
}

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

/// A stream as the committer sees it.
pub(super) struct Following {
    pub(super) stream: Arc<Stream>,
    pub(super) state: StreamState,
    vitals: StreamChanges,
    /// The LIST under way.
    generation: u64,
    /// Deletes that were told since the stream's resource was found gone.
    vanished: u64,
    /// The state has moved and is not in a frame yet.
    moved: bool,
    /// The state as the last frame that was written has it; none if no frame has.
    written: Option<StreamState>,
}

impl Following {
    pub(super) fn new(stream: Arc<Stream>, state: StreamState, vitals: &Vitals) -> Self {
        let vitals = vitals.changes_of(&stream.to_string());
        Self { stream, state, vitals, generation: 0, vanished: 0, moved: false, written: None }
    }

    /// A stream that the log knows already.
    pub(super) fn known(stream: Arc<Stream>, state: StreamState, vitals: &Vitals) -> Self {
        Self { written: Some(state.clone()), ..Self::new(stream, state, vitals) }
    }

    /// A LIST shows the cluster before what was logged. From here on versions mean something else, and what the LIST has shown so
    /// far was compared in vain: the source sees it in the state and lists again.
    fn note_rewritten(&mut self) {
        let counts = match &self.state.phase {
            Phase::Listing { counts, .. } => *counts,
            Phase::New | Phase::Watching { .. } | Phase::Removed { .. } => Counts::default(),
        };
        self.state.phase = Phase::Listing { purpose: Purpose::Resync(Reason::VersionRegressed), counts };
        self.state.lineage += 1;
    }

    /// Whether the watch has been beyond this version: it comes again.
    fn has_passed(&self, version: &ResourceVersion) -> bool {
        matches!(&self.state.phase, Phase::Watching { position, .. } if version.is_covered_by(position) && version != position)
    }

    /// The position only ever moves forward: an event that comes again leaves it where it is.
    fn advance(&mut self, to: ResourceVersion, at: Timestamp) {
        if !self.has_passed(&to) {
            self.state.phase = Phase::Watching { position: to, at };
        }
    }
}

/// A frame in the making.
struct Group {
    frame: Frame,
    /// About how much it holds in memory.
    bytes: usize,
    listed: Vec<Listed>,
    /// Rows as this group leaves them: later entries of the group must see earlier ones.
    rows: Rows,
}

impl Group {
    fn next_seq(&self) -> u64 {
        self.frame.first_seq + self.frame.records.len() as u64
    }

    fn push(&mut self, record: Record, managed: Managed) {
        self.frame.records.push(record);
        self.frame.managed.push(managed);
    }
}

impl Committer {
    /// Runs until the queue is closed. An error means that the log can no longer be trusted to grow: the process must end.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Message>) -> Result<(), WriteError> {
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

    /// One entry: what it means for its stream's state, and which records that gives.
    fn enter(&mut self, group: &mut Group, stream: Arc<Stream>, at: Timestamp, entry: Entry) -> Result<(), WriteError> {
        let name = stream.to_string();
        let following = self
            .streams
            .entry(name.clone())
            .or_insert_with(|| Following::new(stream.clone(), StreamState::default(), &self.vitals));
        if !Arc::ptr_eq(&following.stream, &stream) {
            following.stream = stream.clone();
        }
        following.moved = true;
        let lineage = following.state.lineage;
        match entry {
            Entry::ListNeeded { reason, fingerprint, asked_as } => {
                let seq = group.next_seq();
                let (what, purpose) = match reason {
                    // The snapshot is named after the record that announces it.
                    None => (What::SnapshotStarted, Purpose::Snapshot(id::of_control(&self.log_id, seq))),
                    Some(reason) => {
                        let (resource_version, position_at) = match &following.state.phase {
                            Phase::Watching { position, at } => (Some(position.to_string()), Some(*at)),
                            Phase::Removed { position, at } => (position.as_ref().map(ToString::to_string), Some(*at)),
                            Phase::New | Phase::Listing { .. } => (None, None),
                        };
                        let from = GapFrom { resource_version, at: position_at, seq: seq - 1 };
                        (What::Gap { reason, from }, Purpose::Resync(reason))
                    }
                };
                following.state = StreamState {
                    phase: Phase::Listing { purpose, counts: Counts::default() },
                    lineage: lineage + u64::from(reason.is_some_and(breaks_lineage)),
                    fingerprint,
                    asked_as,
                    removal: None,
                };
                self.push_control(group, stream, at, what);
            }
            Entry::ListStarted(generation) => {
                following.generation = generation;
                if let Phase::Listing { counts, .. } = &mut following.state.phase {
                    counts.unchanged = 0;
                }
            }
            Entry::Listed(observed) => {
                group.listed.push(Listed::shown(&stream, following.generation, &observed.key));
                let view = match &following.state.phase {
                    Phase::Listing { purpose, .. } => purpose.view(),
                    // A LIST of its own accord, as in mode poll.
                    Phase::New | Phase::Watching { .. } | Phase::Removed { .. } => View::Resync(By::Version),
                };
                let row = self.row(group, &stream, &observed.key)?;
                if view == View::Resync(By::Version)
                    && row.as_ref().is_some_and(|row| compare::is_rewritten(row, &observed))
                    && let Some(following) = self.streams.get_mut(&name)
                {
                    following.note_rewritten();
                }
                self.observe(group, &stream, &name, at, row, observed, view, lineage);
            }
            Entry::Unlisted(key) => group.listed.push(Listed::gone(&stream, following.generation, &key)),
            Entry::Vanished(key) => {
                following.vanished += 1;
                if let Some(row) = self.row(group, &stream, &key)? {
                    let draft = compare::vanished(&stream, lineage, &row, key);
                    self.push_changes(group, &stream, &name, at, None, &Managed::default(), vec![draft]);
                }
            }
            Entry::ListFinished(position) => {
                let what = match &following.state.phase {
                    Phase::Listing { purpose: Purpose::Resync(_), counts } => {
                        Some(What::ResyncFinished { counts: *counts, position: Some(position.to_string()) })
                    }
                    Phase::Listing { purpose: Purpose::Snapshot(_), counts } => {
                        // Nothing was known before it: what it told, over all attempts, less what went away meanwhile.
                        let snapshot = counts.create.saturating_sub(counts.delete);
                        Some(What::SnapshotFinished { snapshot, position: Some(position.to_string()) })
                    }
                    Phase::New | Phase::Watching { .. } | Phase::Removed { .. } => None,
                };
                following.vanished = 0;
                following.state.phase = Phase::Watching { position, at };
                if let Some(what) = what {
                    self.push_control(group, stream, at, what);
                }
            }
            Entry::Present(observed) => {
                let comes_again = following.has_passed(&observed.version);
                following.advance(observed.version.clone(), at);
                let row = self.row(group, &stream, &observed.key)?;
                if row.is_none() && comes_again {
                    // Its object was deleted since: there is no row to say that it is old.
                    self.push_changes(group, &stream, &name, at, None, &Managed::default(), Vec::new());
                } else {
                    self.observe(group, &stream, &name, at, row, observed, View::Watch, lineage);
                }
            }
            Entry::Deleted(observed) => {
                following.advance(observed.version.clone(), at);
                let row = self.row(group, &stream, &observed.key)?;
                let draft = compare::deleted(&stream, lineage, row.as_ref(), &observed);
                self.push_changes(group, &stream, &name, at, None, &Managed::default(), draft.into_iter().collect());
            }
            Entry::Bookmark(position) => following.advance(position, at),
            Entry::AskedAs(word) => following.state.asked_as = word,
            Entry::Unfollowed => {
                let position = match &following.state.phase {
                    Phase::Watching { position, .. } => Some(position.clone()),
                    Phase::New | Phase::Listing { .. } | Phase::Removed { .. } => None,
                };
                following.state.phase = Phase::Removed { position, at };
                following.state.removal = Some(Removal { seq: group.next_seq(), at, deleted: 0 });
                self.push_control(group, stream, at, What::StreamRemoved { deleted: 0 });
            }
            Entry::Gone => {
                let deleted = std::mem::take(&mut following.vanished);
                following.state.phase = Phase::New;
                following.state.removal = Some(Removal { seq: group.next_seq(), at, deleted });
                self.push_control(group, stream, at, What::StreamRemoved { deleted });
            }
            Entry::Forgotten => following.state.phase = Phase::New,
        }
        Ok(())
    }

    fn row(&self, group: &Group, stream: &Stream, key: &ObjectKey) -> Result<Option<Row>, WriteError> {
        let at = row_key(stream, key);
        match group.rows.get(&at).or_else(|| self.unsynced.rows.get(&at)) {
            Some(row) => Ok(row.clone()),
            None => self.store.row(stream, key).map_err(WriteError::Store),
        }
    }

    /// One observation of a living object, held against its row.
    #[allow(clippy::too_many_arguments, reason = "the committer's own step")]
    fn observe(
        &mut self,
        group: &mut Group,
        stream: &Arc<Stream>,
        name: &str,
        at: Timestamp,
        row: Option<Row>,
        observed: Observed,
        view: View,
        lineage: u64,
    ) {
        let (key, version, managed) = (observed.key.clone(), observed.version.clone(), observed.managed.clone());
        let drafts = match compare::present(stream, lineage, row.as_ref(), observed, view, &self.detail) {
            Meaning::Changes(drafts) => drafts,
            Meaning::Nothing => Vec::new(),
            Meaning::Seen => {
                let before = group.next_seq();
                let seen = Seen { before, stream: stream.clone(), key, version, managed: managed.clone() };
                group.rows.insert(row_key(stream, &seen.key), row.clone().map(|row| seen.moves(row)));
                group.frame.seen.push(seen);
                Vec::new()
            }
        };
        self.push_changes(group, stream, name, at, row.as_ref(), &managed, drafts);
    }

    /// Puts changes into the group, and counts them: for the record at the end of a LIST, and for the metrics.
    #[allow(clippy::too_many_arguments, reason = "the committer's own step")]
    fn push_changes(
        &mut self,
        group: &mut Group,
        stream: &Arc<Stream>,
        name: &str,
        at: Timestamp,
        row: Option<&Row>,
        managed: &Managed,
        drafts: Vec<Draft>,
    ) {
        let Some(following) = self.streams.get_mut(name) else { return };
        let mut nowhere = Counts::default();
        let counts = match &mut following.state.phase {
            Phase::Listing { counts, .. } => counts,
            Phase::New | Phase::Watching { .. } | Phase::Removed { .. } => &mut nowhere,
        };
        if drafts.is_empty() {
            counts.unchanged += 1;
            following.vitals.ignored();
        }
        for Draft { id, change } in drafts {
            match change.op {
                Op::Snapshot | Op::Create => counts.create += 1,
                Op::Update => counts.update += 1,
                Op::Delete => counts.delete += 1,
            }
            following.vitals.changed(change.op, change.origin);
            let (log_id, stream) = (self.log_id.clone(), stream.clone());
            let record =
                Record { id, log_id, seq: group.next_seq(), stream, observed_at: at, body: Body::Change(change) };
            group.rows.extend(row_change(&record, managed, row));
            group.push(record, managed.clone());
        }
    }

    fn push_control(&self, group: &mut Group, stream: Arc<Stream>, at: Timestamp, what: What) {
        let seq = group.next_seq();
        let body = Body::Control(Control { what, scope: Scope::Stream });
        let id = id::of_control(&self.log_id, seq);
        group.push(Record { id, log_id: self.log_id.clone(), seq, stream, observed_at: at, body }, Managed::default());
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
            let obstacle = match self.keeper.trim(self.clock.wall())? {
                Some(obstacle) => Some(obstacle),
                None => self.keeper.no_space(),
            };
            match obstacle {
                None => return Ok(Course::On),
                Some(obstacle) => {
                    if self.wait(&obstacle)? == Course::GivenUp {
                        return Ok(Course::GivenUp);
                    }
                }
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
