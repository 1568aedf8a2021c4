//! The built binary and a real nats-server: exactly once, through kills of the process and of the server, with a volume that is lost
//! or restored, and beside a rival; at least once, and in order stops.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod pipeline;

use async_nats::jetstream;
use instance::BATCH;
use kubetide_test_env::Nats;
use pipeline::{
    Pipeline, assert_bounded, assert_exactly, deliveries,
    hang::a_server_that_hangs,
    kills,
    losses::{a_lost_volume, a_restored_volume},
    receiver::Receiver,
    rivals::{First, the_newer_one_goes_on},
};
use serde_json::Value;

fn sink(nats: &Nats, stream: &str, delivery: &str) -> String {
    format!(
        "{{name: it, type: nats, servers: ['{}'], stream: {stream}, subject: '{stream}.{{cluster}}.{{group}}.{{resource}}.{{namespace}}.{{name}}', \
         create_stream: {{}}, delivery: {delivery}, batch: {{max_records: {BATCH}, max_wait_ms: 20}}, retry: {{initial_ms: 20, max_ms: 500}}}}",
        nats.url()
    )
}

/// The records of a stream.
struct Stored {
    jetstream: jetstream::Context,
    stream: String,
    /// The place in the stream up to which it was read.
    read: u64,
    records: Vec<Value>,
}

impl Stored {
    async fn of(nats: &Nats, stream: &str) -> Self {
        let client = async_nats::connect(nats.url()).await.unwrap();
        Self { jetstream: jetstream::new(client), stream: stream.into(), read: 0, records: Vec::new() }
    }
}

impl Receiver for Stored {
    async fn records(&mut self) -> &[Value] {
        // Before the first batch there is none.
        if let Ok(mut stream) = self.jetstream.get_stream(&self.stream).await {
            let last = stream.info().await.unwrap().state.last_sequence;
            for sequence in self.read + 1..=last {
                let message = stream.get_raw_message(sequence).await.unwrap();
                if !message.subject.as_str().contains("._cursor.") {
                    self.records.push(serde_json::from_slice(&message.payload).unwrap());
                }
            }
            self.read = last;
        }
        &self.records
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_server_kills_leave_each_record_there_exactly_once() {
    let kills = kills(10, 100);
    let nats = Nats::start().await.unwrap();
    let mut pipeline = Pipeline::new(&sink(&nats, "once", "exactly_once")).await;
    let restart = async |kill: usize| {
        if kill % 10 == 5 {
            nats.restart().await.unwrap();
        }
    };
    pipeline.run_through(kills, restart).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    assert_exactly(Stored::of(&nats, "once").await.records().await, &log);
    println!("{kills} kills: {} records, each once", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_kills_repeat_nothing_that_the_server_still_remembers_and_lose_nothing() {
    let kills = kills(10, 100);
    let nats = Nats::shared().await;
    let stream = nats.stream("least");
    let mut pipeline = Pipeline::new(&sink(nats, &stream, "at_least_once")).await;
    pipeline.run_through(kills, async |_| {}).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    // Nobody was away for longer than the server's window for duplicates.
    assert_eq!(assert_bounded(Stored::of(nats, &stream).await.records().await, &log, kills), 0);
    println!("{kills} kills: {} records, none repeated", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_repeat_nothing_and_lose_nothing() {
    for delivery in ["at_least_once", "exactly_once"] {
        let nats = Nats::start().await.unwrap();
        let mut pipeline = Pipeline::new(&sink(&nats, "stopped", delivery)).await;
        pipeline.stop_and_go(kills(2, 20)).await;
        assert_exactly(Stored::of(&nats, "stopped").await.records().await, &pipeline.log().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_under_load_is_given_everything_once() {
    for delivery in deliveries() {
        let nats = Nats::start().await.unwrap();
        let mut pipeline = Pipeline::new(&sink(&nats, "hung", delivery)).await;
        let port = format!("--port={}", nats.address().port());
        a_server_that_hangs(&mut pipeline, &mut Stored::of(&nats, "hung").await, |line| line.contains(&port)).await;
    }
}

// The subject of a cursor is made of the names of cluster and sink, so that exactly once asks for a server of its own.

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_lost_is_told_as_a_gap_and_the_new_log_comes_whole() {
    let nats = Nats::start().await.unwrap();
    let mut pipeline = Pipeline::new(&sink(&nats, "lost", "exactly_once")).await;
    a_lost_volume(&mut pipeline, &mut Stored::of(&nats, "lost").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_restored_is_told_as_a_gap_and_its_log_comes_whole() {
    let nats = Nats::start().await.unwrap();
    let mut pipeline = Pipeline::new(&sink(&nats, "restored", "exactly_once")).await;
    a_restored_volume(&mut pipeline, &mut Stored::of(&nats, "restored").await, async |_, _| {}).await;
}

/// By then the log is longer than it was, and another process is to find it so.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_restored_while_the_receiver_was_away_is_told_as_a_gap_all_the_same() {
    let nats = Nats::start().await.unwrap();
    let mut pipeline = Pipeline::new(&sink(&nats, "late", "exactly_once")).await;
    let meanwhile = async |pipeline: &mut Pipeline, last: u64| {
        nats.stop();
        pipeline.outgrow(last).await;
        nats.start_again().await.unwrap();
    };
    a_restored_volume(&mut pipeline, &mut Stored::of(&nats, "late").await, meanwhile).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_with_one_sink_the_newer_goes_on_and_the_older_ends() {
    for first in [First::Writes, First::Sleeps] {
        let nats = Nats::start().await.unwrap();
        let mut pipeline = Pipeline::new(&sink(&nats, "rivals", "exactly_once")).await;
        the_newer_one_goes_on(&mut pipeline, &mut Stored::of(&nats, "rivals").await, first).await;
    }
}
