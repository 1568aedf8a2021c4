//! The built binary and a real Kafka: exactly once, through kills of the process and of the broker, with a volume that is lost or
//! restored, and beside a rival; at least once, and in order stops.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod pipeline;

use std::time::Duration;

use instance::BATCH;
use kubetide_test_env::Kafka;
use pipeline::{
    Pipeline, assert_bounded, assert_exactly, deliveries,
    hang::a_server_that_hangs,
    kills,
    losses::{a_lost_volume, a_restored_volume},
    receiver::Receiver,
    rivals::{First, the_newer_one_goes_on},
};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
};
use serde_json::Value;

fn sink(kafka: &Kafka, topic: &str, delivery: &str) -> String {
    format!(
        "{{name: it, type: kafka, brokers: ['{}'], topic: {topic}, create_topics: {{partitions: 1, replication: 1}}, delivery: {delivery}, \
         batch: {{max_records: {BATCH}, max_wait_ms: 20}}, retry: {{initial_ms: 20, max_ms: 500}}}}",
        kafka.bootstrap()
    )
}

/// The committed messages of a topic with one partition.
struct Committed {
    bootstrap: String,
    topic: String,
    /// The offset of the next message.
    next: i64,
    records: Vec<Value>,
}

impl Committed {
    fn of(kafka: &Kafka, topic: &str) -> Self {
        Self { bootstrap: kafka.bootstrap(), topic: topic.into(), next: 0, records: Vec::new() }
    }

    /// Reads up to the end as it is now. A consumer is told of the end only if nothing more comes meanwhile, and only once.
    fn read(&mut self) {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .set("group.id", "test")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .create()
            .unwrap();
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(&self.topic, 0, Offset::Offset(self.next)).unwrap();
        consumer.assign(&all).unwrap();
        // There is no topic before the first batch.
        let Ok((_, end)) = consumer.fetch_watermarks(&self.topic, 0, Duration::from_secs(60)) else { return };
        while self.next < end {
            match consumer.poll(Duration::from_secs(60)).expect("an answer in time") {
                Ok(message) => {
                    self.next = message.offset() + 1;
                    self.records.push(serde_json::from_slice(message.payload().unwrap()).unwrap());
                }
                Err(KafkaError::PartitionEOF(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Receiver for Committed {
    async fn records(&mut self) -> &[Value] {
        tokio::task::block_in_place(|| self.read());
        &self.records
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_broker_kills_leave_each_record_there_exactly_once() {
    let kills = kills(10, 100);
    let kafka = Kafka::start().await.unwrap();
    let mut pipeline = Pipeline::new(&sink(&kafka, "once", "exactly_once")).await;
    let restart = async |kill: usize| {
        if kill % 10 == 5 {
            kafka.restart().await.unwrap();
        }
    };
    pipeline.run_through(kills, restart).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    assert_exactly(Committed::of(&kafka, "once").records().await, &log);
    // And as Kafka's own consumer sees it.
    let lines = kafka.console_consumer("once").await.unwrap();
    let seen: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()).collect();
    assert_exactly(&seen, &log);
    println!("{kills} kills: {} records, each once", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_kills_repeat_at_most_a_batch_each_and_lose_nothing() {
    let kills = kills(10, 100);
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("least");
    let mut pipeline = Pipeline::new(&sink(kafka, &topic, "at_least_once")).await;
    pipeline.run_through(kills, async |_| {}).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    let repeated = assert_bounded(Committed::of(kafka, &topic).records().await, &log, kills);
    println!("{kills} kills: {} records, {repeated} repeated", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_repeat_nothing_and_lose_nothing() {
    let kafka = Kafka::shared().await;
    for delivery in ["at_least_once", "exactly_once"] {
        let topic = kafka.topic("stopped");
        let mut pipeline = Pipeline::new(&sink(kafka, &topic, delivery)).await;
        pipeline.stop_and_go(kills(2, 20)).await;
        assert_exactly(Committed::of(kafka, &topic).records().await, &pipeline.log().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_lost_is_told_as_a_gap_and_the_new_log_comes_whole() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("lost");
    let mut pipeline = Pipeline::new(&sink(kafka, &topic, "exactly_once")).await;
    a_lost_volume(&mut pipeline, &mut Committed::of(kafka, &topic)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_restored_is_told_as_a_gap_and_its_log_comes_whole() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("restored");
    let mut pipeline = Pipeline::new(&sink(kafka, &topic, "exactly_once")).await;
    a_restored_volume(&mut pipeline, &mut Committed::of(kafka, &topic), async |_, _| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_with_one_sink_the_newer_goes_on_and_the_older_ends() {
    let kafka = Kafka::shared().await;
    for first in [First::Writes, First::Sleeps] {
        let topic = kafka.topic("rivals");
        let mut pipeline = Pipeline::new(&sink(kafka, &topic, "exactly_once")).await;
        the_newer_one_goes_on(&mut pipeline, &mut Committed::of(kafka, &topic), first).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_under_load_is_given_everything_once() {
    let kafka = Kafka::start().await.unwrap();
    // Its command line names the file that names its port.
    let is_it = |line: &str| {
        let properties =
            line.split(' ').find(|word| line.contains(" kafka.Kafka ") && word.ends_with("server.properties"));
        properties.is_some_and(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(&kafka.bootstrap())))
    };
    for delivery in deliveries() {
        let mut pipeline = Pipeline::new(&sink(&kafka, delivery, delivery)).await;
        a_server_that_hangs(&mut pipeline, &mut Committed::of(&kafka, delivery), is_it).await;
    }
}
