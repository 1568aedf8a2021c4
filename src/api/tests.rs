//! Answers from a log that is written by hand.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    num::NonZeroU64,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::{Stream, sample};
use serde_json::Value;

use super::{answer::answer, *};
use crate::{
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, Entry, Setup},
    clock::Clock,
    config::{self, Start, WhenBehind},
    vitals::Vitals,
};

/// A log whose clock stands still until it is set.
struct Case {
    log: Changelog,
    seconds: Arc<AtomicI64>,
    stream: Arc<Stream>,
}

impl Case {
    fn open(directory: &Path) -> Self {
        // So that a file of the log is full at 2 MiB.
        let max_bytes = NonZeroU64::new(16 << 20).unwrap();
        let setup = Setup { keep: config::Log { max_bytes, ..config::Log::default() }, ..Setup::of("c-1") };
        let seconds = Arc::new(AtomicI64::new(0));
        let wall = seconds.clone();
        let clock = Clock::with_wall(move || Timestamp::from_second(wall.load(Ordering::Relaxed)).unwrap());
        let log = Changelog::open(directory, setup, clock, &Vitals::new()).unwrap();
        Self { log, seconds, stream: Arc::new(sample::stream("pods", "Pod")) }
    }

    /// One change, in a frame of its own.
    async fn append(&self, version: u64, object: Bytes) {
        let observed = Observed {
            key: ObjectKey { namespace: "n".into(), name: format!("p{version}") },
            uid: format!("u{version}"),
            version: ResourceVersion::new(version.to_string()),
            generation: None,
            managed: Managed::default(),
            writers: Writers::default(),
            object: Ok(object),
        };
        let appender = self.log.appender();
        appender.append(&self.stream, Entry::Present(observed)).await.unwrap();
        appender.flush().await.unwrap();
    }

    async fn fill(&self, versions: std::ops::RangeInclusive<u64>) {
        for version in versions {
            self.seconds.store(i64::try_from(version).unwrap() * 10, Ordering::Relaxed);
            self.append(version, Bytes::from_static(b"{}")).await;
        }
    }

    fn desk(&self) -> Desk {
        Desk {
            view: self.log.view(),
            hands: Hands::Live { sinks: Arc::default(), purger: self.log.purger() },
            max_bytes: None,
            attached: None,
            stop: CancellationToken::new(),
        }
    }
}

async fn seqs(desk: &Desk, wanted: Changes) -> Result<Vec<u64>, Refusal> {
    let mut answer = answer(desk, Question::Changes(Box::new(wanted))).await?;
    let mut seqs = Vec::new();
    while let Some(block) = answer.next().await {
        for line in block?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            seqs.push(serde_json::from_slice::<Value>(line).unwrap()["log"]["seq"].as_u64().unwrap());
        }
    }
    Ok(seqs)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_found_by_place_by_time_from_the_end_and_by_object() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    case.fill(1..=20).await;
    let desk = case.desk();
    let at = |seconds| Some(Point::At(Timestamp::from_second(seconds).unwrap()));
    let range = |from, to| Changes { from, to, ..Changes::default() };
    let of = async |wanted| seqs(&desk, wanted).await.unwrap();
    assert_eq!(of(Changes::default()).await, (1..=20).collect::<Vec<_>>());
    assert_eq!(of(range(Some(Point::Seq(19)), None)).await, [19, 20]);
    assert_eq!(of(range(at(45), at(70))).await, [5, 6], "from 45 s on, before 70 s");
    assert_eq!(of(range(at(0), at(15))).await, [1]);
    assert_eq!(of(range(at(201), None)).await, [] as [u64; 0]);
    assert_eq!(of(Changes { last: Some(2), ..Changes::default() }).await, [19, 20]);
    let named = Changes { last: Some(5), name: Words(vec!["p3".into(), "p7".into()]), ..Changes::default() };
    assert_eq!(of(named).await, [3, 7]);
    let missing = seqs(&desk, range(Some(Point::Seq(21)), None)).await;
    assert_eq!(missing, Err(Refusal::Absent("there is no record 21: the log has 1 to 20".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_holds_back_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    let desk = case.desk();
    let follow = || Question::Changes(Box::new(Changes { follow: true, ..Changes::default() }));
    let mut unread = answer(&desk, follow()).await.unwrap();
    // More than its channel and its block together can hold.
    let large = Bytes::from(format!("{{\"data\":\"{}\"}}", "x".repeat(1 << 20)));
    for version in 1..=20 {
        case.append(version, large.clone()).await;
    }
    assert_eq!(case.log.head(), 20);
    assert_eq!(seqs(&desk, Changes::default()).await.unwrap().len(), 20, "others read on");
    // It has lost nothing meanwhile.
    let mut bytes = 0;
    while bytes < 20 << 20 {
        bytes += unread.next().await.unwrap().unwrap().len();
    }
    desk.stop.cancel();
    assert!(unread.next().await.is_none(), "and it ends when it is told to");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_removes_whole_files_that_everyone_has_passed_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    // Half of it is left when it is compressed: a file of the log is full after 18 of these.
    let mut state = 1_u64;
    let digit = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from_digit((state >> 60) as u32, 16).unwrap()
    };
    let noise: String = (0..256 << 10).map(digit).collect();
    let noise = Bytes::from(format!("{{\"data\":\"{noise}\"}}"));
    for version in 1..=20 {
        case.append(version, noise.clone()).await;
    }
    let mut cursor = case.log.attach("out", Start::Earliest, WhenBehind::Resync).unwrap();
    case.log.close().unwrap();

    let archive = Archive::open(directory.path()).unwrap();
    let desk = |archive: Archive| Desk {
        view: archive.view().clone(),
        hands: Hands::Files(Arc::new(archive)),
        max_bytes: None,
        attached: None,
        stop: CancellationToken::new(),
    };
    let segments = archive.view().segments().unwrap();
    assert_eq!(segments.len(), 2, "the test needs two files: {segments:?}");
    let (last, next) = (segments[0].last_seq, segments[1].first_seq);
    let desk = desk(archive);
    let purge = async |before| match carry_out(&desk, Demand::Purge { before: Point::Seq(before) }).await.unwrap() {
        item::Done::Purged(purged) => purged,
        other => panic!("{other:?}"),
    };
    let kept = purge(20).await;
    assert_eq!((kept.segments, kept.oldest), (0, 1), "the sink has acknowledged nothing");
    assert!(kept.kept.unwrap().contains("sink out"));
    cursor.acknowledge(last).unwrap();
    assert_eq!(purge(last).await.segments, 0, "the last record of the file is to be kept");
    let purged = purge(next).await;
    assert_eq!((purged.segments, purged.records, purged.oldest, purged.kept), (1, last, next, None));
    assert_eq!(purged.bytes, segments[0].bytes);
    let gone = Changes { from: Some(Point::Seq(3)), ..Changes::default() };
    let there = format!("there is no record 3 any more: the log has {next} to 20");
    assert_eq!(seqs(&desk, gone).await, Err(Refusal::Absent(there)));
    drop(desk);

    // What is left opens, and goes on.
    let case = Case::open(directory.path());
    case.append(21, Bytes::from_static(b"{}")).await;
    assert_eq!(seqs(&case.desk(), Changes::default()).await.unwrap(), (next..=21).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_of_a_whole_log_is_found_whole_and_a_flipped_bit_by_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    case.fill(1..=5).await;
    let view = case.log.view();
    let whole = view.inspect(1, None).unwrap();
    assert_eq!((whole.records, whole.damage), (5, None));
    let path = directory.path().join("log").join(&whole.file);
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let damage = view.inspect(1, None).unwrap().damage.unwrap();
        assert!(damage.path == path && damage.offset <= at as u64, "{at}: {damage:?}");
    }
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(view.inspect(1, None).unwrap().damage.is_some());
}
