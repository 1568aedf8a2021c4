//! Letters are there once, whole and in order, whatever has happened to the files.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use kubetide_sink::{Body, Control, Op, Record, Scope, What, sample};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn all(directory: &Path) -> Vec<Value> {
    let files = dead_letter_files(directory).unwrap();
    let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn seqs(directory: &Path) -> Vec<u64> {
    all(directory).iter().map(|letter| letter["record"]["log"]["seq"].as_u64().unwrap()).collect()
}

fn second(second: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(second).unwrap()).unwrap()
}

/// A refused record.
fn refused(letters: &mut DeadLetters, record: Record, at: Timestamp) {
    let letter = letters.letter(record, "400 Bad \"Request\"", at);
    letters.add(&letter).unwrap();
}

fn tear(directory: &Path) {
    let mut file = fs::OpenOptions::new().append(true).open(directory.join(CURRENT)).unwrap();
    file.write_all(b"{\"at\":\"2026").unwrap();
}

#[test]
fn letters_come_back_in_order_whole_and_once_across_files_torn_lines_and_kills() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead-letter/audit");
    let new = || DeadLetters { file_bytes: 1500, ..DeadLetters::new(path.clone(), "audit") };
    let mut letters = new();
    assert_eq!(all(&path).len(), 0);
    for seq in 1..=9 {
        refused(&mut letters, sample::record(seq, "{\"a\":1}"), second(seq / 4));
        // The cursor did not pass the last two before the process was killed: both come again.
        letters = new();
        for again in [seq.saturating_sub(1).max(1), seq] {
            refused(&mut letters, sample::record(again, "{\"a\":1}"), second(seq / 4));
        }
        if seq == 5 {
            tear(&path);
        }
    }
    assert!(dead_letter_files(&path).unwrap().len() > 2);
    assert_eq!(seqs(&path), (1..=9).collect::<Vec<_>>());
    let all = all(&path);
    assert_eq!((&all[3]["sink"], &all[3]["reason"]), (&"audit".into(), &"400 Bad \"Request\"".into()));
    assert_eq!(all[3]["record"]["object"]["a"], 1);
}

#[test]
fn a_file_that_somebody_has_moved_away_or_written_to_is_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let mut letters = DeadLetters::new(directory.path().into(), "audit");
    let current = directory.path().join(CURRENT);
    refused(&mut letters, sample::record(1, "{}"), second(1));
    tear(directory.path());
    refused(&mut letters, sample::record(2, "{}"), second(2));
    assert_eq!(seqs(directory.path()), [1, 2]);
    fs::remove_file(&current).unwrap();
    refused(&mut letters, sample::record(3, "{}"), second(3));
    assert_eq!(seqs(directory.path()), [3]);
}

#[test]
fn lines_that_are_no_letters_are_told_with_their_numbers_and_the_others_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut letters = DeadLetters::new(directory.path().into(), "audit");
    refused(&mut letters, sample::record(1, "{}"), second(1));
    let current = directory.path().join(CURRENT);
    let mut file = fs::OpenOptions::new().append(true).open(&current).unwrap();
    file.write_all(b"hunter2\n{\"at\":\"hunter2\"}\n").unwrap();
    refused(&mut letters, sample::record(2, "{}"), second(2));
    tear(directory.path());
    let mut lines = Lines::open(&current).unwrap();
    let mut found = Vec::new();
    while let Some(line) = lines.next().unwrap() {
        found.push(match line.found {
            Found::Letter(outline) => (line.number, format!("letter {}", outline.record.log.seq)),
            Found::Torn => (line.number, "torn".into()),
            Found::Foreign(problem) => (line.number, problem),
        });
    }
    assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(found[0].1 == "letter 1" && found[3].1 == "letter 2" && found[4].1 == "torn", "{found:?}");
    assert!(
        found[1..3].iter().all(|(_, what)| what.contains("not a dead letter") && !what.contains("hunter2")),
        "{found:?}"
    );
}

fn control(seq: u64) -> Record {
    let body = Body::Control(Control { what: What::SnapshotStarted, scope: Scope::Stream });
    Record { body, ..sample::record(seq, "") }
}

/// The letters that are ordered, part by part.
fn given(letters: &DeadLetters, most: usize, most_bytes: usize) -> (Vec<u64>, Vec<u64>) {
    let mut replaying = letters.replaying().unwrap().unwrap();
    let (mut seqs, mut looked_at, mut unit) = (Vec::new(), Vec::new(), 1);
    while unit < replaying.units() {
        let is_letter = replaying.is_letter(unit);
        let part = replaying.part(unit, most, most_bytes).unwrap();
        assert!(part.units > 0 && part.records.len() <= most && part.broken.is_empty());
        let bytes: usize = part.records.iter().map(Record::weight).sum();
        assert!(bytes <= most_bytes || part.records.len() == 1);
        if is_letter { &mut seqs } else { &mut looked_at }.extend(part.records.iter().map(|record| record.seq));
        unit += part.units;
    }
    assert_eq!(unit, replaying.units());
    (seqs, looked_at)
}

#[test]
fn chosen_letters_are_taken_out_in_log_order_and_control_records_foreign_lines_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let mut letters = DeadLetters { file_bytes: 1500, ..DeadLetters::new(directory.path().into(), "audit") };
    for seq in [4, 9, 2, 7] {
        refused(&mut letters, sample::record(seq, "{}"), second(seq));
    }
    refused(&mut letters, control(5), second(5));
    let mut file = fs::OpenOptions::new().append(true).open(directory.path().join(CURRENT)).unwrap();
    file.write_all(b"not one of ours\n").unwrap();

    let missing = letters.take_out(&[2, 3]).unwrap_err();
    assert_eq!(missing.to_string(), "sink audit has no dead letter of seq 3");
    assert!(letters.take_out(&[5]).unwrap_err().to_string().contains("control records"));
    assert!(!letters.is_replaying());

    assert_eq!(letters.take_out(&[9, 2]).unwrap(), Taken { letters: 2, left: 0 });
    assert!(matches!(letters.take_out(&[4]), Err(NotTaken::UnderWay { .. })));
    assert_eq!(given(&letters, 10, 1 << 20), (vec![2, 9], vec![2, 9]));
    letters.finish().unwrap();
    assert_eq!(letters.take_out(&[]).unwrap(), Taken { letters: 2, left: 1 });
    assert_eq!(given(&letters, 1, 1 << 20), (vec![4, 7], vec![4, 7]));
    letters.finish().unwrap();
    let files = dead_letter_files(directory.path()).unwrap();
    let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains("snapshot_started") && text.ends_with("not one of ours\n"), "{text}");
    assert!(matches!(letters.take_out(&[]), Err(NotTaken::NotChanges { .. })));
    let mut none = DeadLetters::new(directory.path().join("none"), "audit");
    assert_eq!(none.take_out(&[]).unwrap_err().to_string(), "sink audit has no dead letter");
}

#[test]
fn a_kill_between_the_copy_and_the_old_files_leaves_each_letter_in_one_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut letters = DeadLetters { file_bytes: 1500, ..DeadLetters::new(directory.path().into(), "audit") };
    for seq in 1..=6 {
        refused(&mut letters, sample::record(seq, "{}"), second(seq));
    }
    let before: Vec<_> =
        dead_letter_files(directory.path()).unwrap().into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    letters.take_out(&[1, 2, 5]).unwrap();
    assert_eq!(seqs(directory.path()), [3, 4, 6]);
    // As if it had been killed before any, or all but one, of the old files were written anew.
    for killed_at in 0..before.len() {
        for (bytes, path) in &before[killed_at..] {
            fs::write(path, bytes).unwrap();
        }
        let letters = DeadLetters::new(directory.path().into(), "audit");
        assert!(letters.is_replaying());
        letters.settle().unwrap();
        assert_eq!(seqs(directory.path()), [3, 4, 6], "killed at {killed_at}");
        assert_eq!(given(&letters, 10, 1 << 20).0, [1, 2, 5]);
    }
    // One that is refused again is another letter, even though its record is the same.
    let mut letters = DeadLetters::new(directory.path().into(), "audit");
    refused(&mut letters, sample::record(2, "{}"), second(99));
    letters.settle().unwrap();
    assert_eq!(seqs(directory.path()), [3, 4, 6, 2]);
}

proptest! {
    /// Against a simple model: what is taken out and what stays are together what was there, in order, however it is read.
    #[test]
    fn what_is_given_and_what_stays_is_what_was_refused(
        of in prop::collection::vec((1u64..20, 0usize..3, prop::bool::weighted(0.1)), 1..30),
        chosen in prop::collection::btree_set(1u64..20, 0..8), most in 1usize..6, most_bytes in 1usize..4000,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut letters = DeadLetters { file_bytes: 2500, ..DeadLetters::new(directory.path().into(), "audit") };
        let mut model: Vec<(u64, usize, bool)> = Vec::new();
        for (number, (seq, object, is_control)) in of.into_iter().enumerate() {
            let mut record = if is_control { control(seq) } else { sample::record(seq, "{\"a\":1}") };
            if let Body::Change(change) = &mut record.body {
                change.name = format!("pod-{object}");
                // Each is another state.
                change.resource_version = number.to_string();
                change.op = Op::Update;
            } else {
                record.id.0[15] = u8::try_from(number).unwrap();
            }
            refused(&mut letters, record, second(number as u64));
            model.push((seq, object, is_control));
        }
        let chosen: Vec<u64> = chosen.into_iter().filter(|seq| model.iter().any(|(other, ..)| other == seq)).collect();
        let is_chosen = |(seq, _, is_control): &&(u64, usize, bool)| !is_control && (chosen.is_empty() || chosen.contains(seq));
        let mut expected: Vec<_> = model.iter().filter(is_chosen).collect();
        expected.sort_by_key(|(seq, ..)| *seq);
        let stays: Vec<u64> = model.iter().filter(|letter| !is_chosen(letter)).map(|(seq, ..)| *seq).collect();
        match letters.take_out(&chosen) {
            Ok(taken) => prop_assert_eq!(taken.letters, expected.len() as u64),
            Err(refused) => {
                prop_assert!(expected.is_empty() && matches!(refused, NotTaken::NotChanges { .. }), "{}", refused);
                return Ok(());
            }
        }
        prop_assert_eq!(seqs(directory.path()), stays);
        let (seqs, looked_at) = given(&letters, most, most_bytes);
        prop_assert_eq!(seqs, expected.iter().map(|(seq, ..)| *seq).collect::<Vec<_>>());
        let is_last = |at: &usize| expected[at + 1..].iter().all(|(_, object, _)| *object != expected[*at].1);
        let last: Vec<u64> = (0..expected.len()).filter(is_last).map(|at| expected[at].0).collect();
        prop_assert_eq!(looked_at, last);
    }
}
