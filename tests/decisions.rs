//! What delivery does about each thing that a sink may say, and how it keeps a cursor that the receiver commits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod judged;

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use judged::{
    Fate, Judge, Kept, PATIENCE, Terms, append, committing, cursor, letters, noting, open, seqs, start,
    until_acknowledged,
};
use kubetide::{config::Oversize, delivery::Order};
use kubetide_sink::{Body, Decision, Record, SinkError, What};
use proptest::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_record_is_found_by_halving_and_is_a_dead_letter_before_the_cursor_passes_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=50).await;
    let taken = Arc::<Mutex<Vec<Record>>>::default();
    let at = directory.path().to_path_buf();
    let judge = noting(&taken, move |batch| {
        let bad = |record: &Record| [13, 31].contains(&record.seq);
        // Whatever is behind a poisoned record comes after its dead letter.
        let passed = batch.records.first().map_or(0, |record| record.seq);
        assert_eq!(letters(&at).len(), [13, 31].iter().filter(|bad| **bad < passed).count());
        match batch.records.iter().any(bad) {
            true if batch.records.len() > 1 => Err(SinkError::new(Decision::Split, "400 Bad Request")),
            true => Err(SinkError::new(Decision::Poison, "400 Bad Request")),
            false => Ok(()),
        }
    });
    let delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    until_acknowledged(directory.path(), &log, 50).await;
    delivery.drained().await;
    let good: Vec<u64> = (1..=50).filter(|seq| ![13, 31].contains(seq)).collect();
    assert_eq!(seqs(&taken.lock().unwrap()), good);
    let letters = letters(directory.path());
    assert_eq!(
        letters.iter().map(|letter| letter["record"]["log"]["seq"].as_u64().unwrap()).collect::<Vec<_>>(),
        [13, 31]
    );
    assert!(
        letters.iter().all(|letter| letter["reason"] == "400 Bad Request" && letter["record"]["object"].is_object())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_poisoned_records_in_a_row_are_the_endpoint_and_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=50).await;
    let taken = Arc::<Mutex<Vec<Record>>>::default();
    let broken = Arc::new(Mutex::new(true));
    let is_broken = broken.clone();
    let judge = noting(&taken, move |batch| match *is_broken.lock().unwrap() {
        true if batch.records.len() > 1 => Err(SinkError::new(Decision::Split, "400")),
        true => Err(SinkError::new(Decision::Poison, "400")),
        false => Ok(()),
    });
    let mut delivery = start(&log, directory.path(), Terms { judge, ..Terms::default() });
    delivery.asked(60).await;
    assert_eq!(letters(directory.path()).len(), 9);
    *broken.lock().unwrap() = false;
    until_acknowledged(directory.path(), &log, 50).await;
    delivery.drained().await;
    assert_eq!(seqs(&taken.lock().unwrap()), (10..=50).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_too_large_is_truncated_set_aside_or_holds_as_it_is_configured() {
    for oversize in [Oversize::Truncate, Oversize::DeadLetter, Oversize::Fail] {
        let directory = tempfile::tempdir().unwrap();
        let log = open(directory.path());
        append(&log, 1..=10).await;
        let taken = Arc::<Mutex<Vec<Record>>>::default();
        let judge = noting(&taken, |batch| {
            let large = |record: &Record| match &record.body {
                Body::Change(change) => record.seq == 4 && change.object.is_some(),
                Body::Control(_) => false,
            };
            let at = batch.records.iter().position(large);
            at.map_or(Ok(()), |at| Err(SinkError::new(Decision::Oversize, "too large").behind(at)))
        });
        let mut delivery = start(&log, directory.path(), Terms { judge, oversize, ..Terms::default() });
        if oversize == Oversize::Fail {
            delivery.asked(5).await;
            delivery.killed().await;
            assert_eq!((seqs(&taken.lock().unwrap()), cursor(directory.path(), &log).acknowledged), (vec![1, 2, 3], 0));
            assert_eq!(letters(directory.path()).len(), 0);
            continue;
        }
        until_acknowledged(directory.path(), &log, 10).await;
        delivery.drained().await;
        let truncated: Vec<u64> = taken
            .lock()
            .unwrap()
            .iter()
            .filter(|record| matches!(&record.body, Body::Change(change) if change.truncated.is_some()))
            .map(|record| record.seq)
            .collect();
        let (whole, cut, aside) = match oversize {
            Oversize::Truncate => ((1..=10).collect::<Vec<_>>(), vec![4], 0),
            _ => ((1..=10).filter(|seq| *seq != 4).collect(), vec![], 1),
        };
        assert_eq!((seqs(&taken.lock().unwrap()), truncated, letters(directory.path()).len()), (whole, cut, aside));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_its_id_again_after_failures_and_after_a_kill_and_a_filter_leaves_out_changes_only() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=20).await;
    let ids = Arc::<Mutex<Vec<(kubetide_sink::Id, Vec<u64>)>>>::default();
    for _ in 0..2 {
        let noted = ids.clone();
        let judge: Judge = Box::new(move |batch, _| {
            let mut noted = noted.lock().unwrap();
            noted.push((batch.id, seqs(&batch.records)));
            Err(if noted.len().is_multiple_of(3) { SinkError::retry("hang") } else { SinkError::retry("away") })
        });
        let filter = Some("name != 'pod-3'");
        let mut delivery = start(&log, directory.path(), Terms { judge, filter, ..Terms::default() });
        delivery.asked(3).await;
        delivery.killed().await;
    }
    let ids = ids.lock().unwrap();
    assert_eq!(ids.len(), 6);
    assert!(ids.iter().all(|noted| *noted == ids[0]), "{ids:?}");
    assert_eq!(ids[0].1, (1..=20).filter(|seq| seq % 7 != 3).collect::<Vec<_>>());
}

fn losses(records: &[Record]) -> Vec<(String, u64)> {
    let loss = |record: &Record| match &record.body {
        Body::Control(control) => match &control.what {
            What::Gap { reason, from } => Some((reason.as_str().to_owned(), from.seq)),
            _ => None,
        },
        Body::Change(_) => None,
    };
    records.iter().filter_map(loss).collect()
}

#[test]
fn what_is_committed_with_its_cursor_is_there_once_whenever_the_process_dies() {
    let fates = prop_oneof![
        4 => Just(Fate::Take), 1 => Just(Fate::Refuse), 1 => Just(Fate::DieBefore), 1 => Just(Fate::DieBehind)
    ];
    let lives = prop::collection::vec(prop::collection::vec(fates, 1..8), 1..8);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runner
        .run(&(lives, 1usize..9), |(lives, max_records)| {
            runtime.block_on(async {
                let directory = tempfile::tempdir().unwrap();
                let log = open(directory.path());
                let kept = Arc::<Mutex<Kept>>::default();
                let mut last = 0;
                for life in lives {
                    append(&log, last + 1..=last + 10).await;
                    last += 10;
                    let deaths = life.iter().position(|fate| matches!(fate, Fate::DieBefore | Fate::DieBehind));
                    let judge = committing(&kept, move |turn| life.get(turn - 1).copied().unwrap_or(Fate::Take));
                    let mut delivery = start(
                        &log,
                        directory.path(),
                        Terms { judge, kept: Some(kept.clone()), max_records, ..Terms::default() },
                    );
                    let reached = match deaths {
                        // The restore is the first thing that is asked.
                        Some(at) => tokio::time::timeout(Duration::from_millis(300), delivery.asked(at + 2)).await,
                        None => tokio::time::timeout(Duration::from_millis(20), std::future::pending()).await,
                    };
                    let _ = reached;
                    delivery.killed().await;
                }
                let judge = committing(&kept, |_| Fate::Take);
                let delivery = start(
                    &log,
                    directory.path(),
                    Terms { judge, kept: Some(kept.clone()), max_records, ..Terms::default() },
                );
                until_acknowledged(directory.path(), &log, last).await;
                delivery.drained().await;
                assert_eq!(seqs(&kept.lock().unwrap().records), (1..=last).collect::<Vec<_>>());
            });
            Ok(())
        })
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_must_be_split_is_there_once_all_the_same_when_the_process_dies_between_its_parts() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=40).await;
    let kept = Arc::<Mutex<Kept>>::default();
    for fate in [Fate::DieBehind, Fate::DieBefore, Fate::Take] {
        let mut takes = committing(&kept, move |turn| if turn == 2 { fate } else { Fate::Take });
        let judge: Judge =
            Box::new(move |batch, cursor| match batch.records.iter().position(|record| record.seq == 23) {
                Some(0) => Err(SinkError::new(Decision::Poison, "never this one")),
                _ if batch.records.len() > 8 => Err(SinkError::new(Decision::Split, "too many")),
                Some(_) => Err(SinkError::new(Decision::Split, "one of these")),
                None => takes(batch, cursor),
            });
        let delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
        let since = std::time::Instant::now();
        loop {
            let is_over = match fate {
                Fate::Take => cursor(directory.path(), &log).acknowledged == 40,
                // By then it hangs where it dies.
                _ => since.elapsed() > Duration::from_millis(500),
            };
            if is_over {
                break;
            }
            assert!(since.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        delivery.killed().await;
    }
    let expected: Vec<u64> = (1..=40).filter(|seq| *seq != 23).collect();
    assert_eq!(seqs(&kept.lock().unwrap().records), expected);
    assert_eq!(letters(directory.path()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_does_not_say_how_far_it_is_gets_nothing_until_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=5).await;
    let kept = Arc::new(Mutex::new(Kept { away: true, ..Kept::default() }));
    let judge = committing(&kept, |_| Fate::Take);
    let mut delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    delivery.asked(4).await;
    assert_eq!(kept.lock().unwrap().records.len(), 0);
    kept.lock().unwrap().away = false;
    until_acknowledged(directory.path(), &log, 5).await;
    delivery.drained().await;
    assert_eq!(seqs(&kept.lock().unwrap().records), [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_log_is_told_as_lost_and_given_from_its_beginning() {
    let kept = Arc::<Mutex<Kept>>::default();
    for round in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let log = open(directory.path());
        append(&log, 1..=5).await;
        for _ in 0..2 {
            let judge = committing(&kept, |_| Fate::Take);
            let delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
            until_acknowledged(directory.path(), &log, 5).await;
            delivery.drained().await;
        }
        let kept = kept.lock().unwrap();
        let expected = if round == 0 { vec![] } else { vec![("log_lost".to_owned(), 5)] };
        assert_eq!(losses(&kept.records), expected, "once, however often it is started");
    }
    let kept = kept.lock().unwrap();
    assert_eq!(seqs(&kept.records), [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_restored_from_an_older_copy_is_told_as_rewound_and_given_anew() {
    let (directory, restored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kept = Arc::<Mutex<Kept>>::default();
    for (range, last) in [(1..=5, 5), (6..=9, 9)] {
        let log = open(directory.path());
        append(&log, range).await;
        let judge = committing(&kept, |_| Fate::Take);
        let delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
        until_acknowledged(directory.path(), &log, last).await;
        delivery.drained().await;
        log.close().unwrap();
        if last == 5 {
            copy(directory.path(), restored.path());
        }
    }
    let log = open(restored.path());
    let judge = committing(&kept, |_| Fate::Take);
    let delivery = start(&log, restored.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    let since = std::time::Instant::now();
    while kept.lock().unwrap().records.len() < 15 {
        assert!(since.elapsed() < PATIENCE, "what there is does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    delivery.drained().await;
    let records = &kept.lock().unwrap().records;
    assert_eq!(losses(records), [("log_rewound".to_owned(), 9)]);
    assert_eq!(seqs(records), [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_given_before_the_process_died_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, 1..=9).await;
    let kept = Arc::<Mutex<Kept>>::default();
    let judge = committing(&kept, |_| Fate::Take);
    let delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    until_acknowledged(directory.path(), &log, 9).await;
    delivery.killed().await;
    let judge = committing(&kept, |_| Fate::Refuse);
    let mut delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    delivery.asked(1).await;
    delivery.orders.give(Order::Replay { from: 7 }).await.unwrap();
    delivery.killed().await;
    let judge = committing(&kept, |_| Fate::Take);
    let delivery = start(&log, directory.path(), Terms { judge, kept: Some(kept.clone()), ..Terms::default() });
    let since = std::time::Instant::now();
    while kept.lock().unwrap().records.len() < 13 {
        assert!(since.elapsed() < PATIENCE, "the replay does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    delivery.drained().await;
    let records = &kept.lock().unwrap().records;
    assert_eq!(records[9].op(), "replay");
    assert_eq!(seqs(&records[10..]), [7, 8, 9]);
}
