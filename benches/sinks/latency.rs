//! How long a change takes that finds everything idle: from its append to the acknowledgement of the receiver, with
//! `max_wait_ms: 0`, beside an fdatasync of the same disk.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide::{changelog::Changelog, delivery::Limits};
use kubetide_sink::{Batch, Sink, SinkError, Terms};
use kubetide_test_env::{Kafka, Nats};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    delivery::{pump, terms},
    file,
    full_log::{Source, cluster, open},
    kafka, nats, usual_limits, webhook,
};

/// The changes of one sink, and those before them that do not count: connections are made and pages are faulted in.
const CHANGES: usize = 1_000;
const BEFORE: usize = 50;
/// Between two changes, so that each finds an idle log.
const PACE: Duration = Duration::from_millis(5);
/// What the probe writes: about what a frame of the log has, a line of the file, or a cursor.
const PROBE_BYTES: usize = 2048;

/// Tells when the receiver has acknowledged.
struct Told {
    sink: Box<dyn Sink>,
    acknowledged: mpsc::Sender<Instant>,
}

#[async_trait]
impl Sink for Told {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        if let Err(error) = self.sink.deliver(batch, cursor).await {
            panic!("a figure with failures in it says nothing: {error}");
        }
        self.acknowledged.send(Instant::now()).await.unwrap();
        Ok(())
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.sink.restore().await
    }
}

pub(crate) async fn measure() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, nats, kafka) =
        (webhook::Receiver::start(None), Nats::start().await.unwrap(), Kafka::start().await.unwrap());
    println!("latency: {CHANGES} changes, one at a time, max_wait_ms: 0, from append to acknowledgement");
    for name in ["file", "webhook", "nats", "kafka"] {
        let terms = terms(name, false);
        let sink = match name {
            "file" => file::open(&directory.path().join("out")),
            "webhook" => webhook::open(&receiver),
            "nats" => nats::open(&nats, terms.clone()),
            _ => kafka::open(&kafka, name, terms.clone()),
        };
        let (changes, syncs) = follow(sink, &terms, directory.path()).await;
        let [change, sync] = [&changes, &syncs].map(|times| [percentile(times, 50), percentile(times, 99)]);
        println!(
            "  {name}: p50 {:.2} ms, p99 {:.2} ms; fdatasync: p50 {:.2} ms, p99 {:.2} ms; above it: p50 {:.2} ms, p99 {:.2} ms",
            change[0],
            change[1],
            sync[0],
            sync[1],
            change[0] - sync[0],
            change[1] - sync[1]
        );
    }
}

/// Milliseconds of the changes, and of the syncs between them.
async fn follow(sink: Box<dyn Sink>, terms: &Terms, on: &Path) -> (Vec<f64>, Vec<f64>) {
    let directory = TempDir::new_in(on).unwrap();
    let log = open(&directory);
    let (sender, mut acknowledged) = mpsc::channel(1);
    let drain = CancellationToken::new();
    let limits = Limits { max_wait: Duration::ZERO, ..usual_limits() };
    let sink = Box::new(Told { sink, acknowledged: sender });
    let pumping = tokio::spawn(pump(&log, sink, terms, limits, drain.clone()).run());
    let mut probe = File::options().append(true).create_new(true).open(directory.path().join("probe")).unwrap();

    let (cluster, names, _) = cluster();
    let (namespace, name) = &names[0];
    let pods = Source::new("pods", "Pod");
    let appender = log.appender();
    let (mut changes, mut syncs) = (Vec::new(), Vec::new());
    for change in 0..BEFORE + CHANGES {
        cluster.touch("pods", namespace, name).unwrap();
        let entry = pods.entry(&cluster.get("pods", namespace, name).unwrap());
        until_idle(&log, &terms.name, change as u64).await;

        let begun = Instant::now();
        probe.write_all(&[7; PROBE_BYTES]).unwrap();
        tokio::task::block_in_place(|| probe.sync_data().unwrap());
        syncs.push(begun.elapsed().as_secs_f64() * 1e3);

        let begun = Instant::now();
        appender.append(&pods.stream, entry).await.unwrap();
        changes.push((acknowledged.recv().await.unwrap() - begun).as_secs_f64() * 1e3);
    }
    drain.cancel();
    pumping.await.unwrap().unwrap();
    drop(appender);
    log.close().unwrap();
    (changes.split_off(BEFORE), syncs.split_off(BEFORE))
}

/// Waits until the cursor is beside the log, and then some: its sync may still be under way.
async fn until_idle(log: &Changelog, sink: &str, acknowledged: u64) {
    let is_there = || {
        let cursors = log.view().cursors().unwrap();
        cursors.iter().any(|(name, cursor)| name == sink && cursor.acknowledged == acknowledged)
    };
    while !is_there() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(PACE).await;
}

fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() * percent / 100]
}
