//! The log against a list of frames, under any order of writes, syncs, reads, retention, kills and crashes, on a disk that
//! loses and tears what was not synced: nothing synced is lost, nothing is invented, the order stays.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    path::Path,
    sync::{Arc, RwLock},
};

use kubetide_sink::{Record, sample};
use proptest::prelude::*;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::watch;

use super::{writer::AppendError, *};
use crate::{
    change::Managed,
    changelog::{
        LogReader, ReadError,
        disk::faulty::{Faults, FaultyDisk},
        frame::Frame,
        recent::Recent,
    },
};

const LOG: &str = "/log";
/// A few frames: segments come and go.
const SMALL_SEGMENT: u64 = 900;

#[derive(Clone, Debug)]
enum Step {
    /// Writes a frame of this many records with objects of this many bytes.
    Write(u8, u16),
    Sync,
    /// The store applies what is synced; it is not durable itself.
    Apply,
    /// The store is made durable, and a sink acknowledges everything.
    Acknowledge,
    /// Up to this many of the oldest segments go, where the store and the sink are past them.
    Retain(u8),
    /// Reads from a place: 0 is the oldest record, 255 the newest.
    Read(u8),
    /// The disk has this much room for the next write, and enough again after it.
    Full(u16),
    ShortWrites(u8),
    FailSync,
    Kill,
    Crash(u64),
    /// Frames without a record, as bookmarks are.
    Quiet(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8, 0..700u16).prop_map(|(records, bytes)| Step::Write(records, bytes)),
        4 => Just(Step::Sync),
        3 => Just(Step::Apply),
        1 => Just(Step::Acknowledge),
        1 => (0..4u8).prop_map(Step::Retain),
        2 => any::<u8>().prop_map(Step::Read),
        1 => (0..900u16).prop_map(Step::Full),
        1 => (1..100u8).prop_map(Step::ShortWrites),
        1 => Just(Step::FailSync),
        1 => Just(Step::Kill),
        1 => (5..40u8).prop_map(Step::Quiet),
        3 => any::<u64>().prop_map(Step::Crash),
    ]
}

/// The log, and what it should hold.
struct Model {
    disk: FaultyDisk,
    writer: Writer,
    segments: Arc<RwLock<Vec<u64>>>,
    recent: Arc<Recent>,
    runtime: tokio::runtime::Runtime,
    /// Every record that is durable, from seq 1 on, whether retention has removed it or not.
    synced: Vec<Record>,
    /// Frames behind them that are written only.
    written: Vec<Vec<Record>>,
    /// Places that the store has applied, of which a crash may take the last ones back down to the durable one.
    applied: Vec<Place>,
    durable: usize,
    acknowledged: u64,
    /// Makes every object unlike any other, so that an old one is never taken for a new one.
    stamp: u64,
}

impl Model {
    fn new() -> Self {
        let disk = FaultyDisk::default();
        let (writer, segments) = recovery(&disk, None, 0).run(|_, _| Ok(())).unwrap();
        Self {
            disk,
            writer,
            segments: Arc::new(RwLock::new(segments)),
            recent: Arc::default(),
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
            synced: Vec::new(),
            written: Vec::new(),
            applied: Vec::new(),
            durable: 0,
            acknowledged: 0,
            stamp: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(records, bytes) => self.write(records, bytes).unwrap(),
            Step::Sync => self.sync(),
            Step::Apply => self.apply(),
            Step::Acknowledge => {
                self.apply();
                self.durable = self.applied.len().saturating_sub(1);
                self.acknowledged = self.synced.len() as u64;
            }
            Step::Retain(most) => self.retain(most),
            Step::Read(at) => self.read(at),
            Step::Full(space) => {
                self.disk.set(Faults { space: Some(space.into()), ..Faults::default() });
                let before = self.writer.place();
                match self.write(2, 300) {
                    Ok(()) => {}
                    Err(AppendError::Full(_)) => {
                        assert_eq!(self.writer.place().next_seq, before.next_seq);
                        self.disk.set(Faults::default());
                        self.write(1, 10).unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
                self.disk.set(Faults::default());
            }
            Step::ShortWrites(most) => {
                self.disk.set(Faults { short_writes: Some(most.into()), ..Faults::default() });
                self.write(1, 200).unwrap();
                self.disk.set(Faults::default());
            }
            Step::FailSync => {
                self.write(1, 100).unwrap();
                self.disk.set(Faults { failing_syncs: true, ..Faults::default() });
                assert!(matches!(self.writer.sync(), Err(AppendError::Broken(_))));
                // The process ends. The machine lives on with pages that it will never write: only a crash shows which.
                self.crash(self.stamp);
            }
            Step::Kill => {
                self.disk.kill();
                self.reopen();
            }
            Step::Crash(seed) => self.crash(seed),
            Step::Quiet(frames) => (0..frames).for_each(|_| self.write(0, 0).unwrap()),
        }
    }

    fn write(&mut self, records: u8, bytes: u16) -> Result<(), AppendError> {
        if self.writer.is_full() {
            let first_seq = self.writer.place().next_seq;
            self.writer.roll(&Frame { first_seq, ..Frame::default() }, Timestamp::UNIX_EPOCH)?;
            self.become_synced();
            self.segments.write().unwrap().push(first_seq);
        }
        let first_seq = self.writer.place().next_seq;
        let mut noise = StdRng::seed_from_u64(self.stamp);
        let records: Vec<Record> = (first_seq..first_seq + u64::from(records))
            .map(|seq| {
                self.stamp += 1;
                // Noise does not compress: frames are as long as they say.
                let noise: Vec<u8> = (0..bytes).map(|_| noise.random()).collect();
                sample::record(seq, [&self.stamp.to_le_bytes()[..], &noise].concat())
            })
            .collect();
        let managed = vec![Managed::default(); records.len()];
        self.writer.write(&Frame { first_seq, records: records.clone(), managed, ..Frame::default() })?;
        self.written.push(records);
        Ok(())
    }

    fn sync(&mut self) {
        self.writer.sync().unwrap();
        self.become_synced();
    }

    fn become_synced(&mut self) {
        for records in std::mem::take(&mut self.written) {
            self.recent.push(records.clone());
            self.synced.extend(records);
        }
    }

    fn apply(&mut self) {
        self.sync();
        self.applied.push(self.writer.place());
    }

    fn retain(&mut self, most: u8) {
        let Some(durable) = self.applied.get(self.durable) else { return };
        for _ in 0..most {
            let oldest = {
                let mut segments = self.segments.write().unwrap();
                let removable =
                    segments.get(1).is_some_and(|next| *next <= durable.segment && *next <= self.acknowledged + 1);
                if !removable {
                    return;
                }
                segments.remove(0)
            };
            remove(&self.disk, Path::new(LOG), oldest).unwrap();
        }
    }

    fn oldest(&self) -> u64 {
        self.segments.read().unwrap()[0]
    }

    fn read(&self, at: u8) {
        let (oldest, head) = (self.oldest(), self.synced.len() as u64);
        let next = oldest + (head + 1 - oldest) * u64::from(at) / 255;
        let expected = &self.synced[next as usize - 1..];
        for recent in [Arc::default(), self.recent.clone()] {
            assert_eq!(self.records(next, recent).unwrap(), expected);
        }
        if oldest > 1 {
            let trimmed = self.records(oldest - 1, Arc::default());
            assert!(matches!(trimmed, Err(ReadError::Trimmed { oldest: told }) if told == oldest));
        }
    }

    fn records(&self, next: u64, recent: Arc<Recent>) -> Result<Vec<Record>, ReadError> {
        let (_sender, head) = watch::channel(self.synced.len() as u64);
        let mut reader = LogReader {
            log_id: sample::LOG_ID.into(),
            disk: self.disk.shared(),
            directory: LOG.into(),
            segments: self.segments.clone(),
            recent,
            head,
            next,
            open: None,
            ahead: None,
        };
        let mut all = Vec::new();
        while reader.is_ready() {
            all.extend(self.runtime.block_on(reader.read())?);
        }
        Ok(all)
    }

    fn crash(&mut self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        self.disk.crash(&mut rng);
        if !self.applied.is_empty() {
            // The store's own batches are not synced: it comes back as it was at any time since it was.
            self.applied.truncate(rng.random_range(self.durable..self.applied.len()) + 1);
        }
        self.reopen();
    }

    /// Opens what is left. It holds everything that was synced, and of what was written a beginning.
    fn reopen(&mut self) {
        let applied = self.applied.last().copied();
        let mut replayed = Vec::new();
        let (writer, segments) = recovery(&self.disk, applied, self.acknowledged)
            .run(|frame, _| {
                replayed.extend(frame.records);
                Ok(())
            })
            .unwrap();
        let end = writer.place();
        drop(writer);
        // Opening it again finds the same: with the store as it was, and with one that has everything.
        for applied in [applied, Some(end)] {
            let (again, same) = recovery(&self.disk, applied, self.acknowledged).run(|_, _| Ok(())).unwrap();
            assert_eq!((again.place(), &same), (end, &segments));
            self.writer = again;
        }
        assert!(segments[0] <= self.oldest(), "retention removes the oldest only");
        *self.segments.write().unwrap() = segments;
        self.recent = Arc::default();

        let head = end.next_seq - 1;
        assert!(head >= self.synced.len() as u64, "a synced frame is lost");
        for records in std::mem::take(&mut self.written) {
            if (self.synced.len() as u64) < head {
                self.synced.extend(records);
            }
        }
        assert_eq!(self.synced.len() as u64, head, "a frame is there in part, or was never written");
        let from = applied.map_or(1, |applied| applied.next_seq);
        assert_eq!(replayed, self.synced[from as usize - 1..], "the store gets what it has missed");
        self.applied.push(end);
        self.read(0);
    }
}

fn recovery(disk: &FaultyDisk, applied: Option<Place>, acknowledged: u64) -> Recovery<'static> {
    static LOG_ID: std::sync::LazyLock<Arc<str>> = std::sync::LazyLock::new(|| sample::LOG_ID.into());
    Recovery {
        disk: disk.shared(),
        directory: Path::new(LOG),
        log_id: &LOG_ID,
        segment_len: SMALL_SEGMENT,
        now: Timestamp::UNIX_EPOCH,
        applied,
        oldest_needed: acknowledged + 1,
        passed: Some(acknowledged),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_synced_is_lost_and_nothing_is_invented(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        model.crash(7);
    }
}

/// Enough to meet every fault in every place; forty times that in a torture run.
fn cases() -> u32 {
    if std::env::var_os("KUBETIDE_TORTURE").is_some() { 20_000 } else { 500 }
}
