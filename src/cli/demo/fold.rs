//! The receiver's view of the cluster: records folded into objects, with an eye on order, holes and repetitions.

use std::collections::{BTreeMap, HashSet};

use kubetide_sink::Op;
use serde_json::value::RawValue;

use super::receiver::Received;

/// An object's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) stream: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(stream: &str, namespace: &str, name: &str) -> Self {
        Self { stream: stream.into(), namespace: namespace.into(), name: name.into() }
    }
}

/// One state of one object: a version of it, or its end after that version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) deleted: bool,
}

/// An object as the receiver has it.
pub(super) struct Held {
    pub(super) version: u64,
    pub(super) object: Option<Box<RawValue>>,
}

/// What all records so far amount to.
#[derive(Default)]
pub(super) struct Fold {
    /// The objects.
    pub(super) objects: BTreeMap<Key, Held>,
    /// Records, each counted once: all, and those of a snapshot.
    pub(super) records: u64,
    pub(super) snapshots: u64,
    /// Changes of objects after the snapshot.
    pub(super) changes: u64,
    /// The places in the log of records that came again.
    pub(super) repeated: Vec<u64>,
    /// Records that have another place in the log and yet the id of an earlier one.
    pub(super) logged_twice: u64,
    /// Places of the log that were passed over.
    pub(super) holes: u64,
    /// Records that came behind later ones.
    pub(super) out_of_order: u64,
    /// Gaps by stream.
    pub(super) gaps: BTreeMap<String, u64>,
    /// Deletes that were found by comparing.
    pub(super) inferred_deletes: Vec<Key>,
    /// The last place in the log.
    pub(super) head: u64,
    ids: HashSet<String>,
}

impl Fold {
    /// Takes one record in. Gives the state that it brings, if it is new and a change of an object.
    pub(super) fn take(&mut self, received: &Received) -> Option<State> {
        let seq = received.log.seq;
        let new = self.ids.insert(received.id.clone());
        match (new, seq > self.head) {
            (true, true) => self.holes += seq - self.head - 1,
            (true, false) => self.out_of_order += 1,
            (false, true) => self.logged_twice += 1,
            (false, false) => self.repeated.push(seq),
        }
        self.head = self.head.max(seq);
        if !new {
            return None;
        }
        self.records += 1;
        if received.op == "gap" {
            *self.gaps.entry(received.stream.clone()).or_default() += 1;
        }
        self.fold(received, received.change()?)
    }

    fn fold(&mut self, received: &Received, op: Op) -> Option<State> {
        let Received { stream, namespace, name, .. } = received;
        let key = Key::new(stream, namespace, name);
        match op {
            Op::Snapshot => self.snapshots += 1,
            Op::Create | Op::Update | Op::Delete => self.changes += 1,
        }
        if op == Op::Delete {
            if received.is_inferred() {
                self.inferred_deletes.push(key.clone());
            }
            self.objects.remove(&key);
            let last = received.previous_resource_version.as_ref()?.parse().ok()?;
            return Some(State { key, version: last, deleted: true });
        }
        let version = received.resource_version.parse().ok()?;
        self.objects.insert(key.clone(), Held { version, object: received.object.clone() });
        Some(State { key, version, deleted: false })
    }

    /// Whether the receiver has exactly these objects in these versions.
    pub(super) fn is_at(&self, current: &BTreeMap<Key, u64>) -> bool {
        self.objects.iter().map(|(key, held)| (key, &held.version)).eq(current)
    }
}
