//! What was handed to the sink, what it said of it, and so what the receiver may have: how often, in which order, with which bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Deserialize;

use super::{Finding, Kept, Promises, Repeats};
use crate::{Body, Record, format};

/// What has become of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not acknowledged yet: it may be there, or not.
    Open,
    Taken,
    /// Set aside.
    Buried,
}

#[derive(Debug)]
struct Entry {
    /// As it was handed over last.
    record: Record,
    /// How often. Each time may have written it.
    tries: usize,
    fate: Fate,
}

#[derive(Debug)]
pub(super) struct Ledger {
    promises: Promises,
    entries: BTreeMap<u64, Entry>,
    /// What the receiver was made to refuse, which is all that may be set aside.
    poison: HashSet<u64>,
    /// What is more than the receiver takes, which is all that may be cut short.
    large: HashSet<u64>,
    /// Whether records of different objects come in their order too. They need not where the receiver refuses some of them.
    in_lanes: bool,
}

/// Where a record is, read from what was kept.
#[derive(Deserialize)]
struct Line {
    log: Place,
}

#[derive(Deserialize)]
struct Place {
    seq: u64,
}

impl Ledger {
    pub(super) fn new(promises: Promises) -> Self {
        let (entries, poison, large) = (BTreeMap::new(), HashSet::new(), HashSet::new());
        Self { promises, entries, poison, large, in_lanes: true }
    }

    /// The receiver will refuse this record.
    pub(super) fn poisoned(&mut self, record: &Record) {
        self.poison.insert(record.seq);
        self.in_lanes = false;
    }

    /// The receiver will not take this record as large as it is.
    pub(super) fn enlarged(&mut self, record: &Record) {
        self.large.insert(record.seq);
        self.in_lanes = false;
    }

    /// These are handed over now.
    pub(super) fn handed(&mut self, records: &[Record]) {
        for record in records {
            let new = || Entry { record: record.clone(), tries: 0, fate: Fate::Open };
            let entry = self.entries.entry(record.seq).or_insert_with(new);
            entry.record.clone_from(record);
            entry.tries += 1;
        }
    }

    /// The sink says that these are durable.
    pub(super) fn acknowledged(&mut self, records: &[Record]) {
        for record in records {
            if let Some(entry) = self.entries.get_mut(&record.seq) {
                entry.fate = Fate::Taken;
            }
        }
    }

    /// The sink says that this one will never be taken.
    pub(super) fn buried(&mut self, record: &Record) -> Result<(), Finding> {
        if !self.poison.contains(&record.seq) {
            return Err(Finding::new(format!("record {} is called poison, and the receiver takes it", record.seq)));
        }
        if let Some(entry) = self.entries.get_mut(&record.seq) {
            entry.fate = Fate::Buried;
        }
        Ok(())
    }

    /// The sink says that this one is larger than the receiver takes.
    pub(super) fn cut_short(&self, record: &Record) -> Result<(), Finding> {
        match self.large.contains(&record.seq) {
            true => Ok(()),
            false => Err(Finding::new(format!("record {} is called too large, and is not", record.seq))),
        }
    }

    /// The receiver says that all up to here is committed, and nothing behind it.
    pub(super) fn committed(&mut self, cursor: u64) {
        for (seq, entry) in &mut self.entries {
            if *seq <= cursor && entry.fate == Fate::Open {
                entry.fate = Fate::Taken;
            }
        }
    }

    /// Holds what the receiver has against all this.
    pub(super) fn judge(&self, kept: &[Kept]) -> Result<(), Finding> {
        let mut seqs = Vec::with_capacity(kept.len());
        for Kept { lane, record } in kept {
            seqs.push((*lane, self.recognise(record)?));
        }
        self.count(&seqs)?;
        self.order(&seqs)
    }

    /// Which record it is. It must be that one to the byte.
    fn recognise(&self, bytes: &[u8]) -> Result<u64, Finding> {
        let Ok(Line { log: Place { seq } }) = serde_json::from_slice(bytes) else {
            return Err(Finding::new(format!("{} bytes that the receiver has are no record", bytes.len())));
        };
        let Some(Entry { record, .. }) = self.entries.get(&seq) else {
            return Err(Finding::new(format!("the receiver has a record {seq} that was never sent")));
        };
        let mut expected = Vec::with_capacity(bytes.len());
        format::native(record, &mut expected);
        match expected.iter().zip(bytes).position(|(expected, found)| expected != found) {
            None if expected.len() == bytes.len() => Ok(seq),
            at => Err(Finding::new(format!(
                "record {seq} is another one there: {} bytes of {}, the same up to {}",
                bytes.len(),
                expected.len(),
                at.unwrap_or(bytes.len().min(expected.len())),
            ))),
        }
    }

    /// Nothing is missing, nothing is there more often than it may.
    fn count(&self, seqs: &[(usize, u64)]) -> Result<(), Finding> {
        let mut copies: HashMap<u64, usize> = HashMap::new();
        for (_, seq) in seqs {
            *copies.entry(*seq).or_default() += 1;
        }
        let of = |seq: &u64| copies.get(seq).copied().unwrap_or_default();
        let missing: Vec<u64> = self
            .entries
            .iter()
            .filter(|(seq, entry)| entry.fate == Fate::Taken && of(seq) == 0)
            .map(|(seq, _)| *seq)
            .collect();
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let count = missing.len();
            return Err(Finding::new(format!("lost: {count} records that were acknowledged, of {first} to {last}")));
        }
        for (seq, entry) in &self.entries {
            let most = match (entry.fate, self.promises) {
                (Fate::Buried, _) => 0,
                (Fate::Open, Promises { exactly_once: true, .. }) => 0,
                (_, Promises { repeats: Repeats::Nothing, .. }) => 1,
                (_, Promises { repeats: Repeats::OneBatch, .. }) => entry.tries,
            };
            if of(seq) > most {
                let (found, fate) = (of(seq), entry.fate);
                return Err(Finding::new(format!("record {seq} ({fate:?}) is there {found} times, allowed: {most}")));
            }
        }
        Ok(())
    }

    /// The states of an object come in their order, and its last one is the last; so do all records of a lane. What comes
    /// again does so behind its first time.
    fn order(&self, seqs: &[(usize, u64)]) -> Result<(), Finding> {
        let mut lanes: HashMap<&str, usize> = HashMap::new();
        let mut orders: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (lane, seq) in seqs {
            let Some(Entry { record: Record { body: Body::Change(change), .. }, .. }) = self.entries.get(seq) else {
                continue;
            };
            if *lanes.entry(&change.name).or_insert(*lane) != *lane {
                return Err(Finding::new(format!("states of {} are in two lanes", change.name)));
            }
            orders.entry(format!("states of {}", change.name)).or_default().push(*seq);
            if self.in_lanes {
                orders.entry(format!("records in lane {lane}")).or_default().push(*seq);
            }
        }
        for (what, seqs) in &orders {
            for (time, seqs) in [("first", firsts(seqs.iter())), ("last", lasts(seqs))] {
                if let Some(pair) = seqs.windows(2).find(|pair| pair[0] > pair[1]) {
                    let [before, behind] = [pair[0], pair[1]];
                    return Err(Finding::new(format!("{what}: {before} is before {behind}, each for the {time} time")));
                }
            }
        }
        Ok(())
    }
}

/// Each for the first time.
fn firsts<'a>(seqs: impl Iterator<Item = &'a u64>) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    seqs.copied().filter(|seq| seen.insert(*seq)).collect()
}

/// Each for the last time.
fn lasts(seqs: &[u64]) -> Vec<u64> {
    let mut lasts = firsts(seqs.iter().rev());
    lasts.reverse();
    lasts
}
