//! nats-server as a value: it starts, round-trips a message, keeps it over a kill, and dies with its owner.
#![allow(clippy::unwrap_used, reason = "tests")]

mod owner;

use async_nats::jetstream;
use futures::StreamExt;
use kubetide_test_env::Nats;
use rustix::process::Signal;

async fn publish(url: &str, stream: &str, payload: &'static str) {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let config = jetstream::stream::Config {
        name: stream.to_owned(),
        subjects: vec![format!("{stream}.>")],
        ..Default::default()
    };
    context.get_or_create_stream(config).await.unwrap();
    let subject = format!("{stream}.greeting");
    let ack = context.publish(subject, payload.into()).await.unwrap();
    assert_eq!(ack.await.unwrap().stream, stream);
}

async fn first_message(url: &str, stream: &str) -> Vec<u8> {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = context.get_stream(stream).await.unwrap();
    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    messages.next().await.unwrap().unwrap().payload.to_vec()
}

#[tokio::test]
async fn nats_starts_and_round_trips_one_message_through_jetstream() {
    let nats = Nats::shared().await;
    let stream = nats.stream("round-trip");
    publish(&nats.url(), &stream, "hello").await;
    assert_eq!(first_message(&nats.url(), &stream).await, b"hello");
}

#[tokio::test]
async fn the_shared_server_serves_a_second_test_with_a_runtime_of_its_own() {
    let nats = Nats::shared().await;
    let stream = nats.stream("second");
    publish(&nats.url(), &stream, "again").await;
    assert_eq!(first_message(&nats.url(), &stream).await, b"again");
}

#[tokio::test]
async fn a_stream_outlives_a_killed_nats_server() {
    let nats = Nats::start().await.unwrap();
    let (url, stream) = (nats.url(), nats.stream("kept"));
    publish(&url, &stream, "kept").await;
    nats.stop();
    assert!(tokio::net::TcpStream::connect(nats.address()).await.is_err());
    nats.start_again().await.unwrap();
    assert_eq!(nats.url(), url);
    assert_eq!(first_message(&url, &stream).await, b"kept");
}

#[test]
fn nats_server_dies_when_its_owner_is_killed_with_sigkill() {
    owner::nothing_outlives_its_owner("nats", &["nats-server"], Signal::KILL);
}

#[test]
fn nats_server_dies_when_its_owner_is_interrupted() {
    owner::nothing_outlives_its_owner("nats", &["nats-server"], Signal::INT);
}
