//! `type: nats`, beside a loop of async-nats that publishes the same messages with as many acknowledgements outstanding; and what
//! exactly once costs.

use std::{collections::VecDeque, time::Instant};

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use kubetide_sink::{Body, Carrier, Format, Record, Sink, Terms};
use kubetide_sink_nats::{NatsConfig, NatsSink};
use kubetide_test_env::Nats;
use serde_json::json;

use crate::{
    delivery::{deliver, terms},
    full_log::FullLog,
    limits_by_count,
    rounds::{Lap, ROUNDS, Side, compare},
    usual_limits,
};

/// The percentage of async-nats' own loop that the sink is to reach.
const TARGET: f64 = 70.0;
/// The percentage of at least once that exactly once is to reach.
const EXACT_TARGET: f64 = 60.0;
/// As many as the sink has.
const IN_FLIGHT: usize = 256;
const STREAM: &str = "KUBETIDE";
/// In the first batch, whose time does not count.
const FIRST: usize = 256;

#[derive(Clone)]
struct Message {
    subject: String,
    headers: HeaderMap,
    body: Bytes,
}

/// What a stream holds.
type Stored = (u64, u64);

pub(crate) async fn measure(log: &FullLog) {
    let nats = Nats::start().await.unwrap();
    let server = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let batches = log.batches(usual_limits()).await;
    let messages: Vec<Message> = batches.iter().flat_map(|batch| &batch.records).map(message).collect();
    drop(batches);
    let (mut ours, mut other) = (Side::new("kubetide"), Side::new("async-nats"));
    for round in 0..ROUNDS {
        let terms = terms(&format!("nats-{round}"), false);
        ours.add(&deliver(log, open(&nats, terms.clone()), &terms, usual_limits()).await);
        let by_ours = emptied(&server).await;
        other.add(&tokio::spawn(publish(nats.url(), messages.clone())).await.unwrap());
        assert_eq!(emptied(&server).await, by_ours, "both sides have sent the same");
    }
    let title = format!(
        "nats: JetStream in files, {IN_FLIGHT} acknowledgements outstanding, batches of up to 500 records or 1 MiB"
    );
    compare(&title, &ours, &other, log.bytes_per_record, TARGET);
    drop(messages);

    let (mut exact, mut least) = (Side::new("exactly once"), Side::new("at least once"));
    for round in 0..ROUNDS {
        for (side, exactly_once) in [(&mut exact, true), (&mut least, false)] {
            let terms = terms(&format!("nats-{exactly_once}-{round}"), exactly_once);
            side.add(&deliver(log, open(&nats, terms.clone()), &terms, limits_by_count()).await);
            emptied(&server).await;
        }
    }
    compare("nats: batches of 500 records", &exact, &least, log.bytes_per_record, EXACT_TARGET);
}

pub(crate) fn open(nats: &Nats, terms: Terms) -> Box<dyn Sink> {
    let config = json!({"servers": [nats.url()], "stream": STREAM, "create_stream": {}});
    let config: NatsConfig = serde_json::from_value(config).unwrap();
    Box::new(NatsSink::open(&config, terms).unwrap())
}

/// What the sink sends for a record.
fn message(record: &Record) -> Message {
    let Body::Change(change) = &record.body else { panic!("the log has changes only") };
    let message = Format::Native.message(record, Carrier::Nats).unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in message.headers {
        headers.insert(name, value);
    }
    headers.insert("Nats-Expected-Stream", STREAM);
    headers.insert("Nats-Msg-Id", record.id.to_string());
    let (stream, namespace, name) = (&record.stream, &change.namespace, &change.name);
    let subject = format!("kubetide.{}.core.{}.{namespace}.{name}", stream.cluster.name, stream.resource);
    Message { subject, headers, body: message.body.into() }
}

async fn publish(url: String, messages: Vec<Message>) -> Lap {
    let server = jetstream::new(async_nats::connect(url).await.unwrap());
    let config = jetstream::stream::Config {
        name: STREAM.into(),
        subjects: vec!["kubetide.>".into()],
        ..jetstream::stream::Config::default()
    };
    server.create_stream(config).await.unwrap();
    let records = messages.len() - FIRST;
    let mut outstanding = VecDeque::with_capacity(IN_FLIGHT);
    let mut begun = Instant::now();
    for (index, Message { subject, headers, body }) in messages.into_iter().enumerate() {
        if index == FIRST {
            for acknowledgement in outstanding.drain(..) {
                stored(acknowledgement).await;
            }
            begun = Instant::now();
        }
        if outstanding.len() == IN_FLIGHT {
            stored(outstanding.pop_front().unwrap()).await;
        }
        outstanding.push_back(server.publish_with_headers(subject, headers, body).await.unwrap());
    }
    for acknowledgement in outstanding {
        stored(acknowledgement).await;
    }
    Lap { records, took: begun.elapsed(), in_sink: None }
}

async fn stored(acknowledgement: jetstream::context::PublishAckFuture) {
    assert!(!acknowledgement.await.unwrap().duplicate);
}

/// Removes the stream, with what it knows of messages that come again, and says what was in it.
async fn emptied(server: &jetstream::Context) -> Stored {
    let state = server.get_stream(STREAM).await.unwrap().get_info().await.unwrap().state;
    server.delete_stream(STREAM).await.unwrap();
    (state.messages, state.bytes)
}
