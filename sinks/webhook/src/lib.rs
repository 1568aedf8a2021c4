//! The sink for webhooks: each batch is one signed POST of a JSON array.
//!
//! `config` and `credentials` say where to and with what, `message` makes the body and its signature, `client` is the
//! connection, `answer` turns what comes back into a decision, `sink` ties them together.

mod answer;
mod client;
mod config;
mod credentials;
mod message;
mod sink;

pub use config::{Auth, Compression, Secrets, WebhookConfig};
pub use sink::WebhookSink;
