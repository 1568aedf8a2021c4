//! What a sink is given that is new, or has fallen behind what the log still has: the present state of the objects.
//!
//! The rows and tombstones up to a fixed head, in the order of keys. What changes meanwhile has a higher seq: it is left out
//! here and comes with the log behind the head. So no object ever goes back to an older version.

use std::{collections::HashMap, sync::Arc};

use kubetide_sink::{
    Body, Change, Cluster, Control, Counts, From as GapFrom, Id, Op, Origin, Reason, Record, Scope, Stream, What,
};

use super::{
    CatchUp, Cause, Given, Loss, Phase, Removal, StoreError, StreamState, View,
    cursor::LONGEST_PLACE,
    store::{Place, Step, Tombstone, read_place},
    today,
};
use crate::change::{Cleaner, ObjectKey, Row, id};

/// A page looks at this many at most: the walk can be left between two pages.
const LOOKED_AT: usize = 4096;

/// A part of a catch-up, as large as a batch.
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// What they add to what the sink was given.
    pub given: Given,
    /// Where the walk goes on when they are acknowledged; none at its end.
    pub after: Option<Vec<u8>>,
}

/// How large a page may be.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// Records.
    pub records: usize,
    /// Bytes.
    pub bytes: usize,
}

/// A stream whose rows are told.
pub(super) struct Followed {
    pub(super) stream: Arc<Stream>,
    cleaner: Option<Cleaner>,
}

impl View {
    /// The next page of a catch-up, of the streams that the sink takes.
    pub fn page(
        &self,
        catch_up: &CatchUp,
        takes: impl Fn(&str) -> bool,
        limits: PageLimits,
    ) -> Result<Page, StoreError> {
        let streams: HashMap<String, Followed> = self
            .known
            .store
            .states()?
            .into_iter()
            // What is not followed any more is not told as what there is: nobody knows whether it is still so. A sink that was
            // left behind gets what it missed of it, as far as it was told the others, and then the removal.
            .filter(|(_, state)| !(catch_up.is_whole() && matches!(state.phase, Phase::Removed { .. })))
            .map(|(stream, _)| (stream.to_string(), self.followed(stream)))
            .filter(|(name, _)| takes(name))
            .collect();
        let wanted = |seq: u64| catch_up.from < seq && seq <= catch_up.head;
        let mut page = Page { records: Vec::new(), given: Given::default(), after: None };
        let mut bytes = 0;
        let mut last = None;
        for (looked_at, step) in self.known.store.walk(catch_up.after.as_deref()).enumerate() {
            let (place, step) = step?;
            let (stream, key) = read_place(&place)?;
            let record = match (streams.get(stream), step) {
                (Some(followed), Step::Row(row)) if wanted(row.seq) => {
                    let known = row.since <= catch_up.since;
                    Some((known, self.snapshot_record(followed, key, row, catch_up.id)))
                }
                (Some(followed), Step::Tombstone(tombstone)) if wanted(tombstone.seq) => {
                    Some((true, self.delete_record(&followed.stream, key, tombstone)))
                }
                _ => None,
            };
            let weight = record.as_ref().map_or(0, |(_, record)| record.weight());
            let full = page.records.len() >= limits.records
                || (!page.records.is_empty() && bytes + weight > limits.bytes)
                || looked_at >= LOOKED_AT;
            // Where the cursor cannot note the place, the page is larger by a record.
            if full && last.as_ref().is_some_and(|last: &Place| last.len() <= LONGEST_PLACE) {
                page.after = last;
                return Ok(page);
            }
            if let Some((known, record)) = record {
                match (record.op(), known) {
                    ("delete", _) => page.given.deleted += 1,
                    (_, true) => page.given.updated += 1,
                    (_, false) => page.given.created += 1,
                }
                bytes += weight;
                page.records.push(record);
            }
            last = Some(place);
        }
        Ok(page)
    }

    /// A stream, with what its rows are cleaned by today.
    pub(super) fn followed(&self, stream: Stream) -> Followed {
        Followed { cleaner: self.today.cleaner(&stream), stream: stream.into() }
    }

    /// Whether tombstones are missing that a sink would need that has read the log up to `seq`.
    pub fn has_forgotten_deletes_behind(&self, seq: u64) -> Result<bool, StoreError> {
        Ok(seq < self.known.store.buried()?)
    }

    pub(super) fn snapshot_record(&self, followed: &Followed, key: ObjectKey, row: Row, snapshot: Id) -> Record {
        let problem = row.problem();
        let cleaned = row.object.map(|object| today::cleaned(followed.cleaner.as_ref(), object)).transpose();
        let (object, problem) = match cleaned {
            Ok(object) => (object, problem),
            Err(problem) => (None, Some(problem)),
        };
        let change = Change {
            op: Op::Snapshot,
            origin: Origin::List,
            namespace: key.namespace,
            name: key.name,
            uid: row.uid,
            resource_version: row.logged.to_string(),
            previous_resource_version: None,
            generation: row.generation,
            snapshot: Some(snapshot),
            difference: None,
            actor: None,
            patch: None,
            before: None,
            object,
            problem,
            truncated: None,
        };
        let (id, seq, observed_at) = (row.id, row.seq, row.observed_at);
        let (log_id, stream) = (self.log_id.clone(), followed.stream.clone());
        Record { id, log_id, seq, stream, observed_at, body: Body::Change(change) }
    }

    pub(super) fn delete_record(&self, stream: &Arc<Stream>, key: ObjectKey, tombstone: Tombstone) -> Record {
        let Tombstone { id, seq, observed_at, .. } = tombstone;
        let change = Change {
            op: Op::Delete,
            origin: tombstone.origin,
            namespace: key.namespace,
            name: key.name,
            uid: tombstone.uid,
            resource_version: tombstone.resource_version,
            previous_resource_version: tombstone.previous_resource_version,
            generation: tombstone.generation,
            snapshot: None,
            difference: None,
            actor: None,
            patch: None,
            before: None,
            object: None,
            problem: None,
            truncated: None,
        };
        Record { id, log_id: self.log_id.clone(), seq, stream: stream.clone(), observed_at, body: Body::Change(change) }
    }

    /// What a catch-up begins with.
    pub fn opening(&self, sink: &str, cluster: &Cluster, catch_up: &CatchUp) -> Vec<Record> {
        let mut records = Vec::new();
        let mut push = |what| records.push(self.to_sink(sink, cluster, catch_up, what));
        if catch_up.cause == Cause::Behind {
            let from = GapFrom { resource_version: None, at: None, seq: catch_up.since };
            push(What::Gap { reason: Reason::SinkBehind, from });
        }
        if catch_up.is_whole() {
            push(What::SnapshotStarted);
        }
        records
    }

    /// What a catch-up ends with: the removals that the sink has missed, of the streams that it takes, and that it is over.
    pub fn closing(
        &self,
        sink: &str,
        cluster: &Cluster,
        catch_up: &CatchUp,
        takes: impl Fn(&str) -> bool,
    ) -> Result<Vec<Record>, StoreError> {
        let mut records = if catch_up.is_whole() { Vec::new() } else { self.missed_removals(catch_up, takes)? };
        records.push(self.end(sink, cluster, catch_up));
        Ok(records)
    }

    /// As they were in the log.
    fn missed_removals(&self, catch_up: &CatchUp, takes: impl Fn(&str) -> bool) -> Result<Vec<Record>, StoreError> {
        let removed = |(stream, state): (Stream, StreamState)| {
            let Removal { seq, at, deleted } = state.removal?;
            let missed = catch_up.since < seq && seq <= catch_up.head && takes(&stream.to_string());
            let body = Body::Control(Control { what: What::StreamRemoved { deleted }, scope: Scope::Stream });
            let (id, log_id) = (id::of_control(&self.log_id, seq), self.log_id.clone());
            missed.then(|| Record { id, log_id, seq, stream: Arc::new(stream), observed_at: at, body })
        };
        let mut records: Vec<Record> = self.known.store.states()?.into_iter().filter_map(removed).collect();
        records.sort_by_key(|record| record.seq);
        Ok(records)
    }

    fn end(&self, sink: &str, cluster: &Cluster, catch_up: &CatchUp) -> Record {
        let Given { created, updated, deleted } = catch_up.given;
        let what = if catch_up.is_whole() {
            What::SnapshotFinished { snapshot: created + updated, position: None }
        } else {
            let counts = Counts { create: created, update: updated, delete: deleted, unchanged: 0 };
            What::ResyncFinished { counts, position: None }
        };
        self.to_sink(sink, cluster, catch_up, what)
    }

    /// What a replay begins with.
    pub fn replay_record(&self, sink: &str, cluster: &Cluster, acknowledged: u64, at: jiff::Timestamp) -> Record {
        let from = GapFrom { resource_version: None, at: None, seq: acknowledged };
        let id = id::hash(&[&self.log_id, &acknowledged.to_string(), sink, "replay", &at.to_string()]);
        self.control(cluster, id, acknowledged, at, What::Replay { from })
    }

    /// What dead letters begin with that are given again. `before` is the place before the first of them.
    pub fn letters_record(
        &self,
        sink: &str,
        cluster: &Cluster,
        acknowledged: u64,
        at: jiff::Timestamp,
        (before, letters): (u64, u64),
    ) -> Record {
        let from = GapFrom { resource_version: None, at: None, seq: before };
        let what = What::Letters { from, letters };
        self.control(cluster, self.id_of_letters(sink, at), acknowledged, at, what)
    }

    /// The id of a replay of dead letters, and of what is told with it.
    pub fn id_of_letters(&self, sink: &str, at: jiff::Timestamp) -> Id {
        id::hash(&[&self.log_id, sink, "letters", &at.to_string()])
    }

    /// The word that the log that the sink knows of is not there any more.
    pub fn loss_record(&self, sink: &str, cluster: &Cluster, loss: Loss, seq: u64, at: jiff::Timestamp) -> Record {
        let reason = match loss {
            Loss::Lost => Reason::LogLost,
            Loss::Rewound => Reason::LogRewound,
        };
        let from = GapFrom { resource_version: None, at: None, seq };
        let id = id::hash(&[&self.log_id, &seq.to_string(), sink, reason.as_str(), &at.to_string()]);
        let body = Body::Control(Control { what: What::Gap { reason, from }, scope: Scope::Log });
        let stream = Arc::new(Stream::none_of(cluster.clone()));
        Record { id, log_id: self.log_id.clone(), seq: 0, stream, observed_at: at, body }
    }

    fn to_sink(&self, sink: &str, cluster: &Cluster, catch_up: &CatchUp, what: What) -> Record {
        let id = match what {
            // A snapshot is named after the record that announces it.
            What::SnapshotStarted => catch_up.id,
            // In the log there is no place for it: its id says for whom it is, and in which catch-up.
            _ => id::hash(&[&self.log_id, &catch_up.id.to_string(), sink, what.as_str()]),
        };
        self.control(cluster, id, catch_up.head, catch_up.at, what)
    }

    fn control(&self, cluster: &Cluster, id: Id, seq: u64, at: jiff::Timestamp, what: What) -> Record {
        let body = Body::Control(Control { what, scope: Scope::Sink });
        let stream = Arc::new(Stream::none_of(cluster.clone()));
        Record { id, log_id: self.log_id.clone(), seq, stream, observed_at: at, body }
    }
}
