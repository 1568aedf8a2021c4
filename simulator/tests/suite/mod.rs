//! The protocol as kubetide relies on it, asserted over raw HTTP. Two test targets include this module: one runs it
//! against the simulator, the other against the real kube-apiserver. Each gives `crate::subject()`, a server with
//! a namespace of the test's own, and `crate::forgetful()`, one whose history can be forgotten.

mod api_service;
mod definition;
mod discovery;
mod forgetting;
mod list;
mod metadata;
mod selection;
mod subject;
mod watch;
mod write;

pub use subject::Subject;
