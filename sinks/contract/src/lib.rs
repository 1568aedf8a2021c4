//! What a kubetide sink is: the record it is given, the trait it implements, the formats it may write.
//!
//! This crate knows nothing of Kubernetes clients, stream positions or the log. A sink is handed a batch,
//! writes it, and says whether it is durable; it cannot get a checkpoint wrong because it never sees one.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod format;
mod letter;
mod oversize;
mod record;
mod reference;
pub mod sample;
mod sink;
mod template;

pub use format::{Carrier, Format, Message};
pub use letter::Letter;
pub use oversize::truncated;
pub use record::{
    Actor, Body, Change, Class, Cluster, Control, Counts, Difference, From, Id, Op, Origin, Reason, Record, Scope,
    Stream, Truncated, What,
};
pub use reference::{Pem, Reference, ReferenceError, Secret, Text, Tls};
pub use sink::{Batch, ConfigProblem, Decision, Sink, SinkError, Terms};
pub use template::{Field, Template, TemplateError};
