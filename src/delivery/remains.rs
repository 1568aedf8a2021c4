//! What is left of one batch while it is delivered, and what to do about a failure. No I/O, no clock.
//!
//! A batch that is refused as a whole is halved until the record is found that is refused by itself. Records are delivered in
//! their order all the while; one leaves only when it was taken, or when its dead letter is durable.

use kubetide_sink::{Batch, Body, Decision, Id, Record, SinkError, truncated};

use crate::{change::id::Hash, config::Oversize};

/// As many records in a row are refused by themselves: then it is not the records, but the endpoint.
pub(super) const POISON_ROW: u32 = 10;

/// The rest of a batch, in parts.
#[derive(Debug)]
pub(super) struct Remains {
    sink: String,
    from: u64,
    to: u64,
    /// The next part is the last one here. What it says besides its records holds once it is asked for.
    parts: Vec<Batch>,
    /// The first record as it was before it was truncated.
    whole: Option<Record>,
    /// How many records are not left any more.
    passed: usize,
}

/// What is to be done about a failure before the next try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: the next part is another one now.
    Again,
    /// A pause.
    Pause(Option<std::time::Duration>),
    /// A long pause, and somebody to look at it.
    Hold,
    /// The first record is to go to the dead letters.
    Bury,
    /// Nothing can be delivered any more.
    Stop,
}

impl Remains {
    /// All of a batch.
    pub(super) fn of(sink: &str, from: u64, to: u64, records: Vec<Record>) -> Self {
        let parts = if records.is_empty() { Vec::new() } else { vec![part(records)] };
        Self { sink: sink.into(), from, to, parts, whole: None, passed: 0 }
    }

    /// What is to be delivered next; none if nothing is left.
    pub(super) fn next(&mut self) -> Option<&Batch> {
        let is_last = self.is_last();
        let part = self.parts.last_mut()?;
        part.id = batch_id(&self.sink, &part.records);
        part.from = self.from;
        part.to = part.records.last().filter(|_| !is_last).map_or(self.to, |record| record.seq);
        Some(part)
    }

    /// Whether nothing is left behind the next part.
    pub(super) fn is_last(&self) -> bool {
        self.parts.len() <= 1
    }

    /// How many records are not left any more: taken, or among the dead letters.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    /// How many are left.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.records.len()).sum()
    }

    /// The next part was taken.
    pub(super) fn taken(&mut self) {
        self.pass(self.next_len());
        self.parts.pop();
    }

    /// The next part was not taken, or only its beginning.
    pub(super) fn failed(&mut self, error: &SinkError, oversize: Oversize) -> Step {
        // A sink that calls everything durable has nothing left to fail with: the last record comes again.
        self.pass(error.durable.min(self.next_len().saturating_sub(1)));
        match error.decision {
            Decision::Retry { after } => Step::Pause(after),
            Decision::Split => self.split(),
            Decision::Oversize => self.shrink(oversize),
            Decision::Poison => Step::Bury,
            Decision::Hold => Step::Hold,
            Decision::Fatal => Step::Stop,
        }
    }

    fn split(&mut self) -> Step {
        match self.parts.last_mut().map(|part| &mut part.records) {
            Some(records) if records.len() > 1 => {
                let second = records.split_off(records.len() - records.len() / 2);
                let first = std::mem::replace(records, second);
                self.parts.push(part(first));
                Step::Again
            }
            // Nothing smaller is left to try.
            _ => Step::Bury,
        }
    }

    fn shrink(&mut self, oversize: Oversize) -> Step {
        match (oversize, self.parts.last_mut().and_then(|part| part.records.first_mut())) {
            (Oversize::Fail, _) => Step::Hold,
            (Oversize::Truncate, Some(record)) => match truncated(record) {
                Some(small) => {
                    self.whole = Some(std::mem::replace(record, small));
                    Step::Again
                }
                None => Step::Bury,
            },
            (Oversize::DeadLetter, _) | (_, None) => Step::Bury,
        }
    }

    /// The record that is next, as it was before anything was cut from it.
    pub(super) fn first(&self) -> Option<&Record> {
        self.whole.as_ref().or(self.parts.last().and_then(|part| part.records.first()))
    }

    /// The first record is among the dead letters now.
    pub(super) fn buried(&mut self) {
        self.pass(1);
        self.parts.pop_if(|part| part.records.is_empty());
    }

    /// How many records the next part has.
    fn next_len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.records.len())
    }

    /// So many records of the next part are done with.
    fn pass(&mut self, records: usize) {
        let Some(part) = self.parts.last_mut() else { return };
        if records > 0 {
            self.whole = None;
        }
        self.passed += records;
        for record in part.records.drain(..records) {
            // What is given in a catch-up is not in the order of the log.
            self.from = self.from.max(record.seq.saturating_add(1)).min(self.to);
        }
    }
}

/// A part whose turn has not come.
fn part(records: Vec<Record>) -> Batch {
    Batch { id: Id([0; 16]), from: 0, to: 0, records }
}

/// The same for the same records, whenever they come again; another one for any others. The log's id is in that of control
/// records, and states are the same in every log.
fn batch_id(sink: &str, records: &[Record]) -> Id {
    let mut hash = Hash::default();
    hash.add(sink.as_bytes());
    for record in records {
        hash.add(record.log_id.as_bytes());
        hash.add(&record.id.digits());
        if let Body::Change(change) = &record.body {
            // The same state in another snapshot is another message.
            if let Some(snapshot) = change.snapshot {
                hash.add(&snapshot.digits());
            }
            if change.truncated.is_some() {
                hash.add(b"truncated");
            }
        }
    }
    hash.id()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::{collections::HashSet, time::Duration};

    use kubetide_sink::sample;
    use proptest::prelude::*;

    use super::*;

    fn remains(len: u64) -> Remains {
        let records = (1..=len).map(|seq| sample::record(seq, "{\"a\":1}")).collect();
        Remains::of("out", 1, len, records)
    }

    fn seqs(batch: &Batch) -> Vec<u64> {
        batch.records.iter().map(|record| record.seq).collect()
    }

    /// The id that delivery has always made: a change of it would make what is under way another batch at the next start.
    #[test]
    fn the_id_of_a_batch_is_that_of_its_logs_and_records_as_text() {
        let batch = remains(2).next().unwrap().clone();
        let ids = batch.records.iter().map(|record| record.id.to_string());
        let parts: Vec<String> = ids.flat_map(|id| [sample::LOG_ID.to_owned(), id]).collect();
        let parts: Vec<&str> = std::iter::once("out").chain(parts.iter().map(String::as_str)).collect();
        assert_eq!(batch.id, crate::change::id::hash(&parts));
    }

    fn of(decision: Decision) -> SinkError {
        SinkError::new(decision, "no")
    }

    #[test]
    fn what_is_durable_does_not_come_again() {
        let mut left = remains(5);
        let after = Some(Duration::from_secs(3));
        assert_eq!(left.failed(&of(Decision::Retry { after }).behind(2), Oversize::Truncate), Step::Pause(after));
        let batch = left.next().unwrap();
        assert_eq!((batch.from, batch.to, seqs(batch)), (3, 5, vec![3, 4, 5]));
        left.taken();
        assert!(left.next().is_none());
    }

    #[test]
    fn a_batch_has_its_id_again_whenever_it_comes_again_and_its_parts_have_others() {
        let whole = remains(4).next().unwrap().clone();
        assert_eq!(whole.id, remains(4).next().unwrap().id);
        let mut left = remains(4);
        left.failed(&of(Decision::Split), Oversize::Truncate);
        let mut ids = vec![whole.id];
        while let Some(batch) = left.next() {
            ids.push(batch.id);
            left.taken();
        }
        ids.push(Remains::of("other", 1, 4, whole.records.clone()).next().unwrap().id);
        let mut left = remains(1);
        ids.push(left.next().unwrap().id);
        left.failed(&of(Decision::Oversize), Oversize::Truncate);
        ids.push(left.next().unwrap().id);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    }

    #[test]
    fn an_oversize_record_is_truncated_first_and_a_dead_letter_when_that_does_not_help() {
        let mut left = remains(1);
        assert_eq!(left.failed(&of(Decision::Oversize), Oversize::Fail), Step::Hold);
        assert_eq!(left.failed(&of(Decision::Oversize), Oversize::DeadLetter), Step::Bury);
        assert_eq!(left.failed(&of(Decision::Oversize), Oversize::Truncate), Step::Again);
        let Body::Change(change) = &left.next().unwrap().records[0].body else { panic!() };
        assert!(change.truncated.is_some() && change.object.is_none());
        assert_eq!(left.failed(&of(Decision::Oversize), Oversize::Truncate), Step::Bury);
        let Body::Change(change) = &left.first().unwrap().body else { panic!() };
        assert!(change.object.is_some(), "the dead letter is whole");
        left.buried();
        assert!(left.next().is_none());
    }

    proptest! {
        /// A receiver that refuses whatever holds a poisoned record, that fails now and then, and takes at most so many at once.
        #[test]
        fn every_record_is_taken_once_and_in_order_or_buried_and_no_good_one_is_buried(
            len in 1u64..60, poison in prop::collection::hash_set(1u64..60, 0..6), most in 1usize..20,
            durable in prop::collection::vec(0usize..8, 1..40),
        ) {
            let mut left = remains(len);
            let (mut taken, mut buried) = (Vec::new(), Vec::new());
            let mut durable = durable.into_iter().cycle();
            for turn in 0.. {
                let Some(batch) = left.next().cloned() else { break };
                prop_assert!(turn < 10_000, "it does not end");
                prop_assert_eq!(left.is_last(), batch.to == len);
                let first_bad = batch.records.iter().position(|record| poison.contains(&record.seq));
                let step = if turn % 5 == 4 {
                    // Some of it, and then a failure.
                    let some = durable.next().unwrap().min(batch.records.len() - 1).min(first_bad.unwrap_or(usize::MAX));
                    taken.extend(&seqs(&batch)[..some]);
                    left.failed(&SinkError::retry("away").behind(some), Oversize::Truncate)
                } else if batch.records.len() > most || (first_bad.is_some() && batch.records.len() > 1) {
                    left.failed(&of(Decision::Split), Oversize::Truncate)
                } else if first_bad.is_some() {
                    left.failed(&of(Decision::Poison), Oversize::Truncate)
                } else {
                    taken.extend(seqs(&batch));
                    left.taken();
                    Step::Again
                };
                if step == Step::Bury {
                    buried.push(left.first().unwrap().seq);
                    left.buried();
                }
            }
            let expected: Vec<u64> = (1..=len).filter(|seq| !poison.contains(seq)).collect();
            prop_assert_eq!(taken, expected);
            let mut expected: Vec<u64> = poison.iter().copied().filter(|seq| *seq <= len).collect();
            expected.sort_unstable();
            prop_assert_eq!(buried, expected);
        }
    }
}
