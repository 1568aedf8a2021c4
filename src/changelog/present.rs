//! What has become of an object whose older state a sink was just given again: its present state once more, or that it is gone.
//! Whoever folds what the sink delivers ends up where it was before.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use kubetide_sink::{Body, Change, Id, Op, Origin, Record};

use super::{Phase, Purpose, StoreError, StreamState, View, catch_up::Followed};
use crate::change::{ObjectKey, ResourceVersion, id};

/// Tells what has become of objects.
pub struct Present {
    view: View,
    streams: HashMap<String, (Followed, StreamState)>,
    /// The log up to here was given to the sink. What comes behind it comes with the log.
    given: u64,
    /// What these states are told for: they are other messages than those that told them first.
    snapshot: Id,
    at: Timestamp,
}

impl View {
    /// What has become of objects of the streams that a sink takes, which has read the log up to `given`.
    pub fn present(
        &self,
        takes: impl Fn(&str) -> bool,
        given: u64,
        snapshot: Id,
        at: Timestamp,
    ) -> Result<Present, StoreError> {
        let streams = self.known.store.states()?.into_iter();
        let streams = streams.filter(|(stream, _)| takes(&stream.to_string()));
        let streams = streams.map(|(stream, state)| (stream.to_string(), (self.followed(stream), state))).collect();
        Ok(Present { view: self.clone(), streams, given, snapshot, at })
    }
}

impl Present {
    /// What must be told behind this record, if it is not what is known last.
    pub fn behind(&self, record: &Record) -> Result<Option<Record>, StoreError> {
        let Body::Change(change) = &record.body else { return Ok(None) };
        let Some((followed, state)) = self.streams.get(&record.stream.to_string()) else { return Ok(None) };
        // Of what is not followed any more, or of another cluster, nobody knows what it is now.
        if matches!(state.phase, Phase::Removed { .. }) || followed.stream.cluster.uid != record.stream.cluster.uid {
            return Ok(None);
        }
        let key = ObjectKey { namespace: change.namespace.clone(), name: change.name.clone() };
        let store = &self.view.known.store;
        if let Some(row) = store.row(&followed.stream, &key)? {
            let is_told = row.seq > self.given || self.is_last(record, row.seq) || row.id == record.id;
            return Ok((!is_told).then(|| self.view.snapshot_record(followed, key, row, self.snapshot)));
        }
        if change.op == Op::Delete {
            return Ok(None);
        }
        if let Some(tombstone) = store.tombstone(&followed.stream, &key, &change.uid)? {
            let is_told = tombstone.seq > self.given || self.is_last(record, tombstone.seq);
            let told = || self.named(self.view.delete_record(&followed.stream, key, tombstone));
            return Ok((!is_told).then(told));
        }
        // Every sink has had its delete, so that its tombstone is gone; or it is missing from another log than the one it was told in.
        // Only during the first LIST what is not known may be there all the same: its end shows what is.
        let is_first = matches!(state.phase, Phase::New | Phase::Listing { purpose: Purpose::Snapshot(_), .. });
        Ok((!is_first).then(|| self.named(self.gone(record, change, followed, state))))
    }

    /// Whether nothing has become of the object since this record.
    fn is_last(&self, record: &Record, seq: u64) -> bool {
        *record.log_id == *self.view.log_id && seq <= record.seq
    }

    fn gone(&self, record: &Record, change: &Change, followed: &Followed, state: &StreamState) -> Record {
        let version = ResourceVersion::new(&change.resource_version);
        let id = id::of_change(&followed.stream, &change.uid, &version, id::Of::Delete, state.lineage);
        let body = Body::Change(Change {
            op: Op::Delete,
            origin: Origin::List,
            previous_resource_version: None,
            difference: None,
            actor: None,
            patch: None,
            before: None,
            object: None,
            problem: None,
            truncated: None,
            ..change.clone()
        });
        let (log_id, stream) = (Arc::clone(&self.view.log_id), Arc::clone(&followed.stream));
        Record { id, log_id, seq: self.given, stream, observed_at: self.at.max(record.observed_at), body }
    }

    /// A delete is told as part of this, too: by its id alone a receiver would take it for the one that it has had.
    fn named(&self, mut record: Record) -> Record {
        if let Body::Change(change) = &mut record.body {
            change.snapshot = Some(self.snapshot);
        }
        record
    }
}
