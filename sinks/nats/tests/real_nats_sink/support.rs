//! A stream of one test, sinks that write to it, and what is in it.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures::StreamExt as _;
use kubetide_sink::{
    Batch, Body, Control, Decision, Format, Id, Record, Scope, Sink as _, SinkError, Terms, What, sample,
};
use kubetide_sink_nats::{NatsConfig, NatsSink};
use kubetide_test_env::Nats;
use serde_json::{Value, json};

/// A server that is away for longer than this in a test will not come back.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place for one test: a server, or the way to it, and a stream with subjects of its own.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) stream: String,
}

/// A message of a stream.
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Vec<u8>,
}

impl Stored {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.as_str())
    }

    /// Its record's place in the log; none for a cursor.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.header("kubetide-seq").parse().ok()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

impl Place {
    pub(crate) fn on(nats: &Nats, name: &str) -> Self {
        Self { url: nats.url(), stream: nats.stream(name) }
    }

    /// On the server that all tests share.
    pub(crate) async fn shared(name: &str) -> Self {
        Self::on(Nats::shared().await, name)
    }

    /// The same stream by another way.
    pub(crate) fn by(&self, url: String) -> Self {
        Self { url, stream: self.stream.clone() }
    }

    /// A sink with `create_stream`, and with these keys besides.
    pub(crate) fn config(&self, more: Value) -> NatsConfig {
        let mut config = json!({
            "servers": [self.url],
            "stream": self.stream,
            "subject": format!("{}.{{cluster}}.{{group}}.{{resource}}.{{namespace}}.{{name}}", self.stream),
            "create_stream": {},
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    pub(crate) fn sink(&self, more: Value) -> NatsSink {
        NatsSink::open(&self.config(more), self.terms(false)).unwrap()
    }

    pub(crate) fn exact_sink(&self) -> NatsSink {
        NatsSink::open(&self.config(json!({})), self.terms(true)).unwrap()
    }

    pub(crate) fn terms(&self, exactly_once: bool) -> Terms {
        Terms { exactly_once, format: Format::Native, ..sample::terms(&self.stream) }
    }

    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(&self.url).await.unwrap())
    }

    /// Everything in the stream, in its order.
    pub(crate) async fn stored(&self) -> Vec<Stored> {
        let stream = self.jetstream().await.get_stream(&self.stream).await.unwrap();
        let count = usize::try_from(stream.cached_info().state.messages).unwrap();
        let consumer = stream.create_consumer(jetstream::consumer::pull::OrderedConfig::default()).await.unwrap();
        let messages = consumer.messages().await.unwrap().take(count);
        let stored = messages.map(|message| {
            let message = message.unwrap();
            let headers = message.headers.clone().unwrap_or_default();
            Stored { subject: message.subject.to_string(), headers, payload: message.payload.to_vec() }
        });
        tokio::time::timeout(PATIENCE, stored.collect()).await.unwrap()
    }

    /// The places in the log of the stored records.
    pub(crate) async fn seqs(&self) -> Vec<u64> {
        self.stored().await.iter().filter_map(Stored::seq).collect()
    }
}

/// Version `seq` of one of `objects` objects.
pub(crate) fn change(seq: u64, objects: u64) -> Record {
    let mut record = sample::record(seq, format!("{{\"seq\":{seq}}}"));
    let Body::Change(change) = &mut record.body else { unreachable!() };
    change.name = format!("pod-{}", seq % objects);
    record
}

pub(crate) fn changes(seqs: std::ops::RangeInclusive<u64>) -> Batch {
    sample::batch(seqs.map(|seq| sample::record(seq, format!("{{\"seq\":{seq}}}"))).collect())
}

pub(crate) fn control(seq: u64) -> Record {
    let what = What::SnapshotStarted;
    Record { body: Body::Control(Control { what, scope: Scope::Stream }), ..sample::record(seq, "") }
}

/// The same batch without what is durable already, as delivery sends it again.
pub(crate) fn rest(batch: &Batch, durable: usize) -> Batch {
    let records = batch.records[durable..].to_vec();
    let id = if durable == 0 { batch.id } else { Id((u128::from(batch.from) << 64 | durable as u128).to_be_bytes()) };
    Batch { id, from: records.first().map_or(batch.to, |record| record.seq), records, ..*batch }
}

/// Delivers as delivery does: again and again, less what is durable, as long as the sink asks for that.
pub(crate) async fn deliver(sink: &mut NatsSink, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
    let mut batch = batch.clone();
    let began = Instant::now();
    loop {
        match sink.deliver(&batch, cursor).await {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.decision, Decision::Retry { .. }) && began.elapsed() < PATIENCE => {
                batch = rest(&batch, error.durable);
                // The pause that delivery makes.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// How many rounds a test of kills makes.
pub(crate) fn rounds(few: u64, many: u64) -> u64 {
    if std::env::var_os("KUBETIDE_TORTURE").is_some() { many } else { few }
}
