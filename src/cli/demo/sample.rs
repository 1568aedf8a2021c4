//! Live changes on the screen: more happen than anyone can read, so some are shown and all are counted.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{receiver::Received, screen::Screen};

/// Live changes, of which as many are shown as can be read.
pub(super) struct Sample {
    every: Duration,
    next: Instant,
    /// The op and the stream of the last one: the next one should be another.
    last: (String, String),
    shown: usize,
    /// How many there were.
    pub(super) seen: usize,
    /// The longest time from a record's being observed to its being read here.
    pub(super) slowest: Duration,
}

impl Sample {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, next: Instant::now(), last: Default::default(), shown: 0, seen: 0, slowest: Duration::ZERO }
    }

    pub(super) fn count(&mut self, records: &[Received]) {
        self.seen += records.len();
        let oldest = records.iter().map(|record| record.observed_at).min();
        let took = oldest.and_then(|at| Duration::try_from(Timestamp::now().duration_since(at)).ok());
        self.slowest = self.slowest.max(took.unwrap_or_default());
    }

    pub(super) fn show(&mut self, records: &[Received], screen: &mut Screen) -> anyhow::Result<()> {
        self.count(records);
        if Instant::now() < self.next {
            return Ok(());
        }
        let kind = |record: &Received| (record.op.clone(), record.stream.clone());
        let other = records.iter().find(|record| kind(record) != self.last);
        if let Some(record) = other.or(records.first()) {
            screen.record(record.brief())?;
            self.last = kind(record);
            self.shown += 1;
            self.next = Instant::now() + self.every;
        }
        Ok(())
    }

    /// Those that were not shown.
    pub(super) fn left(&self) -> usize {
        self.seen - self.shown
    }
}
