//! The kubetide sink for NATS JetStream.
//!
//! At least once: a bounded window of publishes that wait for their acknowledgement, deduplicated by the broker. Exactly
//! once: an atomic batch whose last message is the cursor. What the receiver gets is made in `subject` and `message`
//! without I/O; what its errors mean is in `verdict`.

mod access;
mod at_least_once;
mod config;
mod connection;
mod exactly_once;
mod letter;
mod message;
mod sink;
mod stream;
mod subject;
mod verdict;

pub use config::{CreateStream, Credentials, Discard, NatsConfig, Storage};
pub use sink::NatsSink;
pub use subject::{escape, unescape};
