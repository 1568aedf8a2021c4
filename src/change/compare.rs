//! Holds an observation against what is known and says what happened.
//!
//! The op comes from this comparison alone, never from a watch event's type: that is why a resume, a repeated event
//! and a relist all give the same records.

use kubetide_sink::{Change, Id, Op, Origin, Stream};

use super::{
    Ignored, ObjectKey, Observed, Row,
    diff::{self, Diff},
    id::{self, Of},
};

/// How an object came into view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// A watch event.
    Watch,
    /// The first LIST of the stream, with the snapshot's id.
    Snapshot(Id),
    /// A LIST to be compared with what is known.
    Resync(By),
    /// The LIST of a stream that is followed again: by content, and what is as it was is told as well, unless it was since the seq.
    Return {
        /// The seq from which on it counts.
        since: u64,
        /// The id that such records carry.
        id: Id,
    },
}

/// What tells in a LIST that an object has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Another version: versions still mean what they meant.
    Version,
    /// Other bytes: a version may stand for something else than what was logged under it.
    Content,
}

impl View {
    const fn origin(self) -> Origin {
        match self {
            Self::Watch => Origin::Watch,
            Self::Snapshot(_) | Self::Resync(_) | Self::Return { .. } => Origin::List,
        }
    }
}

/// How much a change tells beyond the object itself.
#[derive(Clone, Debug)]
pub struct Detail {
    /// The difference as a patch.
    pub patch: bool,
    /// The object as it was before.
    pub before: bool,
    /// Which differences do not count.
    pub ignored: Ignored,
}

impl Default for Detail {
    fn default() -> Self {
        Self { patch: true, before: false, ignored: Ignored::default() }
    }
}

/// What an observation means.
#[derive(Debug)]
pub enum Meaning {
    /// Nothing that was not known.
    Nothing,
    /// A new version that differs in nothing of interest: only the version that was seen moves.
    Seen,
    /// A change, or (another uid under the name) two.
    Changes(Vec<Draft>),
}

/// A change that is not in the log yet: all but its place there.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The record's id.
    pub id: Id,
    /// The change.
    pub change: Change,
}

/// How the content of an observation differs from what is known.
enum Content {
    /// In nothing that counts.
    Same,
    /// In this.
    Differs(Diff),
    /// That cannot be told: there is no object on one side.
    Unknown,
}

impl Row {
    /// Whether the object is what is known, in everything that counts.
    pub fn is(&self, observed: &Observed, ignored: &Ignored) -> bool {
        self.seen == observed.version && self.looks_like(observed, ignored)
    }

    /// The same, whatever its version.
    fn looks_like(&self, observed: &Observed, ignored: &Ignored) -> bool {
        let same_content = || match (&self.object, &observed.object) {
            (None, Err(_)) => true,
            _ => matches!(self.content(observed, ignored), Content::Same),
        };
        self.uid == observed.uid && same_content()
    }

    /// Whether the last record has this very state, to the byte.
    fn is_logged_as(&self, observed: &Observed) -> bool {
        self.logged == observed.version && self.object.as_ref() == observed.object.as_ref().ok()
    }

    /// What is said where there is no object.
    pub fn problem(&self) -> Option<String> {
        self.object.is_none().then(|| "the object could not be read when it was observed".to_owned())
    }

    fn content(&self, observed: &Observed, ignored: &Ignored) -> Content {
        match (&self.object, &observed.object) {
            (Some(before), Ok(now)) if before == now => Content::Same,
            (Some(before), Ok(now)) => match diff::of(before, now, ignored) {
                Some(diff) if diff.counts => Content::Differs(diff),
                Some(_) => Content::Same,
                None => Content::Unknown,
            },
            _ => Content::Unknown,
        }
    }
}

/// Whether a LIST shows the object in an older version than the one that was logged: the API server's store was restored from an
/// older copy. A LIST is consistent with everything written before it, so that nothing else explains it.
pub fn is_rewritten(row: &Row, observed: &Observed) -> bool {
    row.uid == observed.uid && row.seen != observed.version && observed.version.is_covered_by(&row.seen)
}

/// What an observation of a living object means.
pub fn present(
    stream: &Stream,
    lineage: u64,
    row: Option<&Row>,
    observed: Observed,
    view: View,
    detail: &Detail,
) -> Meaning {
    let mut drafts = Vec::new();
    let mut previous = None;
    let mut diff = None;
    let mut told = None;
    let op = match (row, view) {
        (Some(row), View::Watch) if observed.version.is_covered_by(&row.seen) => return Meaning::Nothing,
        (Some(row), View::Return { since, .. }) if row.seq < since && row.looks_like(&observed, &detail.ignored) => {
            told = row.is_logged_as(&observed).then_some(row.id);
            Op::Snapshot
        }
        (Some(row), View::Resync(By::Content) | View::Return { .. }) if row.is(&observed, &detail.ignored) => {
            return Meaning::Nothing;
        }
        (Some(row), View::Snapshot(_) | View::Resync(By::Version))
            if row.uid == observed.uid && observed.version.is_covered_by(&row.seen) =>
        {
            return Meaning::Nothing;
        }
        (Some(row), _) if row.uid == observed.uid => {
            match row.content(&observed, &detail.ignored) {
                Content::Same => return Meaning::Seen,
                Content::Differs(found) => diff = Some(found),
                Content::Unknown => {}
            }
            previous = Some(row);
            Op::Update
        }
        (Some(row), _) => {
            drafts.push(gone(stream, lineage, row, observed.key.clone(), None, view.origin()));
            Op::Create
        }
        (None, View::Snapshot(_)) => Op::Snapshot,
        (None, View::Watch | View::Resync(_) | View::Return { .. }) => Op::Create,
    };
    let actor = match op {
        Op::Create | Op::Update => observed.writers.actor(&observed.managed, previous.map(|row| &row.managed)),
        Op::Snapshot | Op::Delete => None,
    };
    let (difference, patch) = diff.map_or((None, None), |diff| (Some(diff.difference), diff.patch));
    let snapshot = match (op, view) {
        (Op::Snapshot, View::Snapshot(id) | View::Return { id, .. }) => Some(id),
        _ => None,
    };
    let (object, problem) = match observed.object {
        Ok(object) => (Some(object), None),
        Err(problem) => (None, Some(problem)),
    };
    drafts.push(Draft {
        // The same state has the same id, though the lineage may be another by now.
        id: told.unwrap_or_else(|| id::of_change(stream, &observed.uid, &observed.version, Of::State, lineage)),
        change: Change {
            op,
            origin: view.origin(),
            namespace: observed.key.namespace,
            name: observed.key.name,
            uid: observed.uid,
            resource_version: observed.version.to_string(),
            previous_resource_version: previous.map(|row| row.logged.to_string()),
            generation: observed.generation,
            snapshot,
            difference,
            actor,
            patch: patch.filter(|_| detail.patch),
            before: previous.filter(|_| detail.before).and_then(|row| row.object.clone()),
            object,
            problem,
            truncated: None,
        },
    });
    Meaning::Changes(drafts)
}

/// What a DELETED event means: nothing for an object that is not known, or is known in a newer state.
pub fn deleted(stream: &Stream, lineage: u64, row: Option<&Row>, observed: &Observed) -> Option<Draft> {
    let row = row?;
    if row.uid != observed.uid || (observed.version != row.seen && observed.version.is_covered_by(&row.seen)) {
        return None;
    }
    Some(gone(stream, lineage, row, observed.key.clone(), Some(observed.version.to_string()), Origin::Watch))
}

/// What it means that a complete LIST does not have an object that is known.
pub fn vanished(stream: &Stream, lineage: u64, row: &Row, key: ObjectKey) -> Draft {
    gone(stream, lineage, row, key, None, Origin::List)
}

/// The end of the object in `row`, with its last known state. `version` is the delete's own, where it was seen.
fn gone(stream: &Stream, lineage: u64, row: &Row, key: ObjectKey, version: Option<String>, origin: Origin) -> Draft {
    Draft {
        id: id::of_change(stream, &row.uid, &row.logged, Of::Delete, lineage),
        change: Change {
            op: Op::Delete,
            origin,
            namespace: key.namespace,
            name: key.name,
            uid: row.uid.clone(),
            resource_version: version.unwrap_or_else(|| row.logged.to_string()),
            previous_resource_version: Some(row.logged.to_string()),
            generation: row.generation,
            snapshot: None,
            difference: None,
            actor: None,
            patch: None,
            before: None,
            object: row.object.clone(),
            problem: row.problem(),
            truncated: None,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use bytes::Bytes;
    use kubetide_sink::sample;

    use super::*;
    use crate::change::{Managed, ResourceVersion, Writers};

    const RESYNC: View = View::Resync(By::Version);

    fn stream() -> Stream {
        sample::stream("pods", "Pod")
    }

    fn object(uid: &str, version: &str) -> Bytes {
        Bytes::from(format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"spec":"{uid}@{version}"}}"#))
    }

    fn observed(uid: &str, version: &str) -> Observed {
        Observed {
            key: ObjectKey { namespace: "n".into(), name: "a".into() },
            uid: uid.into(),
            version: ResourceVersion::new(version),
            generation: None,
            managed: Managed::default(),
            writers: Writers::default(),
            object: Ok(object(uid, version)),
        }
    }

    fn row(uid: &str, version: &str) -> Row {
        Row {
            uid: uid.into(),
            seen: ResourceVersion::new(version),
            logged: ResourceVersion::new(version),
            id: Id([0; 16]),
            seq: 1,
            since: 1,
            observed_at: jiff::Timestamp::UNIX_EPOCH,
            generation: None,
            managed: Managed::default(),
            object: Some(object(uid, version)),
        }
    }

    fn drafts(lineage: u64, row: Option<&Row>, observed: Observed, view: View) -> Vec<Draft> {
        match present(&stream(), lineage, row, observed, view, &Detail::default()) {
            Meaning::Changes(drafts) => drafts,
            Meaning::Nothing | Meaning::Seen => Vec::new(),
        }
    }

    fn ops(row: Option<&Row>, observed: Observed, view: View) -> Vec<(Op, Origin)> {
        drafts(0, row, observed, view).into_iter().map(|draft| (draft.change.op, draft.change.origin)).collect()
    }

    #[test]
    fn the_op_follows_from_what_is_known_not_from_the_event() {
        let snapshot = View::Snapshot(Id([1; 16]));
        let known = row("u", "10");
        assert_eq!(ops(None, observed("u", "10"), View::Watch), [(Op::Create, Origin::Watch)]);
        assert_eq!(ops(None, observed("u", "10"), RESYNC), [(Op::Create, Origin::List)]);
        assert_eq!(ops(None, observed("u", "10"), snapshot), [(Op::Snapshot, Origin::List)]);
        assert_eq!(ops(Some(&known), observed("u", "11"), View::Watch), [(Op::Update, Origin::Watch)]);
        assert_eq!(ops(Some(&known), observed("u", "11"), RESYNC), [(Op::Update, Origin::List)]);
        for same_or_older in ["10", "9"] {
            assert_eq!(ops(Some(&known), observed("u", same_or_older), View::Watch), []);
        }
        assert_eq!(ops(Some(&known), observed("u", "10"), RESYNC), []);
        assert_eq!(ops(Some(&known), observed("u", "10"), snapshot), []);
    }

    #[test]
    fn by_content_the_same_version_with_other_bytes_is_an_update_and_an_older_one_too() {
        let by_content = View::Resync(By::Content);
        let known = row("u", "10");
        assert_eq!(ops(Some(&known), observed("u", "10"), by_content), []);
        assert_eq!(ops(Some(&known), observed("u", "9"), by_content), [(Op::Update, Origin::List)]);
        assert_eq!(ops(Some(&known), observed("u", "9"), RESYNC), []);
        let reused = Observed { object: Ok(Bytes::from_static(b"{}")), ..observed("u", "10") };
        assert_eq!(ops(Some(&known), reused.clone(), by_content), [(Op::Update, Origin::List)]);
        let (before, after) =
            (drafts(0, None, observed("u", "10"), View::Watch), drafts(1, Some(&known), reused, by_content));
        assert_ne!(before[0].id, after[0].id, "other bytes have another id: the lineage was raised");
    }

    #[test]
    fn only_an_older_version_of_the_same_object_means_that_history_was_rewritten() {
        let known = row("u", "10");
        assert!(is_rewritten(&known, &observed("u", "9")));
        for (uid, version) in [("u", "10"), ("u", "11"), ("other", "9"), ("u", "x")] {
            assert!(!is_rewritten(&known, &observed(uid, version)), "{uid} {version}");
        }
    }

    #[test]
    fn another_uid_under_the_same_name_is_a_delete_and_then_a_create() {
        let known = row("old", "10");
        let drafts = drafts(0, Some(&known), observed("new", "12"), RESYNC);
        let [delete, create] = drafts.as_slice() else { panic!("{drafts:?}") };
        assert_eq!((delete.change.op, delete.change.uid.as_str()), (Op::Delete, "old"));
        assert_eq!(delete.change.object.as_deref(), Some(object("old", "10").as_ref()));
        assert_eq!((create.change.op, create.change.uid.as_str()), (Op::Create, "new"));
        assert_eq!(create.change.previous_resource_version, None);
    }

    #[test]
    fn a_seen_and_an_inferred_delete_have_the_same_id_and_the_last_state() {
        let known = row("u", "10");
        let seen = deleted(&stream(), 0, Some(&known), &observed("u", "15")).unwrap();
        let inferred = vanished(&stream(), 0, &known, observed("u", "10").key);
        assert_eq!(seen.id, inferred.id);
        assert_eq!(seen.change.object, inferred.change.object);
        assert_eq!(seen.change.resource_version, "15");
        assert_eq!(inferred.change.resource_version, "10");
        assert_eq!((seen.change.origin, inferred.change.origin), (Origin::Watch, Origin::List));
    }

    #[test]
    fn a_delete_of_something_unknown_or_already_replaced_is_nothing() {
        assert!(deleted(&stream(), 0, None, &observed("u", "15")).is_none());
        assert!(deleted(&stream(), 0, Some(&row("new", "20")), &observed("old", "15")).is_none());
        assert!(deleted(&stream(), 0, Some(&row("u", "20")), &observed("u", "15")).is_none());
    }
}
