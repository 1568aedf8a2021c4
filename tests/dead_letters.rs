//! Dead letters: set aside durably wherever they go, listed the same of a process and of its files, and given again once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;
mod judged;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ended::{Ended, ended};
use instance::Instance;
use judged::{
    Aside, Fate, Judge, Kept, PATIENCE, Terms, append, committing, cursor, delete, letters, listed, noting, open, seqs,
    start, until_acknowledged,
};
use kubetide::{
    changelog::{Changelog, Errand},
    delivery::{DeadLetters, Noted, Order, Taken},
};
use kubetide_simulator::{Cluster, ClusterOptions, Server};
use kubetide_sink::{Batch, Body, Decision, Record, SinkError, What};
use kubetide_test_env::{Answer, Posted, WebhookReceiver};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What a receiver says that never takes these, until it is mended.
fn refusing(
    bad: &'static [u64],
    broken: &Arc<AtomicBool>,
) -> impl FnMut(&Batch) -> Result<(), SinkError> + Send + 'static {
    let broken = broken.clone();
    move |batch| {
        let is_bad = |record: &Record| bad.contains(&record.seq) && matches!(record.op(), "create" | "update");
        match broken.load(Ordering::Relaxed) && batch.records.iter().any(is_bad) {
            true if batch.records.len() > 1 => Err(SinkError::new(Decision::Split, "400 Bad Request")),
            true => Err(SinkError::new(Decision::Poison, "400 Bad Request")),
            false => Ok(()),
        }
    }
}

fn broken() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the sink follows the log again.
async fn until_given(directory: &Path, log: &Changelog) {
    let ordered = directory.join("dead-letter/replaying.ndjson");
    until("all letters are given", || cursor(directory, log).errand.is_none() && !ordered.exists()).await;
}

/// The state of each object as a consumer has it.
fn fold(records: &[Record]) -> BTreeMap<String, u64> {
    let mut state = BTreeMap::new();
    for record in records {
        let Body::Change(change) = &record.body else { continue };
        match record.op() {
            "delete" => drop(state.remove(&change.name)),
            _ => drop(state.insert(change.name.clone(), change.resource_version.parse().unwrap())),
        }
    }
    state
}

fn told(records: &[Record]) -> Vec<(&'static str, u64)> {
    records.iter().map(|record| (record.op(), record.seq)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_come_behind_a_word_in_log_order_and_then_what_has_become_of_their_objects() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    let judge = noting(&taken, refusing(&[3, 5, 20], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 20).await;
    delete(&log, 21, 5).await;
    until_acknowledged(directory.path(), &log, 21).await;
    assert_eq!(letters(directory.path()).len(), 3);

    broken.store(false, Ordering::Relaxed);
    let noted = delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap();
    assert_eq!(noted, Noted::Letters(Taken { letters: 3, left: 0 }));
    until_given(directory.path(), &log).await;
    append(&log, 22..=24).await;
    until_acknowledged(directory.path(), &log, 24).await;
    delivery.drained().await;
    let taken = taken.lock().unwrap();
    let given = &taken[18..];
    // pod-3 is at 17 by now and pod-5 is gone; 20 is the last of pod-6.
    let expected = [
        ("replay", 21),
        ("create", 3),
        ("create", 5),
        ("update", 20),
        ("snapshot", 17),
        ("delete", 21),
        ("update", 22),
        ("update", 23),
        ("update", 24),
    ];
    assert_eq!(told(given), expected);
    let Body::Control(word) = &given[0].body else { panic!() };
    assert!(matches!(&word.what, What::Letters { from, letters: 3 } if from.seq == 2), "{word:?}");
    let Body::Change(deleted) = &given[5].body else { panic!() };
    assert_eq!((deleted.name.as_str(), deleted.uid.as_str()), ("pod-5", "u-5"));
    assert!(deleted.snapshot.is_some(), "it is another message than the delete that was told before");
    let expected =
        [(0, 14), (1, 22), (2, 23), (3, 24), (4, 18), (6, 20)].map(|(of, version)| (format!("pod-{of}"), version));
    assert_eq!(fold(&taken), expected.into());
    assert_eq!(letters(directory.path()).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_delete_every_sink_has_had_is_told_as_gone_once_more() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    listed(&log).await;
    append(&log, 3..=9).await;
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    let judge = noting(&taken, refusing(&[5, 6], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    delete(&log, 10, 5).await;
    until_acknowledged(directory.path(), &log, 10).await;
    log.all_attached();
    // What every sink has had is let go of now and then.
    until("the tombstone is gone", || log.view().has_forgotten_deletes_behind(9).unwrap()).await;
    broken.store(false, Ordering::Relaxed);
    delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap();
    until_given(directory.path(), &log).await;
    delivery.drained().await;
    let taken = taken.lock().unwrap();
    let given = &taken[taken.len() - 4..];
    assert_eq!(told(given), [("replay", 10), ("create", 5), ("create", 6), ("delete", 10)]);
    let Body::Change(gone) = &given[3].body else { panic!() };
    assert_eq!((gone.name.as_str(), gone.uid.as_str(), gone.object.is_none()), ("pod-5", "u-5", true));
    assert_eq!(fold(&taken).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_letters_that_were_asked_for_come_and_one_that_is_refused_again_is_a_letter_again() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    let judge = noting(&taken, refusing(&[3, 5, 20], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 20).await;
    let absent = delivery.orders.give(Order::Letters { seqs: vec![3, 4] }).await.unwrap_err();
    assert_eq!(absent, "sink out has no dead letter of seq 4");
    let before = letters(directory.path());
    delivery.orders.give(Order::Letters { seqs: vec![20, 3] }).await.unwrap();
    until_given(directory.path(), &log).await;
    delivery.drained().await;
    assert_eq!(told(&taken.lock().unwrap()[17..]), [("replay", 20), ("snapshot", 17)]);
    let after = letters(directory.path());
    let seqs: Vec<_> = after.iter().map(|letter| letter["record"]["log"]["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [5, 3, 20]);
    assert_eq!(after[0], before[1]);
    assert!(after[1]["at"].as_str() > before[0]["at"].as_str() && after[1]["record"] == before[0]["record"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_comes_too_early_puts_every_letter_back_and_holds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=30).await;
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    // More than those that hold a sink when the log has them in a row.
    let judge = noting(&taken, refusing(&[2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 32], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 30).await;
    assert_eq!(letters(directory.path()).len(), 12);
    delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap();
    until_given(directory.path(), &log).await;
    append(&log, 31..=33).await;
    until_acknowledged(directory.path(), &log, 33).await;
    delivery.drained().await;
    let of = letters(directory.path());
    let seqs: Vec<_> = of.iter().map(|letter| letter["record"]["log"]["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 32]);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_were_ordered_of_a_stopped_process_come_with_its_next_start_and_others_wait_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    let judge = noting(&taken, refusing(&[3, 5], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 20).await;
    delivery.drained().await;
    let mut files = DeadLetters::new(directory.path().join("dead-letter"), "out");
    files.take_out(&[3]).unwrap();

    // It hangs in the first letter.
    let judge: Judge = Box::new(|_, _| Err(SinkError::retry("hang")));
    let mut delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    delivery.asked(1).await;
    assert!(matches!(cursor(directory.path(), &log).errand, Some(Errand::Letters { given: 0, .. })));
    delivery.killed().await;
    let judge: Judge = Box::new(|_, _| Err(SinkError::retry("away")));
    let mut delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    delivery.asked(2).await;
    for order in [Order::Letters { seqs: vec![5] }, Order::Replay { from: 3 }, Order::Resnapshot] {
        let refused = delivery.orders.give(order).await.unwrap_err();
        assert!(refused.contains("is being given dead letters again"), "{refused}");
    }
    delivery.killed().await;

    broken.store(false, Ordering::Relaxed);
    let judge = noting(&taken, refusing(&[3, 5], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_given(directory.path(), &log).await;
    delivery.drained().await;
    let taken = taken.lock().unwrap();
    assert_eq!(seqs(&taken[18..]), [20, 3, 17]);
    assert_eq!(letters(directory.path()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_refused_while_the_sink_catches_up() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=9).await;
    let away = Arc::new(AtomicBool::new(false));
    let is_away = away.clone();
    let judge: Judge = Box::new(move |_, _| match is_away.load(Ordering::Relaxed) {
        true => Err(SinkError::retry("away")),
        false => Ok(()),
    });
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 9).await;
    away.store(true, Ordering::Relaxed);
    delivery.orders.give(Order::Resnapshot).await.unwrap();
    let refused = delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap_err();
    assert!(refused.contains("is catching up"), "{refused}");
    away.store(false, Ordering::Relaxed);
    until("it has caught up", || cursor(directory.path(), &log).errand.is_none()).await;
    let refused = delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap_err();
    assert_eq!(refused, "sink out has no dead letter");
    delivery.drained().await;
}

/// A receiver that commits, takes at most so many at once, and does not take every fifth record before it is mended.
fn picky(kept: &Arc<Mutex<Kept>>, life: Vec<Fate>, most: usize, broken: &Arc<AtomicBool>) -> Judge {
    let broken = broken.clone();
    let mut takes = committing(kept, move |turn| life.get(turn - 1).copied().unwrap_or(Fate::Take));
    Box::new(move |batch, cursor| {
        let is_bad = |record: &Record| record.seq.is_multiple_of(5) && !matches!(record.op(), "snapshot" | "replay");
        let bad = broken.load(Ordering::Relaxed) && batch.records.iter().any(is_bad);
        match batch.records.len() {
            2.. if bad || batch.records.len() > most => Err(SinkError::new(Decision::Split, "not all of these")),
            1 if bad => Err(SinkError::new(Decision::Poison, "not this one")),
            _ => takes(batch, cursor),
        }
    })
}

#[test]
fn letters_that_are_committed_with_the_cursor_are_there_once_whenever_the_process_dies() {
    let fates = prop_oneof![
        4 => Just(Fate::Take), 1 => Just(Fate::Refuse), 1 => Just(Fate::DieBefore), 1 => Just(Fate::DieBehind)
    ];
    let lives = prop::collection::vec(prop::collection::vec(fates, 1..6), 1..6);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 16, ..ProptestConfig::default() });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runner
        .run(&(lives, 1usize..9, 1usize..5), |(lives, max_records, most)| {
            runtime.block_on(async {
                let directory = tempfile::tempdir().unwrap();
                let log = open(directory.path());
                let (kept, broken) = (Arc::<Mutex<Kept>>::default(), broken());
                let terms = |life: Vec<Fate>, broken: &Arc<AtomicBool>| {
                    let judge = picky(&kept, life, most, broken);
                    Terms { judge, kept: Some(kept.clone()), max_records, ..Terms::default() }
                };
                append(&log, 1..=30).await;
                let delivery = start(&log, directory.path(), terms(Vec::new(), &broken));
                until_acknowledged(directory.path(), &log, 30).await;
                assert_eq!(letters(directory.path()).len(), 6);
                delivery.drained().await;
                broken.store(false, Ordering::Relaxed);
                DeadLetters::new(directory.path().join("dead-letter"), "out").take_out(&[]).unwrap();
                for life in lives {
                    let dies = life.iter().position(|fate| matches!(fate, Fate::DieBefore | Fate::DieBehind));
                    let mut delivery = start(&log, directory.path(), terms(life, &broken));
                    match dies {
                        // The restore is the first thing that is asked; what must be split is asked more often.
                        Some(at) => {
                            drop(tokio::time::timeout(Duration::from_millis(200), delivery.asked(at + 2)).await)
                        }
                        None => {
                            drop(tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await)
                        }
                    }
                    delivery.killed().await;
                }
                let delivery = start(&log, directory.path(), terms(Vec::new(), &broken));
                until_given(directory.path(), &log).await;
                append(&log, 31..=33).await;
                until_acknowledged(directory.path(), &log, 33).await;
                delivery.drained().await;
                let kept = kept.lock().unwrap();
                // States that are told once more may be told twice.
                let once: Vec<_> =
                    kept.records.iter().filter(|record| record.op() != "snapshot").map(|record| record.seq).collect();
                let good = (1..=30).filter(|seq| seq % 5 != 0);
                let expected: Vec<u64> = good.chain([30, 5, 10, 15, 20, 25, 30, 31, 32, 33]).collect();
                assert_eq!(once, expected);
                let state: BTreeMap<String, u64> =
                    (27..=33).map(|version| (format!("pod-{}", version % 7), version)).collect();
                assert_eq!(fold(&kept.records), state);
            });
            Ok(())
        })
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_are_asked_for_while_a_commit_is_in_doubt_wait_until_it_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=9).await;
    let (kept, broken, silent) = (Arc::<Mutex<Kept>>::default(), broken(), Arc::new(AtomicBool::new(false)));
    let (has, says_nothing) = (kept.clone(), silent.clone());
    let mut refuses = refusing(&[5], &broken);
    let mut takes = committing(&kept, |_| Fate::Take);
    let judge: Judge = Box::new(move |batch, cursor| {
        refuses(batch)?;
        // As the sinks do: what is committed already is not committed again.
        if has.lock().unwrap().cursor.as_ref() != cursor {
            takes(batch, cursor)?;
        }
        if says_nothing.load(Ordering::Relaxed) { Err(SinkError::retry("away")) } else { Ok(()) }
    });
    let mut delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    until_acknowledged(directory.path(), &log, 9).await;
    silent.store(true, Ordering::Relaxed);
    broken.store(false, Ordering::Relaxed);
    append(&log, 10..=11).await;
    until("the batch is committed, and nobody knows", || kept.lock().unwrap().records.iter().any(|r| r.seq == 10))
        .await;
    delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap();
    let asked = *delivery.asked.borrow();
    delivery.asked(asked + 2).await;
    silent.store(false, Ordering::Relaxed);
    until_given(directory.path(), &log).await;
    until_acknowledged(directory.path(), &log, 11).await;
    delivery.drained().await;
    // The batch may have been cut after 10. Nothing has become of 5 since.
    let told = told(&kept.lock().unwrap().records);
    let changes: Vec<u64> = told.iter().filter(|(op, _)| *op != "replay").map(|(_, seq)| *seq).collect();
    let mut once: Vec<u64> = (1..=11).collect();
    let (word, five) =
        (told.iter().position(|(op, _)| *op == "replay"), changes.iter().position(|seq| *seq == 5).unwrap());
    assert!(word == Some(five) && five >= 9, "{told:?}");
    once.retain(|seq| *seq != 5);
    once.insert(five, 5);
    assert_eq!(changes, once);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_there_is_no_place_for_a_letter_the_sink_is_held_and_then_it_goes_on_with_nothing_lost() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    // A file stands where the directory should be.
    let path = directory.path().join("dead-letter");
    fs::write(&path, "").unwrap();
    let (taken, broken) = (Arc::<Mutex<Vec<Record>>>::default(), broken());
    let judge = noting(&taken, refusing(&[3, 5], &broken));
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until("what is before it is taken", || seqs(&taken.lock().unwrap()) == [1, 2]).await;
    // An order is still answered, and the record is not passed.
    let absent = delivery.orders.give(Order::Letters { seqs: vec![1] }).await.unwrap_err();
    assert!(absent.contains("cannot move dead letters"), "{absent}");
    assert_eq!((cursor(directory.path(), &log).acknowledged, delivery.task.is_finished()), (0, false));
    fs::remove_file(&path).unwrap();
    until_acknowledged(directory.path(), &log, 20).await;
    delivery.drained().await;
    assert_eq!(seqs(&taken.lock().unwrap()), (1..=20).filter(|seq| ![3, 5].contains(seq)).collect::<Vec<_>>());
    assert_eq!(letters(directory.path()).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_at_the_receiver_is_tried_again_truncated_if_need_be_and_durable_before_the_cursor_passes() {
    for exactly_once in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let log = open(directory.path());
        append(&log, 1..=20).await;
        let (kept, aside, broken) = (Arc::<Mutex<Kept>>::default(), Arc::<Mutex<Aside>>::default(), broken());
        let of = |decision| SinkError::new(decision, "not now");
        aside.lock().unwrap().refuses =
            [of(Decision::Retry { after: None }), of(Decision::Hold), of(Decision::Poison), of(Decision::Oversize)]
                .into();
        let mut refuses = refusing(&[3, 20], &broken);
        let at = aside.clone();
        let mut takes = committing(&kept, |_| Fate::Take);
        let judge: Judge = Box::new(move |batch, cursor| {
            let passed = batch.records.first().map_or(u64::MAX, |record| record.seq);
            assert_eq!(at.lock().unwrap().letters.len(), [3, 20].iter().filter(|seq| **seq < passed).count());
            refuses(batch)?;
            match cursor {
                Some(_) => takes(batch, cursor),
                None => Ok(()),
            }
        });
        let kept_by = exactly_once.then(|| kept.clone());
        let terms = Terms { judge, kept: kept_by, aside: Some(aside.clone()), ..Terms::default() };
        let delivery = start(&log, directory.path(), terms);
        until_acknowledged(directory.path(), &log, 20).await;
        let refused = delivery.orders.give(Order::Letters { seqs: Vec::new() }).await.unwrap_err();
        assert!(refused.contains("at its receiver"), "{refused}");
        delivery.drained().await;
        let aside = aside.lock().unwrap();
        let of: Vec<_> = aside.letters.iter().map(|letter| (letter.record.seq, letter.reason.as_str())).collect();
        assert_eq!(of, [(3, "400 Bad Request"), (20, "400 Bad Request")]);
        let is_cut = |record: &Record| matches!(&record.body, Body::Change(change) if change.truncated.is_some());
        assert!(is_cut(&aside.letters[0].record) && !is_cut(&aside.letters[1].record));
        if exactly_once {
            let expected: Vec<u64> = (1..20).filter(|seq| *seq != 3).collect();
            assert_eq!(seqs(&kept.lock().unwrap().records), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_a_letter_is_set_aside_with_the_cursor_repeats_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    let (kept, aside) = (Arc::<Mutex<Kept>>::default(), Arc::<Mutex<Aside>>::default());
    for life in 0..3 {
        let is_last = life == 2;
        let dies = ["hang", "hang behind"].get(life).map(|word| SinkError::retry(*word));
        aside.lock().unwrap().refuses = dies.into_iter().collect();
        let mut refuses = refusing(&[3, 9], &broken());
        let mut takes = committing(&kept, |_| Fate::Take);
        let judge: Judge = Box::new(move |batch, cursor| refuses(batch).and_then(|()| takes(batch, cursor)));
        let terms = Terms { judge, kept: Some(kept.clone()), aside: Some(aside.clone()), ..Terms::default() };
        let delivery = start(&log, directory.path(), terms);
        match is_last {
            true => {
                until_acknowledged(directory.path(), &log, 20).await;
                delivery.drained().await;
            }
            false => {
                let of = life;
                until("it hangs", || {
                    aside.lock().unwrap().refuses.is_empty() && aside.lock().unwrap().letters.len() == of
                })
                .await;
                delivery.killed().await;
            }
        }
    }
    assert_eq!(seqs(&kept.lock().unwrap().records), (1..=20).filter(|seq| ![3, 9].contains(seq)).collect::<Vec<_>>());
    let of: Vec<u64> = aside.lock().unwrap().letters.iter().map(|letter| letter.record.seq).collect();
    assert_eq!(of, [3, 9]);
}

/// A cluster with config maps, a kubetide that pushes them to a file and to a receiver, which refuses some of them.
struct Case {
    server: Server,
    receiver: WebhookReceiver,
    kubetide: Instance,
    _kubeconfig: tempfile::TempDir,
}

/// Refuses what holds one of these objects.
fn refuse(receiver: &WebhookReceiver, names: &'static [&'static str]) {
    receiver.answer_by(move |posted: &Posted| {
        let is_bad = |value: &Value| names.iter().any(|name| value["name"] == *name);
        Answer::status(if posted.values().iter().any(is_bad) { 422 } else { 204 })
    });
}

impl Case {
    /// With these further keys of the sink.
    async fn new(more: &str) -> Self {
        let server = Server::start(Cluster::new(ClusterOptions::default())).await.unwrap();
        let kubeconfig = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(kubeconfig.path()).unwrap();
        let receiver = WebhookReceiver::start().unwrap();
        let sink = format!(
            "  - {{name: cmdb, type: webhook, url: '{}', batch: {{max_records: 50, max_wait_ms: 20}}, retry: {{initial_ms: 20, max_ms: 200}}{more}}}\n",
            receiver.url()
        );
        let kubetide = Instance::new(&path, &[("configmaps", "default")], &sink);
        for number in 0..10 {
            let object =
                json!({"metadata": {"name": format!("c{number}"), "namespace": "default"}, "data": {"n": "0"}});
            server.cluster().create("configmaps", object).unwrap();
        }
        Self { server, receiver, kubetide, _kubeconfig: kubeconfig }
    }

    fn update(&self, name: &str, value: &str) {
        let change = |map: &mut Value| map["data"]["n"] = value.into();
        self.server.cluster().update("configmaps", "default", name, change).unwrap();
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).arg("--config").arg(self.kubetide.path("kubetide.yaml"));
        command.env_remove("COLUMNS").env("NO_COLOR", "1").env("TZ", "UTC");
        ended(command).await
    }

    async fn said(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:#?}");
        ended.stdout
    }

    fn letters(&self) -> std::path::PathBuf {
        self.kubetide.path("data/dead-letter/cmdb/dead-letters.ndjson")
    }

    /// Waits until the sink has acknowledged everything.
    async fn until_settled(&self) {
        let since = Instant::now();
        loop {
            let sinks = self.said(&["sink", "list", "--output", "json"]).await;
            let sinks: Vec<Value> = sinks.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if sinks.iter().all(|sink| sink["acknowledged"] == sink["head"] && sink["state"] == "following") {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{sinks:?}");
        }
    }

    /// What the receiver has of each object.
    fn folded(&self) -> BTreeMap<String, String> {
        let mut state = BTreeMap::new();
        for record in self.receiver.committed() {
            let Some(name) = record["name"].as_str() else { continue };
            state.insert(name.to_owned(), record["object"]["data"]["n"].as_str().unwrap_or_default().to_owned());
        }
        state
    }
}

const LIST: [&str; 4] = ["sink", "dead-letter", "list", "cmdb"];
const REPLAY: [&str; 4] = ["sink", "dead-letter", "replay", "cmdb"];

#[tokio::test(flavor = "multi_thread")]
async fn the_letters_are_listed_the_same_of_a_process_and_of_its_files_and_what_is_none_is_named() {
    let mut case = Case::new("").await;
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    case.until_settled().await;
    let none = case.run(&LIST).await;
    assert_eq!((none.code, none.stdout.lines().count()), (Some(0), 1), "{none:#?}");
    assert!(none.stdout.starts_with("AT") && none.stderr.contains("sink cmdb has no dead letters"), "{none:#?}");
    refuse(&case.receiver, &["c3"]);
    case.update("c3", "1");
    case.update("c3", "2");
    case.update("c4", "1");
    case.kubetide.records_when("all is delivered to the file", |records| records.len() == 15).await;
    case.until_settled().await;
    let mut file = fs::File::options().append(true).open(case.letters()).unwrap();
    std::io::Write::write_all(&mut file, b"hunter2\n{\"at\":\"20").unwrap();

    let json = [&LIST[..], &["--output", "json"]].concat();
    let commands: [&[&str]; 5] = [
        &LIST,
        &json,
        &["sink", "dead-letter", "list", "cmbd"],
        &["sink", "dead-letter", "list", "out"],
        &["sink", "dead-letter", "replay", "cmdb", "--seq", "1"],
    ];
    let mut live = Vec::new();
    for arguments in commands {
        live.push(case.run(arguments).await);
    }
    assert!(case.kubetide.terminate().success());
    for (arguments, live) in commands.iter().zip(&live) {
        let stopped = case.run(arguments).await;
        let both = format!("{arguments:?}\n--- live\n{live:#?}\n--- stopped\n{stopped:#?}");
        assert_eq!((&stopped.stdout, &stopped.stderr, stopped.code), (&live.stdout, &live.stderr, live.code), "{both}");
    }
    let [table, json, wrong, other, absent] = live.try_into().unwrap();
    println!("{}", table.stdout);
    assert_eq!(table.code, Some(1), "{table:#?}");
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert!(lines.len() == 3 && lines[0].ends_with("REASON"), "{table:#?}");
    assert!(
        lines[1].contains("  13  update  core/configmaps@default  default/c3  ") && lines[1].contains("422"),
        "{table:#?}"
    );
    assert!(table.stderr.contains("dead-letters.ndjson:3: it is not a dead letter"), "{table:#?}");
    assert!(
        table.stderr.contains("dead-letters.ndjson:4: half a line") && !table.stderr.contains("hunter2"),
        "{table:#?}"
    );
    let text = fs::read_to_string(case.letters()).unwrap();
    assert_eq!(json.stdout.lines().collect::<Vec<_>>(), text.lines().take(2).collect::<Vec<_>>());
    wrong.assert_refused(2, &["found cmbd", "did you mean cmdb?"]);
    assert!(other.code == Some(0) && other.stderr.contains("has no dead letters"), "{other:#?}");
    absent.assert_refused(1, &["sink cmdb has no dead letter of seq 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_gives_a_process_or_its_next_start_the_letters_and_the_receiver_ends_with_what_there_is() {
    let mut case = Case::new("").await;
    refuse(&case.receiver, &["c3", "c4"]);
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    case.update("c3", "1");
    case.kubetide.records_when("the update is delivered to the file", |records| records.len() == 13).await;
    case.until_settled().await;
    assert_eq!(case.said(&LIST).await.lines().count(), 1 + 3);
    assert_eq!(case.folded().len(), 8);
    let waiting = case.kubetide.metric("kubetide_sink_dead_letters_size_bytes", &["sink=\"cmdb\""]);
    assert_eq!(waiting, fs::metadata(case.letters()).unwrap().len() as f64);

    // One of a running process.
    case.receiver.answer(Answer::status(204));
    case.update("c4", "1");
    case.kubetide.records_when("the update is delivered to the file", |records| records.len() == 14).await;
    case.until_settled().await;
    let text = fs::read_to_string(case.letters()).unwrap();
    let seq_of = |name: &str| {
        let letters = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut of = letters.filter(|letter| letter["record"]["name"] == name);
        of.next().unwrap()["record"]["log"]["seq"].to_string()
    };
    let (c3, c4) = (seq_of("c3"), seq_of("c4"));
    let said = case.said(&[&REPLAY[..], &["--seq", &c4]].concat()).await;
    assert_eq!(said, "1 dead letter is delivered to sink cmdb again\n");
    case.until_settled().await;
    // Its state then, and that it has moved on since.
    assert_eq!(case.folded()["c4"], "1");
    let committed = case.receiver.committed();
    let of: Vec<(&str, &Value)> =
        committed.iter().rev().take(3).map(|r| (r["op"].as_str().unwrap(), &r["reason"])).collect();
    assert_eq!(of, [("snapshot", &Value::Null), ("snapshot", &Value::Null), ("replay", &json!("dead_letters"))]);
    assert_eq!(case.said(&LIST).await.lines().count(), 1 + 2);

    // The others of a stopped one.
    assert!(case.kubetide.terminate().success());
    let said = case.run(&[&REPLAY[..], &["--output", "json"]].concat()).await;
    assert_eq!(said.stdout, "{\"replaying_letters\":{\"sink\":\"cmdb\",\"letters\":2,\"left\":0}}\n", "{said:#?}");
    let waiting = case.run(&LIST).await;
    assert!(waiting.stderr.contains("2 more are being delivered again"), "{waiting:#?}");
    case.run(&REPLAY).await.assert_refused(1, &["is being given dead letters already"]);
    case.kubetide.start();
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    until("they are given", || !case.kubetide.path("data/dead-letter/cmdb/replaying.ndjson").exists()).await;
    case.until_settled().await;
    assert_eq!((case.folded().len(), case.folded()["c3"].as_str()), (10, "1"));
    let given: Vec<String> =
        case.receiver.committed().iter().filter(|r| r["name"] == "c3").map(|r| r["log"]["seq"].to_string()).collect();
    assert_eq!(given, [c3.as_str(), "13"], "both, in log order, and nothing more: the last is what there is");
    assert_eq!(case.said(&LIST).await.lines().count(), 1);
    assert_eq!(case.kubetide.metric("kubetide_sink_dead_letters_size_bytes", &["sink=\"cmdb\""]), 0.0);
    assert_eq!(case.kubetide.metric("kubetide_sink_dead_letters_total", &["sink=\"cmdb\""]), 0.0, "since its start");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_are_a_topic_or_a_subject_are_told_with_how_to_read_them() {
    let directory = tempfile::tempdir().unwrap();
    for (sink, named) in [
        ("type: kafka, brokers: ['h:1'], dead_letter: {topic: dead}", ["Kafka topic dead", "kafka-console-consumer"]),
        (
            "type: nats, servers: ['nats://h'], dead_letter: {subject: dead.it}",
            ["NATS subject dead.it", "nats stream view"],
        ),
    ] {
        let data = directory.path().join(named[1]);
        drop(kubetide::changelog::Changelog::open(
            &data,
            kubetide::changelog::Setup::of("c-1"),
            kubetide::clock::Clock::system(),
            &kubetide::vitals::Vitals::new(),
        ));
        let log = fs::read_to_string(data.join("FORMAT")).unwrap();
        assert!(!log.is_empty());
        let id = log_id(&data);
        kubetide::changelog::CursorFile::create(&data.join("cursors"), "it", &id, 0).unwrap();
        let config = directory.path().join("c.yaml");
        let text = format!(
            "cluster: {{kubeconfig: /nowhere}}\ndata_dir: {}\nstreams: [{{resource: pods}}]\nsinks: [{{name: it, {sink}}}]\n",
            data.display()
        );
        fs::write(&config, text).unwrap();
        for command in ["list", "replay"] {
            let mut run = Command::new(env!("CARGO_BIN_EXE_kubetide"));
            run.args(["sink", "dead-letter", command, "it", "--config"]).arg(&config);
            ended(run).await.assert_refused(1, &named);
        }
    }
}

fn log_id(data: &Path) -> String {
    let archive = kubetide::changelog::Archive::open(data).unwrap();
    archive.view().log_id().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_of_letters_holds_their_sink_alone_and_when_there_is_room_nothing_was_lost() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path().display().to_string();
    let mut case = Case::new(&format!(", dead_letter: {{path: {path}/cmdb}}")).await;
    refuse(&case.receiver, &["c1", "c3", "c5"]);
    case.kubetide.start_in_shell(&format!(
        "mount -t tmpfs -o size=64k tmpfs {path} && dd if=/dev/zero of={path}/ballast bs=64k count=1 2>/dev/null"
    ));
    case.kubetide.records_when_listed(1).await;
    let is_held =
        |_: u16, text: &str| text.contains("cannot write the dead letters in") && text.contains("No space left");
    case.kubetide.readiness_when("the sink is held", is_held).await;
    // The other one goes on meanwhile.
    case.update("c7", "1");
    case.kubetide.records_when("the update is in the file", |records| records.len() == 13).await;
    assert!(!case.folded().contains_key("c1") && !case.folded().contains_key("c7"));
    let inside = format!("/proc/{}/root{path}", case.kubetide.pid());
    fs::remove_file(format!("{inside}/ballast")).unwrap();
    case.until_settled().await;
    let text = fs::read_to_string(format!("{inside}/cmdb/dead-letters.ndjson")).unwrap();
    let names: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["record"]["name"].clone()).collect();
    assert_eq!(names, ["c1", "c3", "c5"]);
    assert_eq!((case.folded().len(), case.folded()["c7"].as_str()), (7, "1"));
    assert!(case.kubetide.terminate().success());
}
