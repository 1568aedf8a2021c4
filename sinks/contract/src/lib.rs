//! What a kubetide sink is: the record it is given, the trait it implements, the formats it may write.
//!
//! This crate knows nothing of Kubernetes clients, stream positions or the log. A sink is handed a batch,
//! writes it, and says whether it is durable; it cannot get a checkpoint wrong because it never sees one.

pub mod format;
mod record;
pub mod sample;
mod sink;

pub use record::{
    Actor, Body, Change, Class, Cluster, Control, Counts, Difference, From, Id, Op, Origin, Reason, Record, Scope,
    Stream, What,
};
pub use sink::{Batch, Sink, SinkError};
