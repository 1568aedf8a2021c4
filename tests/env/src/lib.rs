//! Real servers for the tests: kube-apiserver with etcd, kube-controller-manager, Kafka and nats-server, on loopback, and
//! a TCP proxy to spoil the way to them.
//!
//! A server is a value. It starts on a free port, is ready when `start` returns, and dies with its owner: on drop, on
//! panic, and when the owning process is killed with SIGKILL. Its logs are kept when the owning test panics. A server
//! that is not on this machine is an error that names the command to get it; no test passes by skipping.
//!
//! `shared()` is one instance per test binary: take an own namespace, topic or stream from it. A test that stops,
//! restarts or compacts a server starts its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test support: a broken invariant here should fail the test that met it"
)]

mod api_service;
mod apiserver;
mod backup;
mod certificate;
mod controller_manager;
mod crd;
mod discovery;
mod etcd;
mod kafka;
mod kafka_door;
mod kubeconfig;
mod locate;
mod nats;
mod nats_tls;
mod poll;
mod port;
mod process;
mod proxy;
mod requests;
mod scratch;
mod service_account;
mod user;
mod webhook;
mod webhook_answer;
mod webhook_connection;
mod webhook_tls;

pub use apiserver::{Apiserver, Builder};
pub use backup::Backup;
pub use certificate::{ClientCertificate, Validity};
pub use controller_manager::ControllerManager;
pub use crd::Crd;
pub use kafka::Kafka;
pub use kafka_door::{Door, Guard};
pub use nats::Nats;
pub use nats_tls::NatsTls;
pub use proxy::{Mode, Proxy};
pub use requests::RequestCounts;
pub use user::{Grant, User};
pub use webhook::WebhookReceiver;
pub use webhook_answer::{Answer, Posted};
pub use webhook_tls::{PrivateAuthority, ServerTls};

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that no other caller has, in this process or in another.
fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// `prefix-` and a suffix that no other test has; fit for a Kubernetes name, a topic and a stream.
fn unique_name(prefix: &str) -> String {
    format!("{prefix}-{:08x}", unique() as u32)
}
