//! A receiver that is down for minutes, and one that takes requests and never answers, beside one that is healthy: that one notices
//! nothing, the memory does not grow, and when the receiver is back it is given everything, in order.
//!
//! One test, so that nothing runs beside what is measured. `KUBETIDE_TORTURE` makes the outages ten minutes long, and compares the lags
//! strictly: that is fair only where the machine has nothing else to do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod pipeline;

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use instance::BATCH;
use jiff::Timestamp;
use kubetide_test_env::{Answer, WebhookReceiver};
use pipeline::{PATIENCE, Pipeline, fold::Fold, is_torture, seq};
use serde_json::Value;

/// How long a request may take. One that hangs is tried again after that.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A second's changes. The healthy sink's lag is looked at in windows of so many.
const WINDOW: usize = 500;

/// As far behind is a sink whose lag is normal.
const NORMAL: Duration = Duration::from_secs(1);

/// What the receiver does during the outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Its port is closed.
    Down,
    /// It reads requests, commits nothing and answers nothing.
    Hangs,
}

/// What somebody has made of the records that came so far.
#[derive(Default)]
struct Taken {
    /// The places and ids, in their order.
    records: Vec<(u64, String)>,
    fold: Fold,
    newest: Option<Timestamp>,
}

impl Taken {
    fn take(&mut self, record: &Value) -> Timestamp {
        let observed: Timestamp = record["observed_at"].as_str().unwrap().parse().unwrap();
        self.records.push((seq(record), record["id"].as_str().unwrap().into()));
        self.fold.take(record);
        self.newest = Some(observed);
        observed
    }
}

/// The healthy sink's file, as somebody sees it who reads it all the time.
struct Follower {
    file: BufReader<File>,
    line: String,
    taken: Taken,
}

/// What a second was like: the lag of the median and of the ninth of ten records in milliseconds, and the memory in MiB.
#[derive(Clone, Copy)]
struct Window {
    p50: f64,
    p90: f64,
    rss: f64,
}

impl Follower {
    fn of(pipeline: &Pipeline) -> Self {
        let file = File::open(pipeline.instance.path("out.ndjson")).unwrap();
        Self { file: BufReader::new(file), line: String::new(), taken: Taken::default() }
    }

    /// The lag of the next record in milliseconds; none if there is none yet.
    fn next(&mut self) -> Option<f64> {
        self.file.read_line(&mut self.line).unwrap();
        if !self.line.ends_with('\n') {
            return None;
        }
        let observed = self.taken.take(&serde_json::from_str(&self.line).expect("a line is a record"));
        self.line.clear();
        Some((Timestamp::now().as_microsecond() - observed.as_microsecond()) as f64 / 1000.0)
    }

    async fn window(&mut self, pipeline: &Pipeline) -> Window {
        let (mut lags, since) = (Vec::new(), Instant::now());
        while lags.len() < WINDOW {
            match self.next() {
                Some(lag) => lags.push(lag),
                None => {
                    assert!(since.elapsed() < PATIENCE, "the healthy sink is given nothing more");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        lags.sort_by(f64::total_cmp);
        Window { p50: lags[WINDOW / 2], p90: lags[WINDOW * 9 / 10], rss: rss_mib(pipeline) }
    }

    async fn windows(&mut self, pipeline: &Pipeline, count: usize) -> Vec<Window> {
        let mut windows = Vec::new();
        for _ in 0..count {
            windows.push(self.window(pipeline).await);
        }
        windows
    }
}

fn rss_mib(pipeline: &Pipeline) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pipeline.instance.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// The median over windows: a second in which the machine did something else does not count.
fn typical(windows: &[Window], of: impl Fn(&Window) -> f64) -> f64 {
    let mut all: Vec<f64> = windows.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Waits as long as there is hope.
async fn until(what: &str, patience: Duration, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < patience, "not seen in {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn beside(outage: Outage) {
    let (calm, lasts) = if is_torture() { (60, 600) } else { (3, 18) };
    let mut receiver = WebhookReceiver::start().unwrap();
    let (taken, hangs) = (Arc::<Mutex<Taken>>::default(), Arc::<AtomicBool>::default());
    let (takes, is_hanging) = (taken.clone(), hangs.clone());
    receiver.answer_by(move |posted| {
        if is_hanging.load(Ordering::Relaxed) {
            return Answer::hang();
        }
        let mut taken = takes.lock().unwrap();
        for record in posted.values() {
            taken.take(&record);
        }
        Answer::status(204)
    });
    // Compressed, because the receiver keeps all that it was ever sent.
    let mut pipeline = Pipeline::new(&format!(
        "{{name: it, type: webhook, url: '{}', timeout_secs: {}, compression: zstd, batch: {{max_records: {BATCH}, max_wait_ms: 20}}, \
         retry: {{initial_ms: 20, max_ms: 500}}}}",
        receiver.url(),
        TIMEOUT.as_secs()
    ))
    .await;
    let churn = pipeline.churn();
    pipeline.start().await;
    let mut follower = Follower::of(&pipeline);
    // The first snapshot and what a process does once are not what is measured.
    follower.windows(&pipeline, 2).await;
    let before = follower.windows(&pipeline, calm).await;

    match outage {
        Outage::Down => receiver.stop().await,
        Outage::Hangs => hangs.store(true, Ordering::Relaxed),
    }
    let there = taken.lock().unwrap().records.len();
    let during = follower.windows(&pipeline, lasts).await;
    assert!(taken.lock().unwrap().records.len() <= there + BATCH as usize, "it took something all the same");
    let failures = pipeline.instance.metric("kubetide_sink_failures_total", &["sink=\"it\""]);
    assert!(failures > 0.0, "the outage was not noticed");
    if is_torture() {
        pipeline.instance.readiness_when("it is red", |status, text| status == 503 && text.contains("sink/it")).await;
    }

    match outage {
        Outage::Down => receiver.start_again().unwrap(),
        Outage::Hangs => hangs.store(false, Ordering::Relaxed),
    }
    let since = Instant::now();
    let patience = PATIENCE + Duration::from_secs(lasts as u64);
    until("its lag is normal again", patience, || {
        let newest = taken.lock().unwrap().newest.unwrap();
        Timestamp::now().duration_since(newest).unsigned_abs() < NORMAL
    })
    .await;
    let back = since.elapsed();
    while follower.next().is_some() {}
    let after = follower.windows(&pipeline, calm).await;
    drop(churn);
    let there_is = pipeline.there_is();
    until("the healthy one has what there is", PATIENCE, || {
        while follower.next().is_some() {}
        follower.taken.fold.differs_from(&there_is).is_none()
    })
    .await;
    until("the other one has what there is", PATIENCE, || taken.lock().unwrap().fold.differs_from(&there_is).is_none())
        .await;
    assert!(pipeline.instance.terminate().success());

    let taken = taken.lock().unwrap();
    let repeated = assert_bounded(&taken.records, &follower.taken.records);
    let lag = |windows: &[Window]| [typical(windows, |window| window.p50), typical(windows, |window| window.p90)];
    let lags = [lag(&before), lag(&during), lag(&after)];
    let third = during.len() / 3;
    let ends = |windows: &[Window]| typical(&windows[windows.len() - windows.len().min(3)..], |window| window.rss);
    let rss = [ends(&before), ends(&during[..third]), ends(&during)];
    eprintln!(
        "{outage:?} for {lasts} s: {} records, {repeated} repeated, 0 missing, {failures} failures; the healthy sink's lag (p50, p90, ms) \
         {lags:.1?} before, during, after; RSS {rss:.1?} MiB before, after a third, at the end; back after {:.1} s",
        follower.taken.records.len(),
        back.as_secs_f64()
    );
    for [before, during, after] in [0, 1].map(|of| lags.map(|lag| lag[of])) {
        // A machine that has become busier meanwhile is so afterwards, too.
        let calm = before.max(after);
        // A sink that waited for the other one would be at a request's timeout, or at the length of the outage. What a busy machine
        // makes of some tens of milliseconds is far below that.
        let bound = if is_torture() { calm * 2.0 + 5.0 } else { calm * 5.0 + 500.0 };
        assert!(during < bound, "the lag is {during} ms during the outage, {before} ms before and {after} ms after");
    }
    // The store's memtables fill and empty, and pages that were freed go back late.
    assert!(rss[2] < rss[1] * 1.1 + 16.0, "the memory grew: {rss:.0?} MiB");
}

/// Checks that the records came in the order of the log, without holes, and that at most one batch came twice.
fn assert_bounded(taken: &[(u64, String)], log: &[(u64, String)]) -> usize {
    assert!(log.iter().map(|(seq, _)| *seq).eq(1..=log.len() as u64), "the healthy sink has not got everything once");
    let (mut next, mut jumps) = (1, 0);
    for (seq, id) in taken {
        assert!(*seq <= next, "seq {next} is missing: {seq} comes instead");
        if *seq < next {
            assert!(next - seq <= BATCH, "seq {seq} again after {}: more than a batch", next - 1);
            jumps += 1;
        }
        assert_eq!(*id, log[*seq as usize - 1].1, "seq {seq} is another record");
        next = seq + 1;
    }
    assert_eq!(next, log.len() as u64 + 1, "the end is missing");
    assert!(jumps <= 1, "{jumps} batches came again");
    taken.len() - log.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_or_hangs_costs_a_healthy_one_nothing_and_misses_nothing() {
    for outage in [Outage::Down, Outage::Hangs] {
        beside(outage).await;
    }
}
