//! The last states that a reader of the log has passed, so that it can tell what a change was before.
//!
//! Bounded: the oldest ones are forgotten. A state is used only if it is the very version that the change names as the one
//! before it, so that nothing false is told, however it came here.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use kubetide_sink::{Body, Record, format};

use crate::{
    change::{ObjectKey, Row},
    changelog::View,
};

/// What one reader may hold of them.
const BUDGET_BYTES: usize = 16 * 1024 * 1024;
/// Names, versions, bookkeeping.
const FLAT_BYTES: usize = 256;

type Key = (String, ObjectKey);

/// States by object.
#[derive(Default)]
pub(super) struct Previous {
    states: HashMap<Key, State>,
    /// In the order of their coming; an object that came again is here more than once.
    order: VecDeque<(Key, u64)>,
    bytes: usize,
    turn: u64,
}

struct State {
    version: String,
    object: Bytes,
    turn: u64,
}

impl Previous {
    /// Whether no more can be held without forgetting.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > BUDGET_BYTES / 2
    }

    /// Remembers a row.
    pub(super) fn note_row(&mut self, stream: &str, key: ObjectKey, row: &Row) {
        if let Some(object) = &row.object {
            self.insert((stream.to_owned(), key), row.logged.to_string(), object.clone());
        }
    }

    /// The old values of the record's patch, if they are known, as the JSON array of [`format::Was`]; then remembers the
    /// record's own state.
    ///
    /// A state may have been logged by other rules than those of today, and is told by these.
    pub(super) fn pass(&mut self, view: &View, record: &Record) -> Option<Vec<u8>> {
        self.pass_cleaned(record, |object| view.cleaned(&record.stream, object))
    }

    fn pass_cleaned(&mut self, record: &Record, cleaned: impl Fn(Bytes) -> Option<Bytes>) -> Option<Vec<u8>> {
        let Body::Change(change) = &record.body else { return None };
        let key = ObjectKey { namespace: change.namespace.clone(), name: change.name.clone() };
        let key = (record.stream.to_string(), key);
        let named = change.previous_resource_version.as_deref();
        let state = self.states.get(&key).filter(|state| Some(state.version.as_str()) == named);
        let before = change.before.as_ref().or(state.map(|state| &state.object));
        let before = before.filter(|_| change.patch.is_some()).cloned().and_then(cleaned);
        let was = change.patch.as_ref().zip(before).and_then(|(patch, before)| format::was(&before, patch));
        if let Some(object) = &change.object {
            self.insert(key, change.resource_version.clone(), object.clone());
        }
        was.and_then(|was| serde_json::to_vec(&was).ok())
    }

    fn insert(&mut self, key: Key, version: String, object: Bytes) {
        self.turn += 1;
        // A copy of its own: the bytes may be a slice of a whole frame.
        let object = Bytes::copy_from_slice(&object);
        self.bytes += object.len() + FLAT_BYTES;
        self.order.push_back((key.clone(), self.turn));
        if let Some(old) = self.states.insert(key, State { version, object, turn: self.turn }) {
            self.bytes -= old.object.len();
        }
        while self.bytes > BUDGET_BYTES {
            let Some((key, turn)) = self.order.pop_front() else { break };
            self.bytes -= FLAT_BYTES;
            if self.states.get(&key).is_some_and(|state| state.turn == turn)
                && let Some(state) = self.states.remove(&key)
            {
                self.bytes -= state.object.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use kubetide_sink::{Op, sample};

    use super::*;

    fn update(seq: u64, previous: u64, object: &str) -> Record {
        let mut record = sample::record(seq, object.to_owned());
        let Body::Change(change) = &mut record.body else { unreachable!() };
        (change.op, change.name) = (Op::Update, "web".into());
        change.previous_resource_version = Some(previous.to_string());
        change.patch = Some(r#"[{"op":"replace","path":"/n","value":9}]"#.into());
        record
    }

    #[test]
    fn old_values_are_told_only_of_the_version_that_the_change_names() {
        let mut previous = Previous::default();
        let mut pass = |record: Record| previous.pass_cleaned(&record, Some);
        assert_eq!(pass(update(1, 0, r#"{"n":1}"#)), None);
        assert_eq!(pass(update(2, 1, r#"{"n":2}"#)).unwrap(), b"[[1]]");
        assert_eq!(pass(update(4, 3, r#"{"n":4}"#)), None, "version 3 was not seen");
    }

    #[test]
    fn memory_is_bounded_however_many_objects_and_changes_there_are() {
        let mut previous = Previous::default();
        let large = format!(r#"{{"n":"{}"}}"#, "x".repeat(100_000));
        for seq in 0..2_000 {
            let mut record = update(seq, 0, if seq % 2 == 0 { &large } else { "{}" });
            let Body::Change(change) = &mut record.body else { unreachable!() };
            change.name = format!("web-{}", seq % 700);
            previous.pass_cleaned(&record, Some);
            let held: usize = previous.states.values().map(|state| state.object.len()).sum();
            assert!(held <= BUDGET_BYTES && previous.order.len() * FLAT_BYTES <= BUDGET_BYTES);
        }
        assert!(previous.states.len() > 100, "it remembers as much as it may");
    }
}
