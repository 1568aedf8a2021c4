//! Delivery against a scripted sink: what the cursor says at every moment, whatever the receiver does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide::{
    backoff::Backoff,
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, Cursor, CursorFile, Entry, Setup, Slot},
    clock::Clock,
    config::{Oversize, Start, WhenBehind},
    delivery::{DeadLetters, DeliveryError, Limits, Orders, Policy, Pump, Refusals},
    vitals::Vitals,
};
use kubetide_sink::{Batch, Sink, SinkError, Stream, sample};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

fn open(directory: &Path) -> Changelog {
    Changelog::open(directory, Setup::of("c-1"), Clock::system(), &Vitals::new()).unwrap()
}

/// What the receiver does with the next batch; the last one is repeated.
#[derive(Clone, Copy)]
enum Answer {
    Take,
    Reject,
    /// Writes the batch and never answers: what a crash between delivery and checkpoint looks like.
    TakeAndHang,
    Close,
}

/// The receiver's side: what it has, and what the cursor said when each batch came.
#[derive(Default)]
struct Received {
    batches: Vec<(u64, u64, Vec<u64>)>,
    cursors: Vec<Cursor>,
    answers: Vec<Answer>,
}

struct Scripted {
    received: Arc<Mutex<Received>>,
    changed: watch::Sender<usize>,
    cursor: Box<dyn Fn() -> Cursor + Send>,
}

#[async_trait]
impl Sink for Scripted {
    async fn deliver(&mut self, batch: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        let answer = {
            let mut received = self.received.lock().unwrap();
            received.cursors.push((self.cursor)());
            let answer = if received.answers.len() > 1 { received.answers.remove(0) } else { received.answers[0] };
            if !matches!(answer, Answer::Reject | Answer::Close) {
                let seqs = batch.records.iter().map(|record| record.seq).collect();
                received.batches.push((batch.from, batch.to, seqs));
            }
            answer
        };
        self.changed.send_modify(|count| *count += 1);
        match answer {
            Answer::Take => Ok(()),
            Answer::Reject => Err(SinkError::retry("rejected")),
            Answer::TakeAndHang => std::future::pending().await,
            Answer::Close => Err(SinkError::fatal("closed")),
        }
    }
}

/// A receiver that keeps the cursor.
struct Keeper(Arc<Mutex<Vec<Bytes>>>);

#[async_trait]
impl Sink for Keeper {
    async fn deliver(&mut self, _: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        self.0.lock().unwrap().extend(cursor.cloned());
        Ok(())
    }
}

/// A receiver that takes one batch, while the process is asked to stop.
struct Last(CancellationToken);

#[async_trait]
impl Sink for Last {
    async fn deliver(&mut self, _: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        assert!(!self.0.is_cancelled(), "one batch, and no more");
        self.0.cancel();
        Ok(())
    }
}

fn stream(resource: &str) -> Arc<Stream> {
    Arc::new(sample::stream(resource, "Any"))
}

/// A log with one update of an object for each version.
async fn append(log: &Changelog, stream: &Arc<Stream>, versions: std::ops::RangeInclusive<u64>) {
    let appender = log.appender();
    for version in versions {
        let observed = Observed {
            key: ObjectKey { namespace: "n".into(), name: "a".into() },
            uid: "u".into(),
            version: ResourceVersion::new(version.to_string()),
            generation: None,
            managed: Managed::default(),
            writers: Writers::default(),
            object: Ok(Bytes::from(format!("{{\"version\":{version}}}"))),
        };
        appender.append(stream, Entry::Present(observed)).await.unwrap();
    }
    appender.flush().await.unwrap();
}

/// A pump that takes all streams, at least once.
fn pump(log: &Changelog, sink: Box<dyn Sink>, max_records: usize, drain: &CancellationToken) -> Pump {
    Pump {
        name: "out".into(),
        vitals: Vitals::new().sink("out"),
        sink,
        cluster: sample::stream("pods", "Pod").cluster,
        view: log.view(),
        cursor: attach(log),
        limits: Limits { max_records, max_bytes: 1 << 20, max_wait: Duration::ZERO },
        backoff: Backoff::new(Duration::from_millis(1)),
        longest_pause: Duration::from_millis(2),
        streams: Vec::new(),
        policy: Policy {
            filter: None,
            oversize: Oversize::Truncate,
            letters: DeadLetters::new("unused".into(), "out"),
            exactly_once: false,
        },
        refusals: Refusals::default(),
        orders: Orders::new().1,
        clock: Clock::system(),
        drain: drain.clone(),
    }
}

/// A pump at work, and the receiver's side of it.
struct Delivery {
    received: Arc<Mutex<Received>>,
    changed: watch::Receiver<usize>,
    drain: CancellationToken,
    task: JoinHandle<Result<(), DeliveryError>>,
}

impl Delivery {
    fn start(log: &Changelog, max_records: usize, streams: &[&str], answers: &[Answer]) -> Self {
        let received = Arc::new(Mutex::new(Received { answers: answers.to_vec(), ..Received::default() }));
        let (sender, changed) = watch::channel(0);
        // A second handle on the same file: what a restart would find at this moment.
        let path = attach(log).path().parent().unwrap().parent().unwrap().to_path_buf();
        let log_id = log.log_id().to_owned();
        let sink = Scripted {
            received: received.clone(),
            changed: sender,
            cursor: Box::new(move || durable_cursor(&path, &log_id)),
        };
        let drain = CancellationToken::new();
        let streams = streams.iter().map(|name| (*name).into()).collect();
        let pump = Pump { streams, ..pump(log, Box::new(sink), max_records, &drain) };
        Self { received, changed, drain, task: tokio::spawn(pump.run()) }
    }

    /// Waits until the receiver has this record.
    async fn has(&mut self, seq: u64) {
        let received = self.received.clone();
        let wait = self.changed.wait_for(|_| seqs(&received).contains(&seq));
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the record is delivered in time").unwrap();
    }

    /// Waits until the receiver was asked this often.
    async fn asked(&mut self, times: usize) {
        let wait = self.changed.wait_for(|count| *count >= times);
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the sink is asked in time").unwrap();
    }

    async fn drained(self) -> Arc<Mutex<Received>> {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
        self.received
    }

    /// As if the process were killed.
    async fn killed(self) -> Arc<Mutex<Received>> {
        self.task.abort();
        let _ = self.task.await;
        self.received
    }
}

fn attach(log: &Changelog) -> CursorFile {
    log.attach("out", Start::Earliest, WhenBehind::Resync).unwrap()
}

fn durable_cursor(directory: &Path, log_id: &str) -> Cursor {
    CursorFile::open(&directory.join("cursors"), "out", log_id).unwrap().unwrap().cursor().clone()
}

fn seqs(received: &Arc<Mutex<Received>>) -> Vec<u64> {
    received.lock().unwrap().batches.iter().flat_map(|(_, _, seqs)| seqs.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_moves_only_past_what_the_sink_has_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, 1..=25).await;
    let mut delivery = Delivery::start(&log, 10, &[], &[Answer::Reject, Answer::Reject, Answer::Take]);
    delivery.asked(5).await;
    let received = delivery.drained().await;
    assert_eq!(seqs(&received), (1..=25).collect::<Vec<_>>());
    let received = received.lock().unwrap();
    assert_eq!(received.batches.len(), 3);
    let at = |acknowledged, in_flight| (acknowledged, Some(in_flight));
    let said: Vec<_> = received.cursors.iter().map(|cursor| (cursor.acknowledged, cursor.in_flight)).collect();
    let first = at(0, (1, 10));
    assert_eq!(said, [first, first, first, at(10, (11, 20)), at(20, (21, 25))]);
    assert_eq!(attach(&log).cursor().acknowledged, 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_noted_as_under_way_in_the_write_that_acknowledges_the_one_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, &stream("pods"), 1..=35).await;
    let (kept, drain) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let mut pump = pump(&log, Box::new(Keeper(kept.clone())), 10, &drain);
    pump.policy.exactly_once = true;
    let task = tokio::spawn(pump.run());
    let since = std::time::Instant::now();
    while durable_cursor(directory.path(), log.log_id()).acknowledged < 35 {
        assert!(since.elapsed() < Duration::from_secs(30), "everything is delivered in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drain.cancel();
    task.await.unwrap().unwrap();
    let kept: Vec<Slot> = kept.lock().unwrap().iter().map(|bytes| Slot::of_bytes(bytes).unwrap()).collect();
    let said: Vec<_> = kept.iter().map(|slot| (slot.cursor().acknowledged, slot.cursor().in_flight)).collect();
    // A batch that is not full is not under way before it is due.
    assert_eq!(said, [(10, Some((11, 20))), (20, Some((21, 30))), (30, None), (35, None)]);
    let writes =
        |slot: &Slot| serde_json::from_slice::<serde_json::Value>(&slot.to_bytes()).unwrap()["generation"].clone();
    let first = writes(&kept[0]).as_u64().unwrap();
    // One write for each full batch; before one that was not noted, one more.
    assert_eq!(kept.iter().map(|slot| writes(slot).as_u64().unwrap() - first).collect::<Vec<_>>(), [0, 1, 2, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_delivery_and_cursor_repeats_exactly_that_batch_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, 1..=25).await;
    let mut delivery = Delivery::start(&log, 10, &[], &[Answer::Take, Answer::TakeAndHang]);
    delivery.asked(2).await;
    let first = delivery.killed().await;
    assert_eq!(seqs(&first), (1..=20).collect::<Vec<_>>());

    // Other limits, and more in the log by now: still the very same batch.
    append(&log, &pods, 26..=40).await;
    let mut delivery = Delivery::start(&log, 100, &[], &[Answer::Take]);
    delivery.has(40).await;
    let second = delivery.drained().await;
    assert_eq!(second.lock().unwrap().batches[0].2, (11..=20).collect::<Vec<_>>());
    assert_eq!(seqs(&second), (11..=40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_delivers_what_is_there_and_gives_up_on_a_receiver_that_rejects() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, 1..=5).await;
    let mut delivery = Delivery::start(&log, 10, &[], &[Answer::Reject]);
    delivery.asked(3).await;
    let received = delivery.drained().await;
    assert_eq!(seqs(&received), [] as [u64; 0]);
    assert_eq!(attach(&log).cursor().acknowledged, 0);

    let delivery = Delivery::start(&log, 10, &[], &[Answer::Take]);
    assert_eq!(seqs(&delivery.drained().await), [1, 2, 3, 4, 5]);
    assert_eq!(attach(&log).cursor().acknowledged, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_no_batch_under_way_that_was_not_sent() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    append(&log, &stream("pods"), 1..=35).await;
    for exactly_once in [false, true] {
        let drain = CancellationToken::new();
        let mut pump = pump(&log, Box::new(Last(drain.clone())), 10, &drain);
        pump.policy.exactly_once = exactly_once;
        pump.run().await.unwrap();
        let cursor = durable_cursor(directory.path(), log.log_id());
        let batches = if exactly_once { 2 } else { 1 };
        assert_eq!((cursor.acknowledged, cursor.in_flight), (batches * 10, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_only_the_streams_it_names_and_a_restart_does_not_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let (pods, nodes) = (stream("pods"), stream("nodes"));
    let log = open(directory.path());
    append(&log, &pods, 1..=5).await;
    append(&log, &nodes, 6..=8).await;
    append(&log, &pods, 9..=10).await;
    let mut delivery = Delivery::start(&log, 100, &["core/nodes"], &[Answer::Take]);
    delivery.has(8).await;
    assert_eq!(seqs(&delivery.drained().await), [6, 7, 8]);
    assert!(attach(&log).cursor().acknowledged >= 8, "what it does not take is passed all the same");
    assert_eq!(seqs(&Delivery::start(&log, 100, &["core/nodes"], &[Answer::Take]).drained().await), [] as [u64; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sink_does_not_take_is_acknowledged_though_nothing_else_comes() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let delivery = Delivery::start(&log, 100, &["core/nodes"], &[Answer::Take]);
    append(&log, &stream("pods"), 1..=5).await;
    let since = std::time::Instant::now();
    while durable_cursor(directory.path(), log.log_id()).acknowledged < 5 {
        assert!(since.elapsed() < Duration::from_secs(30), "the log would be kept for a sink that wants nothing of it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seqs(&delivery.drained().await), [] as [u64; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_closed_for_good_ends_the_delivery() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, 1..=5).await;
    let delivery = Delivery::start(&log, 10, &[], &[Answer::Close]);
    assert!(matches!(delivery.task.await.unwrap(), Err(DeliveryError::Sink { .. })));
    assert_eq!(attach(&log).cursor().acknowledged, 0);
}
