//! What the tests with a real broker share: sinks, records with known places, and a reader of whole topics.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use kubetide_sink::{
    Batch, Body, Control, Decision, Op, Record, Scope, Sink as _, SinkError, Stream, Terms, What, sample,
};
use kubetide_sink_kafka::{KafkaConfig, KafkaSink};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication},
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    message::Headers as _,
};
use serde_json::{Value, json};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A configuration with these keys besides `brokers`, `topic` and `create_topics` with three partitions.
pub(crate) fn config(bootstrap: &str, topic: &str, more: Value) -> KafkaConfig {
    let mut config =
        json!({"brokers": [bootstrap], "topic": topic, "create_topics": {"partitions": 3, "replication": 1}});
    let members = config.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    members.retain(|_, value| !value.is_null());
    serde_json::from_value(config).unwrap()
}

pub(crate) fn sink(bootstrap: &str, topic: &str, more: Value) -> KafkaSink {
    KafkaSink::open(&config(bootstrap, topic, more), sample::terms("kafka")).unwrap()
}

/// The state of an object as of a place in the log, of about so many bytes.
pub(crate) fn state(seq: u64, object: u64, bytes: usize) -> Record {
    let filler = "x".repeat(bytes);
    edited(sample::record(seq, format!("{{\"a\":\"{filler}\"}}")), object, |_| {})
}

/// The same, of bytes that cannot be compressed.
pub(crate) fn dense(seq: u64, object: u64, bytes: usize) -> Record {
    let mut random = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        text.push_str(&format!("{random:016x}"));
    }
    edited(sample::record(seq, format!("{{\"a\":\"{text}\"}}")), object, |_| {})
}

pub(crate) fn deleted(seq: u64, object: u64) -> Record {
    edited(sample::record(seq, "{\"a\":1}"), object, |op| *op = Op::Delete)
}

fn edited(mut record: Record, object: u64, op: impl FnOnce(&mut Op)) -> Record {
    let Body::Change(change) = &mut record.body else { unreachable!() };
    change.name = format!("pod-{object}");
    op(&mut change.op);
    record
}

pub(crate) fn control(seq: u64, stream: Stream, scope: Scope) -> Record {
    let body = Body::Control(Control { what: What::SnapshotStarted, scope });
    Record { stream: Arc::new(stream), body, ..sample::record(seq, "{}") }
}

/// So many states of so many objects, in turn.
pub(crate) fn states(from: u64, to: u64, objects: u64) -> Batch {
    sample::batch((from..=to).map(|seq| state(seq, seq % objects, 200)).collect())
}

/// Delivers as delivery would: the same again as long as it is to be retried, less what is durable. What is durable in the end is
/// counted from the front of the batch that was given.
pub(crate) async fn insist(sink: &mut KafkaSink, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
    let (mut batch, mut durable) = (batch.clone(), 0);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < 2 * SOON, "it comes to no end");
        match sink.deliver(&batch, cursor).await {
            Err(SinkError { decision: Decision::Retry { .. }, durable: more, .. }) => {
                if more > 0 {
                    durable += more;
                    batch = sample::batch(batch.records.split_off(more));
                }
            }
            Err(error) => return Err(SinkError { durable: durable + error.durable, ..error }),
            Ok(()) => return Ok(()),
        }
    }
}

/// One message of a topic.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) timestamp: Option<i64>,
}

impl Got {
    pub(crate) fn seq(&self) -> u64 {
        self.headers["kubetide-seq"].parse().unwrap()
    }
}

/// All that is in a topic now, partition by partition, as a reader of committed messages sees it.
pub(crate) async fn read(bootstrap: &str, topic: &str) -> Vec<Got> {
    read_as(bootstrap, topic, "read_committed").await
}

pub(crate) async fn read_as(bootstrap: &str, topic: &str, isolation: &str) -> Vec<Got> {
    let (bootstrap, topic, isolation) = (bootstrap.to_owned(), topic.to_owned(), isolation.to_owned());
    tokio::task::spawn_blocking(move || read_now(&bootstrap, &topic, &isolation)).await.unwrap()
}

fn read_now(bootstrap: &str, topic: &str, isolation: &str) -> Vec<Got> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "reader")
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
    let partitions: Vec<i32> = metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
    assert!(!partitions.is_empty(), "the topic {topic} is not there");
    let mut list = TopicPartitionList::new();
    for partition in &partitions {
        list.add_partition_offset(topic, *partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut all, mut ended) = (Vec::new(), 0);
    while ended < partitions.len() {
        match consumer.poll(SOON) {
            Some(Ok(message)) => all.push(got(&message)),
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{error}"),
            None => panic!("nothing in a minute"),
        }
    }
    all.sort_by_key(|(partition, offset, _)| (*partition, *offset));
    all.into_iter().map(|(_, _, got)| got).collect()
}

fn got(message: &rdkafka::message::BorrowedMessage<'_>) -> (i32, i64, Got) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let headers = message
        .headers()
        .map(|headers| headers.iter().map(|header| (header.key.to_owned(), text(header.value.unwrap()))).collect());
    let got = Got {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        key: text(message.key().unwrap()),
        value: message.payload().map(text),
        headers: headers.unwrap_or_default(),
        timestamp: message.timestamp().to_millis(),
    };
    (message.partition(), message.offset(), got)
}

/// What was written, by object, in the order of its partition. Panics if states of an object are in several partitions.
pub(crate) fn by_object(all: &[Got]) -> BTreeMap<String, Vec<u64>> {
    let mut objects: BTreeMap<String, (i32, Vec<u64>)> = BTreeMap::new();
    for got in all {
        let (partition, seqs) = objects.entry(got.key.clone()).or_insert((got.partition, Vec::new()));
        assert_eq!(*partition, got.partition, "{} is in two partitions", got.key);
        seqs.push(got.seq());
    }
    objects.into_iter().map(|(key, (_, seqs))| (key, seqs)).collect()
}

/// Every place once and in order, for each object.
pub(crate) fn assert_exactly(all: &[Got], from: u64, to: u64, objects: u64) {
    let by_object = by_object(all);
    let mut seen = 0;
    for (key, seqs) in &by_object {
        assert!(seqs.is_sorted_by(|a, b| a < b), "{key}: {seqs:?}");
        seen += seqs.len();
    }
    assert_eq!(seen as u64, to - from + 1, "nothing is missing and nothing is there twice");
    assert_eq!(by_object.len() as u64, objects);
}

pub(crate) async fn make_topic(bootstrap: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (key, value) in settings {
        new = new.set(key, value);
    }
    let made = admin.create_topics([&new], &AdminOptions::new()).await.unwrap();
    assert!(made[0].is_ok(), "{made:?}");
}

pub(crate) fn exactly_once(name: &str) -> Terms {
    Terms { exactly_once: true, ..sample::terms(name) }
}

pub(crate) async fn set_topic(bootstrap: &str, topic: &str, key: &str, value: &str) {
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let setting = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(key, value);
    let set = admin.alter_configs([&setting], &AdminOptions::new()).await.unwrap();
    assert!(set[0].is_ok(), "{set:?}");
}
