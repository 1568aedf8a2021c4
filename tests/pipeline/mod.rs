//! The built binary between a simulated cluster that never rests and a real receiver: killed, stopped, robbed of its volume, and
//! with a rival.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

pub mod churn;
pub mod fold;
pub mod hang;
pub mod losses;
pub mod receiver;
pub mod rivals;

use std::{
    collections::BTreeMap,
    io::PipeWriter,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::{Value, json};

use churn::Churn;
use fold::{Fold, there_is};
use receiver::{Lines, Receiver};

use crate::instance::{BATCH, Instance, State};

/// How long anything may take before a test calls it lost.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How many changes there are in a second.
const CHANGES: u64 = 500;

/// The one namespace of what the tests make themselves.
const NAMESPACE: &str = "default";

const STREAMS: [&str; 1] = ["{resource: configmaps}"];

pub fn is_torture() -> bool {
    std::env::var_os("KUBETIDE_TORTURE").is_some()
}

/// Both kinds of delivery, or in short the one with which less time goes by.
pub fn deliveries() -> &'static [&'static str] {
    if is_torture() { &["at_least_once", "exactly_once"] } else { &["at_least_once"] }
}

/// How often a process is killed: in short, or as often as an issue asks for.
pub fn kills(short: usize, whole: usize) -> usize {
    if is_torture() { whole } else { short }
}

/// A cluster, and a kubetide that pushes its changes to a file and to another sink.
pub struct Pipeline {
    pub server: Server,
    pub instance: Instance,
    /// Where standard output goes, if not into the log.
    pub stdout: Option<PipeWriter>,
    sink: String,
    /// Kept for as long as the process runs.
    kubeconfig: tempfile::TempDir,
}

impl Pipeline {
    /// `sink` is the other sink's keys as YAML, in braces; its name is `it`.
    pub async fn new(sink: &str) -> Self {
        // A cluster of its own also for a receiver that is shared: its uid is a part of what a sink is known by.
        let cluster =
            Cluster::new(ClusterOptions { seed: rand::random(), history: 1_000_000, ..ClusterOptions::default() });
        cluster.populate_config_maps(300);
        let server = Server::start(cluster).await.unwrap();
        let kubeconfig = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(kubeconfig.path()).unwrap();
        let sink = format!("  - {sink}\n");
        let instance = Instance::with_streams(&path, &STREAMS, &sink);
        Self { server, instance, stdout: None, sink, kubeconfig }
    }

    /// One more process with the same configuration, and a data directory of its own.
    pub fn another(&self) -> Instance {
        let path = self.server.kubeconfig(self.kubeconfig.path()).unwrap();
        Instance::with_streams(&path, &STREAMS, &self.sink)
    }

    /// The other sink has these keys from the next start on.
    pub fn configure(&self, sink: &str) {
        self.instance.configure(&STREAMS, &format!("  - {sink}\n"));
    }

    /// The data directory is gone, and the file with it.
    pub fn lose_the_volume(&mut self) {
        std::fs::remove_dir_all(self.instance.path("data")).unwrap();
        std::fs::remove_file(self.instance.path("out.ndjson")).unwrap();
    }

    /// Makes an object that the churn leaves alone.
    pub fn make(&self, name: &str) {
        let object = json!({"metadata": {"namespace": NAMESPACE, "name": name}, "data": {"made": "once"}});
        self.server.cluster().create("configmaps", object).unwrap();
    }

    /// Changes it.
    pub fn touch(&self, name: &str) {
        self.server.cluster().touch("configmaps", NAMESPACE, name).unwrap();
    }

    /// Deletes it.
    pub fn remove(&self, name: &str) {
        self.server.cluster().delete("configmaps", NAMESPACE, name).unwrap();
    }

    /// From now on the cluster does not rest.
    pub fn churn(&self) -> Churn {
        Churn::start(self.server.cluster(), CHANGES)
    }

    /// Runs it through so many kills under load. It runs on when this returns, and nothing changes any more.
    pub async fn run_through(&mut self, kills: usize, mut between: impl AsyncFnMut(usize)) {
        let churn = self.churn();
        for kill in 0..kills {
            self.start().await;
            self.delivering().await;
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..600))).await;
            between(kill).await;
            self.instance.kill();
        }
        self.start().await;
        drop(churn);
    }

    /// Stops it in order so many times under load. It does not run any more when this returns.
    pub async fn stop_and_go(&mut self, stops: usize) {
        let churn = self.churn();
        for _ in 0..stops {
            self.start().await;
            self.delivering().await;
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..600))).await;
            // Nothing was under way when it stopped, so that nothing comes again.
            assert_eq!(self.cuts("again"), 0.0);
            assert!(self.instance.terminate().success());
        }
        self.start().await;
        drop(churn);
        self.delivered(&self.log().await).await;
        assert_eq!(self.cuts("again"), 0.0);
        assert!(self.instance.terminate().success());
    }

    /// Waits until the other sink has acknowledged all of this log.
    pub async fn delivered(&self, log: &BTreeMap<u64, Value>) {
        self.acknowledged(log.len() as u64).await;
    }

    /// Waits until the other sink has acknowledged the log up to here, for as long as it goes on.
    pub async fn acknowledged(&self, seq: u64) {
        let (mut since, mut last) = (Instant::now(), Value::Null);
        loop {
            let mut list = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubetide"));
            list.args(["sink", "list", "--output", "json", "--data-dir"]).arg(self.instance.path("data"));
            let output = list.stdin(Stdio::null()).output().await.unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let mut sinks = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let it = sinks.find(|sink| sink["name"] == "it").unwrap_or_default();
            if it["acknowledged"] == seq && it["state"] == "following" {
                return;
            }
            if it["acknowledged"] != last {
                (since, last) = (Instant::now(), it["acknowledged"].clone());
            }
            assert!(since.elapsed() < PATIENCE, "nothing more is delivered in {PATIENCE:?}: {seq} records; {said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many batches of the other sink were cut for this reason.
    pub fn cuts(&self, reason: &str) -> f64 {
        self.instance.metric("kubetide_sink_batches_total", &["sink=\"it\"", &format!("cut=\"{reason}\"")])
    }

    /// Runs it until its log is longer than this, and kills it.
    pub async fn outgrow(&mut self, seq: u64) {
        let churn = self.churn();
        self.start().await;
        let mut file = Lines::of(&self.instance.path("out.ndjson"));
        file.until("a longer log", |records| records.last().is_some_and(|last| self::seq(last) > seq)).await;
        self.instance.kill();
        drop(churn);
    }

    /// Starts it, and waits until it goes on.
    pub async fn start(&mut self) {
        let before = self.instance.lines_len();
        let stdout = self.stdout.as_ref().map(|stdout| stdout.try_clone().unwrap());
        self.instance.start_with(|command| {
            if let Some(stdout) = stdout {
                command.stdout(stdout);
            }
        });
        let since = Instant::now();
        while self.instance.lines_len() == before {
            assert!(since.elapsed() < PATIENCE, "nothing more is captured");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the other sink goes on too: it may have a way to go before that.
    async fn delivering(&self) {
        let since = Instant::now();
        while self.instance.metric("kubetide_sink_records_total", &["sink=\"it\""]) == 0.0 {
            assert!(since.elapsed() < PATIENCE, "nothing more is delivered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the other sink fails.
    async fn until_failing(&self) {
        let since = Instant::now();
        while self.instance.metric("kubetide_sink_failures_total", &["sink=\"it\""]) == 0.0 {
            assert!(since.elapsed() < PATIENCE, "it does not fail");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What there is.
    pub fn there_is(&self) -> State {
        there_is(self.server.cluster())
    }

    /// The records of the log, by their places, as the file has them: when they amount to what there is.
    pub async fn log(&self) -> BTreeMap<u64, Value> {
        logged(self.server.cluster(), &self.instance.path("out.ndjson")).await
    }
}

/// The records of the log of which this file has everything, when they amount to what is in the cluster.
pub async fn logged(cluster: &Cluster, file: &Path) -> BTreeMap<u64, Value> {
    let there_is = there_is(cluster);
    let (mut lines, mut fold, mut folded) = (Lines::of(file), Fold::default(), 0);
    let since = Instant::now();
    loop {
        let records = lines.records().await;
        records[folded..].iter().for_each(|record| fold.take(record));
        folded = records.len();
        let Some(problem) = fold.differs_from(&there_is) else { break };
        assert!(since.elapsed() < PATIENCE, "the file does not amount to what there is: {problem}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log: BTreeMap<u64, Value> = lines.records.into_iter().map(|record| (seq(&record), record)).collect();
    assert!(log.keys().copied().eq(1..=log.len() as u64), "the file has holes");
    log
}

pub fn seq(record: &Value) -> u64 {
    record["log"]["seq"].as_u64().unwrap()
}

/// Checks that records came in the order of the log, without holes, and went back by a batch at most, once per kill at most.
pub fn assert_bounded(records: &[Value], log: &BTreeMap<u64, Value>, kills: usize) -> usize {
    let (mut next, mut jumps) = (1, 0);
    for record in records {
        let seq = seq(record);
        assert!(seq <= next, "seq {next} is missing: {seq} comes instead");
        if seq < next {
            assert!(next - seq <= BATCH, "seq {seq} again after {}: more than a batch", next - 1);
            jumps += 1;
        }
        assert_eq!(Some(record), log.get(&seq), "seq {seq} is another record than in the file");
        next = seq + 1;
    }
    assert_eq!(next, log.len() as u64 + 1, "the end is missing");
    assert!(jumps <= kills, "{jumps} repetitions for {kills} kills");
    records.len() - log.len()
}

/// Checks that the very records of the log came, each once and in its order.
pub fn assert_exactly(records: &[Value], log: &BTreeMap<u64, Value>) {
    let seqs: Vec<u64> = records.iter().map(seq).collect();
    let first_wrong = seqs.iter().zip(1..).find(|(seq, expected)| **seq != *expected);
    assert_eq!(first_wrong, None, "of {} records, {} in the log", records.len(), log.len());
    assert_eq!(seqs.len(), log.len());
    assert!(records.iter().eq(log.values()), "a record is another than in the file");
}
