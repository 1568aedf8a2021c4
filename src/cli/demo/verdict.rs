//! The verdict: what the receiver has, held against what the cluster has and against what was promised.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use super::{
    fold::{Fold, Held, Key},
    screen::Screen,
};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What the verdict is made from.
pub(super) struct Evidence<'a> {
    /// What the receiver has.
    pub(super) receiver: &'a Fold,
    /// What the cluster has.
    pub(super) cluster: BTreeMap<Key, Value>,
    /// Changes that happened, and how many of them never arrived.
    pub(super) made: usize,
    pub(super) owed: usize,
    /// Objects that were there at the start.
    pub(super) at_start: usize,
    /// The streams whose history was broken.
    pub(super) broken: Vec<String>,
    /// Objects that went while nobody saw it.
    pub(super) went_unseen: BTreeSet<Key>,
    /// Changes that waited in the log for the receiver.
    pub(super) waited: usize,
    /// LIST requests after the kill.
    pub(super) lists_after_kill: u64,
    /// The batches that were sent, as places in the log.
    pub(super) batches: BTreeSet<(u64, u64)>,
    /// How the pipeline ended when it was asked to.
    pub(super) exit_code: Option<i32>,
    /// How long the story took.
    pub(super) elapsed: Duration,
    /// What did not happen, and ended the story early.
    pub(super) late: Option<String>,
}

/// The figures, and what is wrong with them.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) objects: usize,
    pub(super) at_start: usize,
    pub(super) made: usize,
    pub(super) waited: usize,
    pub(super) records: u64,
    pub(super) changes: u64,
    pub(super) elapsed: Duration,
    pub(super) batches: usize,
    pub(super) gaps: u64,
    pub(super) streams: usize,
    pub(super) went_unseen: usize,
    pub(super) inferred_deletes: usize,
    pub(super) lists_after_kill: u64,
    pub(super) duplicates: u64,
    pub(super) missing: u64,
    pub(super) differences: usize,
    pub(super) exit_code: Option<i32>,
    /// Every broken promise, in words.
    pub(super) problems: Vec<String>,
}

impl Verdict {
    pub(super) fn of(evidence: &Evidence<'_>) -> Self {
        let Evidence { receiver, cluster, .. } = evidence;
        let absent = cluster.keys().filter(|key| !receiver.objects.contains_key(key)).count();
        let differences = receiver.objects.iter().filter(|(key, held)| !is_same(held, cluster.get(key))).count();
        Self {
            objects: cluster.len(),
            at_start: evidence.at_start,
            made: evidence.made,
            waited: evidence.waited,
            records: receiver.records,
            changes: receiver.changes,
            elapsed: evidence.elapsed,
            batches: evidence.batches.len(),
            gaps: receiver.gaps.values().sum(),
            streams: evidence.broken.len(),
            went_unseen: evidence.went_unseen.len(),
            inferred_deletes: receiver.inferred_deletes.len(),
            lists_after_kill: evidence.lists_after_kill,
            duplicates: receiver.repeated.len() as u64 + receiver.logged_twice,
            // Three views of the same loss: the largest says how much is lost at least.
            missing: (absent as u64).max(evidence.owed as u64).max(receiver.holes),
            differences,
            exit_code: evidence.exit_code,
            problems: problems(evidence, absent, differences),
        }
    }

    /// Whether every promise was kept.
    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Changes per second, over the whole story.
    pub(super) fn per_second(&self) -> f64 {
        self.changes as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// The verdict for people.
    pub(super) fn tell(&self, screen: &mut Screen) -> anyhow::Result<()> {
        screen.verdict(self.is_clean())?;
        let (seconds, per_second) = (self.elapsed.as_secs_f64(), self.per_second());
        let pace = format!("in {seconds:.0} s, {per_second:.0} per second; --rate makes it more");
        screen.figure("changes", self.changes, &pace)?;
        screen.figure("batches", self.batches, "each acknowledged before the checkpoint moved")?;
        screen.figure("gaps", self.gaps, "one per stream, for the history that was lost")?;
        let inferred = format!("of {} that nobody saw", self.went_unseen);
        screen.figure("deletes inferred", self.inferred_deletes, &inferred)?;
        screen.figure("duplicates", self.duplicates, "a kill may repeat one batch at most")?;
        screen.figure("missing", self.missing, "objects, changes, places in the log")?;
        let compared = format!("in {} objects, receiver against cluster", self.objects);
        screen.figure("differences", self.differences, &compared)?;
        screen.space()?;
        for problem in &self.problems {
            screen.outcome(false, problem)?;
        }
        if self.is_clean() {
            screen.remark("On your own cluster: kubetide run --help")?;
        }
        screen.space()
    }

    /// The verdict for machines.
    pub(super) fn report(&self, seed: u64, rate: u32) -> Report<'_> {
        let tenths = |number: f64| (number * 10.0).round() / 10.0;
        Report {
            verdict: if self.is_clean() { "clean" } else { "not clean" },
            problems: &self.problems,
            seed,
            rate,
            elapsed_secs: tenths(self.elapsed.as_secs_f64()),
            streams: self.streams,
            objects_at_start: self.at_start,
            objects: self.objects,
            changes_made: self.made,
            changes: self.changes,
            changes_per_second: tenths(self.per_second()),
            records: self.records,
            batches: self.batches,
            waited_in_log: self.waited,
            gaps: self.gaps,
            deletes_unseen: self.went_unseen,
            deletes_inferred: self.inferred_deletes,
            lists_after_kill: self.lists_after_kill,
            duplicates: self.duplicates,
            missing: self.missing,
            differences: self.differences,
            exit_code: self.exit_code,
        }
    }
}

/// `--output json`
#[derive(Serialize)]
pub(super) struct Report<'a> {
    verdict: &'static str,
    problems: &'a [String],
    seed: u64,
    rate: u32,
    elapsed_secs: f64,
    streams: usize,
    objects_at_start: usize,
    objects: usize,
    changes_made: usize,
    changes: u64,
    changes_per_second: f64,
    records: u64,
    batches: usize,
    waited_in_log: usize,
    gaps: u64,
    deletes_unseen: usize,
    deletes_inferred: usize,
    lists_after_kill: u64,
    duplicates: u64,
    missing: u64,
    differences: usize,
    exit_code: Option<i32>,
}

fn problems(evidence: &Evidence<'_>, absent: usize, differences: usize) -> Vec<String> {
    let Evidence { receiver, owed, lists_after_kill, exit_code, .. } = evidence;
    let mut problems: Vec<String> = evidence.late.iter().cloned().collect();
    let mut check = |fine: bool, problem: String| {
        if !fine {
            problems.push(problem);
        }
    };
    let Fold { holes, out_of_order, logged_twice, repeated, snapshots, .. } = receiver;
    check(receiver.records > 0 && !evidence.cluster.is_empty(), "nothing was captured".into());
    check(
        *snapshots == evidence.at_start as u64,
        format!("{snapshots} of {} objects in the snapshot", evidence.at_start),
    );
    check(absent == 0, format!("{absent} objects of the cluster are not at the receiver"));
    check(*owed == 0, format!("{owed} changes never arrived"));
    check(*holes == 0, format!("{holes} places of the log never arrived"));
    check(differences == 0, format!("{differences} objects at the receiver differ from the cluster's"));
    check(*out_of_order == 0, format!("{out_of_order} records out of order"));
    check(*logged_twice == 0, format!("{logged_twice} states in the log twice"));
    check(
        is_one_batch(repeated, &evidence.batches),
        format!("{} records came again, more than the one batch that a kill may repeat", repeated.len()),
    );
    for stream in &evidence.broken {
        let gaps = receiver.gaps.get(stream).copied().unwrap_or(0);
        check(gaps == 1, format!("{gaps} gaps in {stream}, where 1 was due"));
    }
    for (stream, gaps) in receiver.gaps.iter().filter(|(stream, _)| !evidence.broken.contains(stream)) {
        check(false, format!("{gaps} gaps in {stream}, where none was due"));
    }
    let inferred: BTreeSet<&Key> = receiver.inferred_deletes.iter().collect();
    let as_due =
        inferred.iter().copied().eq(&evidence.went_unseen) && inferred.len() == receiver.inferred_deletes.len();
    check(
        as_due,
        format!("{} deletes inferred, where {} were due", receiver.inferred_deletes.len(), evidence.went_unseen.len()),
    );
    check(*lists_after_kill == 0, format!("{lists_after_kill} LIST requests after the kill, where none was needed"));
    let ended = exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    check(*exit_code == Some(0), format!("asked to stop, the pipeline ended with {ended}"));
    problems
}

/// Whether all of these places lie in one batch, each of them once.
fn is_one_batch(places: &[u64], batches: &BTreeSet<(u64, u64)>) -> bool {
    let distinct: BTreeSet<u64> = places.iter().copied().collect();
    let (Some(first), Some(last)) = (distinct.first(), distinct.last()) else { return true };
    distinct.len() == places.len() && batches.iter().any(|(from, to)| from <= first && last <= to)
}

/// Whether the receiver has what the cluster has.
fn is_same(held: &Held, object: Option<&Value>) -> bool {
    let held = held.object.as_ref().and_then(|held| serde_json::from_str::<Value>(held.get()).ok());
    held.is_some() && held.map(told) == object.cloned().map(told)
}

/// An object less what is cleaned on the way, and less what a write that changes nothing else moves: such a write is not told.
pub(super) fn told(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;
    use crate::cli::demo::receiver::Received;

    const PODS: &str = "core/pods";

    fn object(name: &str, version: u64) -> Value {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
            "spec": {"edits": version}})
    }

    fn record(seq: u64, op: &str, name: &str, version: u64) -> Value {
        json!({"id": format!("{seq:032x}"), "log": {"seq": seq}, "op": op, "origin": "watch", "stream": PODS, "namespace": "shop",
            "name": name, "resource_version": version.to_string(), "previous_resource_version": null,
            "observed_at": "2026-01-01T00:00:00Z", "object": object(name, version)})
    }

    fn gap(seq: u64, stream: &str) -> Value {
        json!({"id": format!("{seq:032x}"), "log": {"seq": seq}, "op": "gap", "stream": stream, "reason": "expired",
            "observed_at": "2026-01-01T00:00:00Z"})
    }

    fn inferred_delete(seq: u64, name: &str) -> Value {
        let mut delete = record(seq, "delete", name, 2);
        delete["origin"] = "list".into();
        delete["previous_resource_version"] = "2".into();
        delete
    }

    /// Three objects; b changes, c goes unseen, the kill repeats one record.
    fn story() -> Vec<Value> {
        vec![
            record(1, "snapshot", "a", 1),
            record(2, "snapshot", "b", 2),
            record(3, "snapshot", "c", 2),
            record(4, "update", "b", 3),
            gap(5, PODS),
            inferred_delete(6, "c"),
            record(7, "create", "d", 4),
            record(7, "create", "d", 4),
        ]
    }

    fn verdict(records: Vec<Value>, change: impl FnOnce(&mut Evidence<'_>)) -> Verdict {
        let mut fold = Fold::default();
        for record in records {
            fold.take(&serde_json::from_value::<Received>(record).unwrap());
        }
        let objects = [("a", 1), ("b", 3), ("d", 4)];
        let mut evidence = Evidence {
            receiver: &fold,
            cluster: objects.map(|(name, version)| (Key::new(PODS, "shop", name), object(name, version))).into(),
            made: 3,
            owed: 0,
            at_start: 3,
            broken: vec![PODS.into()],
            went_unseen: [Key::new(PODS, "shop", "c")].into(),
            waited: 0,
            lists_after_kill: 0,
            batches: [(1, 3), (4, 6), (7, 7)].into(),
            exit_code: Some(0),
            elapsed: Duration::from_secs(2),
            late: None,
        };
        change(&mut evidence);
        Verdict::of(&evidence)
    }

    fn only_problem(verdict: &Verdict) -> &str {
        assert_eq!(verdict.problems.len(), 1, "{:?}", verdict.problems);
        assert!(!verdict.is_clean());
        &verdict.problems[0]
    }

    #[test]
    fn a_receiver_that_has_what_the_cluster_has_is_clean() {
        let verdict = verdict(story(), |_| {});
        assert!(verdict.is_clean(), "{:?}", verdict.problems);
        assert_eq!((verdict.changes, verdict.duplicates, verdict.missing, verdict.differences), (3, 1, 0, 0));
        assert_eq!((verdict.gaps, verdict.inferred_deletes), (1, 1));
    }

    #[test]
    fn cleaned_fields_are_no_difference() {
        let verdict = verdict(story(), |evidence| {
            for object in evidence.cluster.values_mut() {
                object["metadata"]["managedFields"] = json!([{"manager": "m"}]);
            }
        });
        assert!(verdict.is_clean(), "{:?}", verdict.problems);
    }

    #[test]
    fn an_object_that_never_arrived_is_missing() {
        let verdict = verdict(story(), |evidence| {
            evidence.cluster.insert(Key::new(PODS, "shop", "e"), object("e", 9));
        });
        assert_eq!(verdict.missing, 1);
        assert!(only_problem(&verdict).contains("not at the receiver"));
    }

    #[test]
    fn an_object_that_differs_and_one_that_is_gone_are_differences() {
        let differing = verdict(story(), |evidence| {
            evidence.cluster.insert(Key::new(PODS, "shop", "b"), object("b", 8));
        });
        assert_eq!(differing.differences, 1);
        assert!(only_problem(&differing).contains("differ"));
        let extra = verdict(story(), |evidence| {
            evidence.cluster.remove(&Key::new(PODS, "shop", "b"));
        });
        assert_eq!(extra.differences, 1);
        assert!(only_problem(&extra).contains("differ"));
    }

    #[test]
    fn a_gap_is_wrong_where_none_was_due_and_where_one_is_absent() {
        let mut records = story();
        records.push(gap(8, "core/configmaps"));
        assert_eq!(only_problem(&verdict(records, |_| {})), "1 gaps in core/configmaps, where none was due");
        let mut records = story();
        records.push(gap(8, PODS));
        assert_eq!(only_problem(&verdict(records, |_| {})), "2 gaps in core/pods, where 1 was due");
        let absent = verdict(story(), |evidence| evidence.broken.push("core/configmaps".into()));
        assert_eq!(only_problem(&absent), "0 gaps in core/configmaps, where 1 was due");
    }

    #[test]
    fn repetitions_beyond_one_batch_are_wrong() {
        let mut records = story();
        records.push(record(4, "update", "b", 3));
        let verdict = verdict(records, |_| {});
        assert_eq!(verdict.duplicates, 2);
        assert!(only_problem(&verdict).starts_with("2 records came again"));
    }

    #[test]
    fn a_hole_in_the_log_and_a_change_that_never_arrived_are_missing() {
        let mut records = story();
        records.remove(3);
        let hole = verdict(records, |_| {});
        assert_eq!((hole.missing, hole.differences), (1, 1));
        let owed = verdict(story(), |evidence| evidence.owed = 2);
        assert_eq!(owed.missing, 2);
        assert!(only_problem(&owed).contains("never arrived"));
    }

    #[test]
    fn records_out_of_order_and_states_logged_twice_are_wrong() {
        let mut records = story();
        records.swap(0, 1);
        assert!(verdict(records, |_| {}).problems.iter().any(|problem| problem.contains("out of order")));
        let mut records = story();
        let mut again = record(8, "update", "b", 3);
        again["id"] = records[3]["id"].clone();
        records.push(again);
        assert!(only_problem(&verdict(records, |_| {})).contains("in the log twice"));
    }

    #[test]
    fn a_delete_that_was_not_inferred_a_list_after_the_kill_and_a_bad_exit_are_wrong() {
        let unseen = verdict(story(), |evidence| {
            evidence.went_unseen.insert(Key::new(PODS, "shop", "z"));
        });
        assert!(only_problem(&unseen).contains("1 deletes inferred, where 2 were due"));
        assert!(only_problem(&verdict(story(), |evidence| evidence.lists_after_kill = 5)).contains("5 LIST"));
        assert!(only_problem(&verdict(story(), |evidence| evidence.exit_code = Some(1))).contains("exit code 1"));
    }

    #[test]
    fn a_story_that_did_not_come_to_its_end_is_not_clean() {
        let late = verdict(story(), |evidence| evidence.late = Some("the snapshot did not happen".into()));
        assert_eq!(only_problem(&late), "the snapshot did not happen");
    }

    #[test]
    fn an_empty_run_is_not_clean() {
        let nothing = verdict(Vec::new(), |evidence| {
            evidence.cluster.clear();
            evidence.broken.clear();
            evidence.went_unseen.clear();
            evidence.at_start = 0;
        });
        assert_eq!(only_problem(&nothing), "nothing was captured");
    }
}
