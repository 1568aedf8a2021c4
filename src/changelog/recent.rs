//! The records that were logged last, shared by all readers: one that keeps up never goes to the disk.
//!
//! Bounded in bytes. A reader that falls behind it reads the files, one frame at a time.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kubetide_sink::Record;

/// What is kept: a few of the largest groups, or seconds of a busy cluster.
const RECENT_BYTES: usize = 4 * 1024 * 1024;

/// The newest frames' records, in order and without a hole.
#[derive(Default)]
pub(super) struct Recent(Mutex<Frames>);

#[derive(Default)]
struct Frames {
    frames: VecDeque<Arc<[Record]>>,
    bytes: usize,
}

impl Recent {
    /// Adds the records of a durable frame, before readers are told of it.
    pub(super) fn push(&self, records: Vec<Record>) {
        let Some(first) = records.first().map(|record| record.seq) else { return };
        let mut frames = self.lock();
        if frames.frames.back().is_some_and(|newest| next_seq(newest) != first) {
            *frames = Frames::default();
        }
        frames.bytes += weight(&records);
        frames.frames.push_back(records.into());
        while frames.bytes > RECENT_BYTES
            && let Some(oldest) = frames.frames.pop_front()
        {
            frames.bytes -= weight(&oldest);
        }
    }

    /// The records from `next` up to the end of its frame. None if they are not here: they are older, or not logged yet.
    pub(super) fn get(&self, next: u64) -> Option<Vec<Record>> {
        let frame = {
            let frames = self.lock();
            let at = frames.frames.partition_point(|frame| next_seq(frame) <= next);
            frames.frames.get(at).cloned()
        }?;
        let skipped = next.checked_sub(frame.first()?.seq)?;
        Some(frame.get(usize::try_from(skipped).ok()?..)?.to_vec())
    }

    /// Whether [`Recent::get`] has something for `next`.
    pub(super) fn has(&self, next: u64) -> bool {
        let frames = self.lock();
        let (first, last) = (frames.frames.front(), frames.frames.back());
        first.and_then(|frame| frame.first()).is_some_and(|first| first.seq <= next)
            && last.is_some_and(|frame| next < next_seq(frame))
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_seq(frame: &[Record]) -> u64 {
    frame.last().map_or(0, |record| record.seq + 1)
}

fn weight(records: &[Record]) -> usize {
    records.iter().map(Record::weight).sum()
}

#[cfg(test)]
mod tests {
    use kubetide_sink::sample;

    use super::*;

    fn records(seqs: std::ops::RangeInclusive<u64>, bytes: usize) -> Vec<Record> {
        seqs.map(|seq| sample::record(seq, vec![b'x'; bytes])).collect()
    }

    fn seqs(recent: &Recent, next: u64) -> Option<Vec<u64>> {
        Some(recent.get(next)?.iter().map(|record| record.seq).collect())
    }

    #[test]
    fn a_reader_gets_the_rest_of_the_frame_that_it_is_in_and_nothing_that_is_not_there() {
        let recent = Recent::default();
        assert_eq!(seqs(&recent, 1), None);
        recent.push(records(3..=5, 1));
        recent.push(Vec::new());
        recent.push(records(6..=6, 1));
        assert_eq!(seqs(&recent, 2), None, "what is older is in the files");
        assert_eq!(seqs(&recent, 3), Some(vec![3, 4, 5]));
        assert_eq!(seqs(&recent, 5), Some(vec![5]));
        assert_eq!(seqs(&recent, 6), Some(vec![6]));
        assert_eq!(seqs(&recent, 7), None);
        // A hole is never bridged.
        recent.push(records(9..=9, 1));
        assert_eq!((seqs(&recent, 6), seqs(&recent, 8), seqs(&recent, 9)), (None, None, Some(vec![9])));
    }

    #[test]
    fn it_never_holds_more_than_its_bytes_and_drops_the_oldest() {
        let recent = Recent::default();
        for seq in 1..=100 {
            recent.push(records(seq..=seq, 100_000));
            assert!(recent.lock().bytes <= RECENT_BYTES);
        }
        let held = recent.lock().frames.len() as u64;
        assert_eq!(held, (RECENT_BYTES / 100_640) as u64);
        assert_eq!((seqs(&recent, 100 - held), seqs(&recent, 101 - held)), (None, Some(vec![101 - held])));
        recent.push(records(101..=101, RECENT_BYTES));
        assert_eq!(
            (seqs(&recent, 100), seqs(&recent, 101)),
            (None, None),
            "one that is too large is read from its file"
        );
        assert_eq!(recent.lock().bytes, 0);
    }
}
