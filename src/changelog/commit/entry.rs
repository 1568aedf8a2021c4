//! What an entry means: for the state of its stream, and which records that gives.

use std::sync::Arc;

use jiff::Timestamp;
use kubetide_sink::{Body, Change, Control, Counts, From as GapFrom, Op, Reason, Record, Scope, Stream, What};

use super::Committer;
use crate::{
    change::{
        Cleaner, Managed, ObjectKey, Observed, ResourceVersion, Row,
        compare::{self, By, Draft, Meaning, View},
        id,
    },
    changelog::{
        Fingerprint, Phase, Purpose, Removal, StreamState, WriteError,
        frame::{Frame, Seen},
        state::breaks_lineage,
        store::{Listed, Rows, row_change, row_key},
        today,
    },
    vitals::{StreamChanges, Vitals},
};

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

/// A stream as the committer sees it.
pub(in crate::changelog) struct Following {
    pub(in crate::changelog) stream: Arc<Stream>,
    pub(in crate::changelog) state: StreamState,
    vitals: StreamChanges,
    /// The LIST under way.
    generation: u64,
    /// Deletes that were told since the stream's resource was found gone.
    vanished: u64,
    /// The state has moved and is not in a frame yet.
    pub(super) moved: bool,
    /// The state as the last frame that was written has it; none if no frame has.
    pub(super) written: Option<StreamState>,
}

impl Following {
    pub(in crate::changelog) fn new(stream: Arc<Stream>, state: StreamState, vitals: &Vitals) -> Self {
        let vitals = vitals.changes_of(&stream.to_string());
        Self { stream, state, vitals, generation: 0, vanished: 0, moved: false, written: None }
    }

    /// A stream that the log knows already.
    pub(in crate::changelog) fn known(stream: Arc<Stream>, state: StreamState, vitals: &Vitals) -> Self {
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
pub(super) struct Group {
    pub(super) frame: Frame,
    /// About how much it holds in memory.
    pub(super) bytes: usize,
    pub(super) listed: Vec<Listed>,
    /// Rows as this group leaves them: later entries of the group must see earlier ones.
    pub(super) rows: Rows,
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

/// What a change tells from the row is cleaned by the rules of today; what was observed just now is clean.
fn tell_cleaned(change: &mut Change, cleaner: impl FnOnce() -> Option<Cleaner>) {
    let from_row = if change.op == Op::Delete { change.object.take() } else { change.before.take() };
    let Some(object) = from_row else { return };
    let cleaned = today::cleaned(cleaner().as_ref(), object);
    match (change.op, cleaned) {
        (Op::Delete, Ok(object)) => change.object = Some(object),
        (Op::Delete, Err(problem)) => change.problem = Some(problem),
        // Without one is better than with what cannot be told.
        (_, cleaned) => change.before = cleaned.ok(),
    }
}

impl Committer {
    /// One entry: what it means for its stream's state, and which records that gives.
    pub(super) fn enter(
        &mut self,
        group: &mut Group,
        stream: Arc<Stream>,
        at: Timestamp,
        entry: Entry,
    ) -> Result<(), WriteError> {
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
                let returns = match &following.state.phase {
                    Phase::Removed { .. } => {
                        Some(Purpose::Return { since: seq, id: id::of_control(&self.log_id, seq) })
                    }
                    // Announced a second time before it was complete: what is owed stays owed.
                    Phase::Listing { purpose: purpose @ Purpose::Return { .. }, .. } => Some(*purpose),
                    Phase::New | Phase::Listing { .. } | Phase::Watching { .. } => None,
                };
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
                        (What::Gap { reason, from }, returns.unwrap_or(Purpose::Resync(reason)))
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
                    Phase::Listing { purpose: Purpose::Resync(_) | Purpose::Return { .. }, counts } => {
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
        for Draft { id, mut change } in drafts {
            tell_cleaned(&mut change, || self.today.cleaner(stream));
            match change.op {
                // Told again, as it was.
                Op::Snapshot if row.is_some() => counts.unchanged += 1,
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
}
