//! Cuts the log into batches: by count, by bytes or by age, whichever comes first. No I/O, no clock of its own.

use std::time::Duration;

use kubetide_sink::Record;
use tokio::time::Instant;

/// Places that a sink does not take are acknowledged after this long: the log must not be kept, nor the sink be called behind, for
/// the sake of what it never wanted.
const PASSING_AT_MOST: Duration = Duration::from_secs(1);

/// When a batch is cut.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Records at most.
    pub max_records: usize,
    /// Bytes at most, unless a single record has more.
    pub max_bytes: usize,
    /// Age of the oldest record at most.
    pub max_wait: Duration,
}

/// Why a batch was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It holds as many records as it may.
    Count,
    /// The next record would make it too large.
    Bytes,
    /// Its oldest record has waited long enough.
    Age,
    /// It is the batch that was under way when the process stopped, exactly as it was.
    Again,
    /// The process is about to stop.
    Stop,
}

impl Cut {
    /// The word in the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Age => "age",
            Self::Again => "again",
            Self::Stop => "stop",
        }
    }
}

/// A part of the log for one sink: a batch, as long as nothing goes wrong with it.
#[derive(Debug)]
pub struct Portion {
    /// The first place in the log that it covers.
    pub from: u64,
    /// The last one.
    pub to: u64,
    /// The records that the sink takes.
    pub records: Vec<Record>,
}

/// A batch in the making.
#[derive(Debug)]
pub struct Batcher {
    limits: Limits,
    /// The first place in the log that the next batch covers.
    from: u64,
    /// The place behind the last one it covers so far.
    next: u64,
    records: Vec<Record>,
    bytes: usize,
    oldest: Option<Instant>,
    /// Since when places have been passed that the sink does not take, without anything to send.
    passing: Option<Instant>,
    /// The batch that was under way ends here, whatever the limits say now.
    again_until: Option<u64>,
}

impl Batcher {
    /// Starts behind `acknowledged`, with the batch that was `in_flight` if there was one.
    pub fn new(limits: Limits, acknowledged: u64, in_flight: Option<(u64, u64)>) -> Self {
        let from = acknowledged + 1;
        let again_until = in_flight.map(|(_, to)| to);
        Self { limits, from, next: from, records: Vec::new(), bytes: 0, oldest: None, passing: None, again_until }
    }

    /// Takes the record that comes next; whether the sink takes it or not, the batch covers it.
    ///
    /// Only after [`Batcher::cut_before`] has nothing against it.
    pub fn push(&mut self, record: Record, takes: bool, now: Instant) {
        self.next = record.seq + 1;
        if takes {
            self.bytes += record.weight();
            self.oldest.get_or_insert(now);
            self.records.push(record);
        } else {
            self.passing.get_or_insert(now);
        }
    }

    /// Why the batch must be cut before this record goes in.
    pub fn cut_before(&self, record: &Record, takes: bool) -> Option<Cut> {
        if let Some(until) = self.again_until {
            return (self.next > until).then_some(Cut::Again);
        }
        if !takes {
            None
        } else if self.records.len() >= self.limits.max_records {
            Some(Cut::Count)
        } else if !self.records.is_empty() && self.bytes + record.weight() > self.limits.max_bytes {
            Some(Cut::Bytes)
        } else {
            None
        }
    }

    /// Why the batch should be cut now, though nothing more has come.
    pub fn due(&self, now: Instant) -> Option<Cut> {
        if let Some(until) = self.again_until {
            return (self.next > until).then_some(Cut::Again);
        }
        if self.records.len() >= self.limits.max_records {
            return Some(Cut::Count);
        }
        (now >= self.deadline()?).then_some(Cut::Age)
    }

    /// When the batch will be due by age.
    pub fn deadline(&self) -> Option<Instant> {
        match self.oldest {
            Some(oldest) => Some(oldest + self.limits.max_wait),
            None => self.passing.map(|since| since + PASSING_AT_MOST),
        }
    }

    /// How many places of the log have been covered without anything to send.
    pub fn skipped(&self) -> u64 {
        if self.records.is_empty() { self.next - self.from } else { 0 }
    }

    /// Whether the batch covers anything, to be sent or not.
    pub fn covers_any(&self) -> bool {
        self.next > self.from
    }

    /// Takes the batch as it is and begins the next one.
    pub fn take(&mut self) -> Portion {
        let batch = Portion { from: self.from, to: self.next - 1, records: std::mem::take(&mut self.records) };
        self.from = self.next;
        self.bytes = 0;
        (self.oldest, self.passing) = (None, None);
        self.again_until = None;
        batch
    }
}

#[cfg(test)]
mod tests {
    use kubetide_sink::sample;
    use proptest::prelude::*;

    use super::*;

    fn record(seq: u64, object_len: usize) -> Record {
        sample::record(seq, vec![b' '; object_len])
    }

    fn limits(max_records: usize, max_bytes: usize) -> Limits {
        Limits { max_records, max_bytes, max_wait: Duration::from_secs(1) }
    }

    #[test]
    fn the_batch_that_was_under_way_comes_again_exactly_whatever_the_limits_are_now() {
        let now = Instant::now();
        let mut batcher = Batcher::new(limits(2, 1), 10, Some((11, 15)));
        for seq in 11..=15 {
            assert_eq!(batcher.due(now), None);
            batcher.push(record(seq, 50), true, now);
        }
        assert_eq!(batcher.cut_before(&record(16, 50), true), Some(Cut::Again));
        assert_eq!(batcher.due(now), Some(Cut::Again));
        let batch = batcher.take();
        assert_eq!((batch.from, batch.to, batch.records.len()), (11, 15, 5));
        batcher.push(record(16, 50), true, now);
        assert_eq!(batcher.cut_before(&record(17, 50), true), Some(Cut::Bytes));
    }

    #[test]
    fn a_lone_record_leaves_when_it_has_waited_long_enough() {
        let now = Instant::now();
        let mut batcher = Batcher::new(limits(10, 1 << 20), 0, None);
        assert_eq!(batcher.deadline(), None);
        batcher.push(record(1, 50), true, now);
        assert_eq!(batcher.due(now), None);
        assert_eq!(batcher.deadline(), Some(now + Duration::from_secs(1)));
        assert_eq!(batcher.due(now + Duration::from_secs(1)), Some(Cut::Age));
    }

    #[test]
    fn records_that_a_sink_does_not_take_are_covered_but_not_sent() {
        let now = Instant::now();
        let mut batcher = Batcher::new(limits(10, 1 << 20), 0, None);
        for seq in 1..=5 {
            batcher.push(record(seq, 50), false, now);
        }
        assert_eq!((batcher.skipped(), batcher.deadline()), (5, Some(now + PASSING_AT_MOST)));
        assert_eq!((batcher.due(now), batcher.due(now + PASSING_AT_MOST)), (None, Some(Cut::Age)));
        batcher.push(record(6, 50), true, now);
        batcher.push(record(7, 50), false, now);
        let batch = batcher.take();
        assert_eq!((batch.from, batch.to, batch.records.len()), (1, 7, 1));
    }

    proptest! {
        /// Against the simplest model: batches joined are the log, none is too large, none is empty.
        #[test]
        fn batches_joined_are_the_log_and_none_breaks_a_limit(
            sizes in prop::collection::vec(0usize..3000, 1..200), max_records in 1usize..20, max_bytes in 1usize..8000,
        ) {
            let now = Instant::now();
            let mut batcher = Batcher::new(limits(max_records, max_bytes), 0, None);
            let mut batches = Vec::new();
            for (index, size) in sizes.iter().enumerate() {
                let next = record(index as u64 + 1, *size);
                if batcher.cut_before(&next, true).is_some() {
                    batches.push(batcher.take());
                }
                batcher.push(next, true, now);
            }
            batches.push(batcher.take());
            let mut expected = 1;
            for batch in &batches {
                prop_assert_eq!(batch.from, expected);
                prop_assert!(!batch.records.is_empty() && batch.records.len() <= max_records);
                let bytes: usize = batch.records.iter().map(Record::weight).sum();
                prop_assert!(bytes <= max_bytes || batch.records.len() == 1);
                for record in &batch.records {
                    prop_assert_eq!(record.seq, expected);
                    expected += 1;
                }
                prop_assert_eq!(batch.to + 1, expected);
            }
            prop_assert_eq!(expected as usize, sizes.len() + 1);
        }
    }
}
