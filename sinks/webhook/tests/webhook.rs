//! The webhook against a receiver that answers anything: what is sent, what each answer means, and that nothing is sent twice
//! or to anybody else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "webhook/answers.rs"]
mod answers;
#[path = "webhook/connections.rs"]
mod connections;
#[path = "webhook/credentials.rs"]
mod credentials;
#[path = "webhook/page.rs"]
mod page;
#[path = "webhook/requests.rs"]
mod requests;
#[path = "webhook/tls.rs"]
mod tls;

use std::path::PathBuf;

use kubetide_sink::{Batch, ConfigProblem, Record, Sink as _, SinkError, sample};
use kubetide_sink_webhook::{WebhookConfig, WebhookSink};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The keys: this URL, and whatever else.
fn config(url: &str, more: &Value) -> WebhookConfig {
    let mut keys = json!({ "url": url });
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(keys).unwrap()
}

fn open(url: &str, more: &Value) -> Result<WebhookSink, ConfigProblem> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    WebhookSink::open(&config(url, more), sample::terms("hook"))
}

fn sink(url: &str, more: &Value) -> WebhookSink {
    open(url, more).unwrap()
}

async fn deliver(sink: &mut WebhookSink, batch: &Batch) -> Result<(), SinkError> {
    sink.deliver(batch, None).await
}

async fn refused(sink: &mut WebhookSink, batch: &Batch) -> SinkError {
    deliver(sink, batch).await.unwrap_err()
}

fn small(seq: u64) -> Record {
    sample::record(seq, format!(r#"{{"a":{seq}}}"#))
}

/// The batch of these places in the log.
fn batch(seqs: impl IntoIterator<Item = u64>) -> Batch {
    sample::batch(seqs.into_iter().map(small).collect())
}

/// Files with credentials, which tests replace.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A reference to this file.
    fn reference(&self, name: &str, content: impl AsRef<[u8]>) -> Value {
        json!({"file": self.write(name, content)})
    }
}
