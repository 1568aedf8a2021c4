//! A Kubernetes API server in a process: real HTTP/1.1 on loopback, an object store with one rising
//! resourceVersion, and faults on request. It drives `kubetide demo`, the fault tests and the benches.
//!
//! ```text
//!  Busy, tests ──▶ Cluster (objects, history) ──▶ Server (discovery, LIST, WATCH, writes) ──▶ HTTP
//!                                                    ▲ a hook per request: Fault
//! ```
//!
//! - A seed fixes everything: uids, names, sizes, actions. Time in objects comes from a virtual clock that
//!   moves with each write, never from the wall clock, so a run repeats byte for byte.
//! - Where this and kube-apiserver differ, kube-apiserver is right: one suite of protocol assertions
//!   (`tests/protocol`) runs against both.

mod api_service;
mod bend;
mod busy;
mod checkpoint;
mod cluster;
mod custom;
mod defaults;
mod dice;
mod discovery;
mod fault;
mod form;
mod history;
mod list;
mod managed;
mod manifest;
mod object;
mod options;
mod pod;
mod populate;
mod request;
mod resource;
mod response;
mod selector;
mod server;
mod shelf;
mod status;
mod watch;
mod wire;
mod write;
mod writer;

pub use busy::{Action, Busy};
pub use checkpoint::Checkpoint;
pub use cluster::{Cluster, ClusterOptions, Item};
pub use fault::{Fault, Hook};
pub use request::{RequestInfo, Verb};
pub use resource::ResourceType;
pub use server::{Requests, Server, ServerOptions};
pub use status::Status;
pub use writer::Writer;
