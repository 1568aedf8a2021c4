//! Kafka as a value: it starts, round-trips a message, keeps it over a kill, and dies with its owner.
#![allow(clippy::unwrap_used, reason = "tests")]

mod owner;

use std::time::Duration;

use kubetide_test_env::Kafka;
use rdkafka::ClientConfig;
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);

async fn produce(bootstrap: &str, topic: &str, payload: &str) {
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let record = FutureRecord::to(topic).key("key").payload(payload);
    producer.send(record, SOON).await.unwrap();
}

async fn first_message(bootstrap: &str, topic: &str) -> Vec<u8> {
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", format!("readers-of-{topic}"))
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let message = tokio::time::timeout(SOON, consumer.recv()).await.unwrap().unwrap();
    message.payload().unwrap().to_vec()
}

#[tokio::test]
async fn kafka_starts_and_round_trips_one_message() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("round-trip");
    produce(&kafka.bootstrap(), &topic, "hello").await;
    assert_eq!(first_message(&kafka.bootstrap(), &topic).await, b"hello");
}

#[tokio::test]
async fn a_message_outlives_a_killed_broker() {
    let kafka = Kafka::start_with(&[("num.partitions", "3")]).await.unwrap();
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("kept"));
    produce(&bootstrap, &topic, "kept").await;
    kafka.stop();
    assert!(tokio::net::TcpStream::connect(kafka.address()).await.is_err());
    kafka.start_again().await.unwrap();
    assert_eq!(kafka.bootstrap(), bootstrap);
    assert_eq!(first_message(&bootstrap, &topic).await, b"kept");
}

#[tokio::test]
async fn properties_given_at_the_start_win() {
    let kafka = Kafka::start_with(&[("num.partitions", "3"), ("offsets.topic.num.partitions", "2")]).await.unwrap();
    let topic = kafka.topic("wide");
    produce(&kafka.bootstrap(), &topic, "hello").await;
    assert_eq!(first_message(&kafka.bootstrap(), &topic).await, b"hello");
    let partitions = tokio::task::spawn_blocking(move || {
        let consumer: StreamConsumer =
            ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap();
        let of = |topic: &str| {
            let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
            metadata.topics()[0].partitions().len()
        };
        (of(&topic), of("__consumer_offsets"))
    })
    .await
    .unwrap();
    assert_eq!(partitions, (3, 2));
}

#[test]
fn kafka_dies_when_its_owner_is_killed_with_sigkill() {
    owner::nothing_outlives_its_owner("kafka", &["java"], Signal::KILL);
}
