//! What each sink takes from a full log, beside the client library's own producer loop with the same bytes, in one run; what
//! exactly once costs; and how long a change takes that finds everything idle.
//!
//! `cargo bench --bench sinks -- kafka latency` makes these parts alone.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and fails by panicking")]

#[path = "sinks/delivery.rs"]
mod delivery;
#[path = "sinks/file.rs"]
mod file;
#[path = "sinks/full_log.rs"]
mod full_log;
#[path = "sinks/kafka.rs"]
mod kafka;
#[path = "sinks/latency.rs"]
mod latency;
#[path = "sinks/nats.rs"]
mod nats;
#[path = "sinks/rounds.rs"]
mod rounds;
#[path = "sinks/webhook.rs"]
mod webhook;

use std::{num::NonZeroUsize, time::Duration};

use full_log::FullLog;
use kubetide::{config, delivery::Limits};

// As in the program itself.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() {
    // `cargo test --benches` and `cargo bench -- --list` only want to know that it is there.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wants = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    let log = FullLog::write().await;
    println!("{}", log.description());
    if wants("file") {
        file::measure(&log).await;
    }
    if wants("webhook") {
        webhook::measure(&log).await;
    }
    if wants("nats") {
        nats::measure(&log).await;
    }
    if wants("kafka") {
        kafka::measure(&log).await;
    }
    if wants("latency") {
        latency::measure().await;
    }
}

/// As a sink has them that says nothing else.
fn usual_limits() -> Limits {
    let config::Batch { max_records, max_bytes, max_wait_ms } = config::Batch::default();
    Limits { max_records: max_records.get(), max_bytes: max_bytes.get(), max_wait: Duration::from_millis(max_wait_ms) }
}

/// 500 records, whatever their size.
fn limits_by_count() -> Limits {
    const RECORDS: NonZeroUsize = NonZeroUsize::new(500).unwrap();
    Limits { max_records: RECORDS.get(), max_bytes: usize::MAX, ..usual_limits() }
}
