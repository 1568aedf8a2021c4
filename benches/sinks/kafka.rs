//! `type: kafka`, beside a loop of rdkafka that produces the same messages with the same settings; and what exactly once costs.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use kubetide_sink::{Body, Carrier, Format, Record, Sink, Terms};
use kubetide_sink_kafka::{KafkaConfig, KafkaSink};
use kubetide_test_env::Kafka;
use rdkafka::{
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext},
};
use serde_json::json;

use crate::{
    delivery::{deliver, terms},
    full_log::FullLog,
    limits_by_count,
    rounds::{Lap, ROUNDS, Side, compare},
    usual_limits,
};

/// The percentage of rdkafka's own loop that the sink is to reach.
const TARGET: f64 = 80.0;
/// The percentage of at least once that exactly once is to reach.
const EXACT_TARGET: f64 = 60.0;
const PARTITIONS: i32 = 3;
/// What nobody waits longer for.
const PATIENCE: Duration = Duration::from_secs(60);
/// In the first batch, whose time does not count.
const FIRST: usize = 256;

struct Message {
    resource: String,
    key: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    timestamp: i64,
}

pub(crate) async fn measure(log: &FullLog) {
    let kafka = Kafka::start().await.unwrap();
    let batches = log.batches(usual_limits()).await;
    let messages: Vec<Message> = batches.iter().flat_map(|batch| &batch.records).map(message).collect();
    drop(batches);
    let (mut ours, mut other) = (Side::new("kubetide"), Side::new("rdkafka"));
    for round in 0..ROUNDS {
        let [sink, plain] = ["sink", "plain"].map(|side| format!("{side}-{round}"));
        let terms = terms(&format!("kafka-{round}"), false);
        ours.add(&deliver(log, open(&kafka, &sink, terms.clone()), &terms, usual_limits()).await);
        make_topics(&kafka, &plain).await;
        other.add(&tokio::task::block_in_place(|| produce(&kafka, &plain, &messages)));
        assert_eq!(stored(&kafka, &sink), messages.len() as i64);
        assert_eq!(stored(&kafka, &plain), messages.len() as i64);
    }
    let title = format!(
        "kafka: {PARTITIONS} partitions for each resource, zstd, acks=all, idempotent, linger.ms=0, batches of up to 500 records or 1 MiB"
    );
    compare(&title, &ours, &other, log.bytes_per_record, TARGET);
    drop(messages);

    let (mut exact, mut least) = (Side::new("exactly once"), Side::new("at least once"));
    for round in 0..ROUNDS {
        for (side, exactly_once) in [(&mut exact, true), (&mut least, false)] {
            let name = format!("kafka-{exactly_once}-{round}");
            let terms = terms(&name, exactly_once);
            side.add(&deliver(log, open(&kafka, &name, terms.clone()), &terms, limits_by_count()).await);
        }
    }
    compare("kafka: batches of 500 records", &exact, &least, log.bytes_per_record, EXACT_TARGET);
}

pub(crate) fn open(kafka: &Kafka, topics: &str, terms: Terms) -> Box<dyn Sink> {
    let config = json!({
        "brokers": [kafka.bootstrap()],
        "topic": format!("{topics}.{{resource}}"),
        "create_topics": {"partitions": PARTITIONS, "replication": 1},
    });
    let config: KafkaConfig = serde_json::from_value(config).unwrap();
    Box::new(KafkaSink::open(&config, terms).unwrap())
}

/// What the sink sends for a record.
fn message(record: &Record) -> Message {
    let Body::Change(change) = &record.body else { panic!("the log has changes only") };
    let message = Format::Native.message(record, Carrier::Kafka).unwrap();
    let (resource, cluster) = (record.stream.resource.clone(), &record.stream.cluster.name);
    Message {
        key: format!("{cluster}/core/{resource}/{}/{}", change.namespace, change.name),
        resource,
        headers: message.headers,
        body: message.body,
        timestamp: record.observed_at.as_millisecond(),
    }
}

fn client(kafka: &Kafka) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", kafka.bootstrap());
    client
}

async fn make_topics(kafka: &Kafka, topics: &str) {
    let admin: AdminClient<DefaultClientContext> = client(kafka).create().unwrap();
    let names = ["pods", "configmaps"].map(|resource| format!("{topics}.{resource}"));
    let new = names.each_ref().map(|name| NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1)));
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    for made in admin.create_topics(&new, &options).await.unwrap() {
        made.unwrap();
    }
}

/// Counts what is acknowledged.
#[derive(Default)]
struct Acknowledged(AtomicUsize);

impl ClientContext for Acknowledged {}

impl ProducerContext for Acknowledged {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn produce(kafka: &Kafka, topics: &str, messages: &[Message]) -> Lap {
    let mut client = client(kafka);
    for (name, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("message.timeout.ms", "0"),
        ("partitioner", "murmur2_random"),
        ("compression.type", "zstd"),
        ("linger.ms", "0"),
        ("batch.size", "1000000"),
        ("message.max.bytes", "8388608"),
        ("queue.buffering.max.kbytes", "32768"),
    ] {
        client.set(name, value);
    }
    let producer: BaseProducer<Acknowledged> = client.create_with_context(Acknowledged::default()).unwrap();
    let send = |Message { resource, key, headers, body, timestamp }: &Message| {
        let mut owned = OwnedHeaders::new_with_capacity(headers.len());
        for (key, value) in headers {
            owned = owned.insert(Header { key, value: Some(value) });
        }
        let topic = format!("{topics}.{resource}");
        let mut record = BaseRecord::to(&topic).key(key).payload(body).timestamp(*timestamp).headers(owned);
        loop {
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    producer.poll(Duration::from_millis(100));
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
        producer.poll(Duration::ZERO);
    };
    let (first, rest) = messages.split_at(FIRST);
    first.iter().for_each(send);
    producer.flush(PATIENCE).unwrap();
    let begun = Instant::now();
    rest.iter().for_each(send);
    producer.flush(PATIENCE).unwrap();
    let took = begun.elapsed();
    assert_eq!(producer.context().0.load(Ordering::Relaxed), messages.len());
    Lap { records: rest.len(), took, in_sink: None }
}

/// How many messages are in the topics of one side.
fn stored(kafka: &Kafka, topics: &str) -> i64 {
    let producer: BaseProducer = client(kafka).create().unwrap();
    let of = |resource: &str, partition| {
        let topic = format!("{topics}.{resource}");
        let (low, high) = producer.client().fetch_watermarks(&topic, partition, PATIENCE).unwrap();
        high - low
    };
    (0..PARTITIONS).map(|partition| of("pods", partition) + of("configmaps", partition)).sum()
}
