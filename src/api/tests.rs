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
    changelog::{Changelog, Entry, Fingerprint, Setup},
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
            letters: Letters::default(),
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
    // More than what was just written, which comes as one block, and its channel together can hold.
    let large = Bytes::from(format!("{{\"data\":\"{}\"}}", "x".repeat(1 << 20)));
    for version in 1..=60 {
        case.append(version, large.clone()).await;
    }
    assert_eq!(case.log.head(), 60);
    assert_eq!(seqs(&desk, Changes::default()).await.unwrap().len(), 60, "others read on");
    // It has lost nothing meanwhile.
    let mut bytes = 0;
    while bytes < 60 << 20 {
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
        letters: Letters::default(),
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

// On one thread: a writer that is read from at the same time may be through before it is stopped.
#[tokio::test]
async fn what_a_stopping_process_cuts_short_is_refused_and_only_a_follower_ends_quietly() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    // More than what was just written, which comes as one block, and its channel together can hold.
    let large = Bytes::from(format!("{{\"data\":\"{}\"}}", "x".repeat(1 << 20)));
    for version in 1..=60 {
        case.append(version, large.clone()).await;
    }
    for wanted in [
        Changes::default(),
        Changes { last: Some(60), ..Changes::default() },
        Changes { follow: true, ..Changes::default() },
    ] {
        let desk = case.desk();
        let mut answer = answer(&desk, Question::Changes(Box::new(wanted))).await.unwrap();
        answer.next().await.unwrap().unwrap();
        desk.stop.cancel();
        let mut ended = None;
        while let Some(block) = answer.next().await {
            ended = block.err();
        }
        let Some(Refusal::Failed(why)) = ended else { panic!("it looks complete") };
        assert!(why.contains("the process has stopped"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_records_are_shown_whichever_objects_are_asked_for_unless_their_stream_has_none_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::open(directory.path());
    let listed = |case: &Case| {
        let needed = Entry::ListNeeded { reason: None, fingerprint: Fingerprint::default(), asked_as: "pods".into() };
        let (appender, stream) = (case.log.appender(), case.stream.clone());
        async move {
            for entry in [needed, Entry::ListStarted(1), Entry::ListFinished(ResourceVersion::new("1"))] {
                appender.append(&stream, entry).await.unwrap();
            }
            appender.flush().await.unwrap();
        }
    };
    listed(&case).await;
    case.fill(2..=3).await;
    case.stream = Arc::new(Stream { namespace: Some("other".into()), ..sample::stream("pods", "Pod") });
    listed(&case).await;
    let desk = case.desk();
    let words = |word: &str| Words(vec![word.into()]);
    let of = async |wanted| seqs(&desk, wanted).await.unwrap();
    assert_eq!(of(Changes { name: words("p3"), ..Changes::default() }).await, [1, 2, 4, 5, 6]);
    assert_eq!(of(Changes { object: words("n/p3"), ..Changes::default() }).await, [1, 2, 4]);
    assert_eq!(of(Changes { namespace: words("n"), ..Changes::default() }).await, [1, 2, 3, 4]);
    assert_eq!(of(Changes { class: words("spec"), ..Changes::default() }).await, [1, 2, 5, 6]);
    assert_eq!(of(Changes { name: words("p3"), op: words("create"), ..Changes::default() }).await, [4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_ends_before_it_begins_is_refused_with_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    case.fill(1..=20).await;
    let desk = case.desk();
    let at = |seconds| Point::At(Timestamp::from_second(seconds).unwrap());
    for (from, to) in [
        (Point::Seq(9), Point::Seq(5)),
        (at(90), at(50)),
        (Point::Seq(9), at(50)),
        (at(90), Point::Seq(5)),
        (Point::Seq(99), Point::Seq(5)),
    ] {
        let refused = seqs(&desk, Changes { from: Some(from), to: Some(to), ..Changes::default() }).await;
        let Err(Refusal::Usage(why)) = refused else { panic!("{from} to {to}: {refused:?}") };
        assert!(why.contains(&from.to_string()) && why.contains(&to.to_string()), "{why}");
    }
    // Nothing is between them, but nothing is wrong either.
    let none = Changes { from: Some(at(45)), to: Some(at(50)), ..Changes::default() };
    assert_eq!(seqs(&desk, none).await.unwrap(), [] as [u64; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_one_that_is_still_followed_and_never_one_of_two() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::open(directory.path());
    let of = |namespace: &str| Arc::new(Stream { namespace: Some(namespace.into()), ..sample::stream("pods", "Pod") });
    // `p1` of namespace n: in a stream of all namespaces and in one of its own.
    case.append(1, Bytes::from_static(b"{}")).await;
    case.stream = of("n");
    case.append(1, Bytes::from_static(b"{}")).await;
    let desk = case.desk();
    let found = async |stream: &str, object: Option<&str>| {
        let wanted =
            Objects { stream: Words(vec![stream.into()]), object: object.map(Into::into), ..Objects::default() };
        let mut answer = answer(&desk, Question::Objects(wanted)).await?;
        let mut streams = Vec::new();
        while let Some(block) = answer.next().await {
            for line in block?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let item: item::Object = serde_json::from_slice(line).unwrap();
                streams.push(item.stream);
            }
        }
        Ok::<_, Refusal>(streams)
    };
    let Err(Refusal::Usage(why)) = found("pods", Some("n/p1")).await else { panic!("it picks one") };
    assert!(why.contains("core/pods n/p1") && why.contains("core/pods@n n/p1"), "{why}");
    assert_eq!(found("core/pods@n", Some("p1")).await.unwrap(), ["core/pods@n"]);
    assert_eq!(found("core/pods", Some("n/p1")).await.unwrap(), ["core/pods"], "a whole name is that stream");
    assert_eq!(found("pods", None).await.unwrap().len(), 2);

    let appender = case.log.appender();
    appender.append(&case.stream, Entry::Unfollowed).await.unwrap();
    appender.flush().await.unwrap();
    assert_eq!(found("pods", Some("n/p1")).await.unwrap(), ["core/pods"]);
    assert_eq!(found("pods", None).await.unwrap(), ["core/pods"], "not in a list either");
    let Err(Refusal::Absent(why)) = found("core/pods@n", Some("p1")).await else { panic!("it is frozen") };
    assert!(why.contains("core/pods@n is no longer followed"), "{why}");
}

#[test]
fn an_empty_word_is_no_word() {
    for text in ["\"\"", "\"pods,\"", "\",\""] {
        assert!(serde_json::from_str::<Words>(text).unwrap_err().to_string().contains("empty"), "{text}");
    }
    assert_eq!(serde_json::from_str::<Words>("\"a,b\"").unwrap(), Words(vec!["a".into(), "b".into()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_says_how_far_it_is_though_nothing_matches_if_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::open(directory.path());
    case.fill(1..=20).await;
    let told = async |progress| {
        let name = Words(vec!["nobody".into()]);
        let to = Some(Point::Seq(15));
        let wanted = Changes { name, to, progress, ..Changes::default() };
        let mut answer = answer(&case.desk(), Question::Changes(Box::new(wanted))).await.unwrap();
        let mut text = Vec::new();
        while let Some(block) = answer.next().await {
            text.extend_from_slice(&block.unwrap());
        }
        String::from_utf8(text).unwrap()
    };
    assert!(told(true).await.ends_with("{\"reached\":15}\n"));
    assert_eq!(told(false).await, "");
}
