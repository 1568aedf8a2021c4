//! Stage 2: raw bytes to changes. Pure: no clock, no I/O.
//!
//! [`scan`] finds an object's identity and, by the [`Cleaner`] of its stream, cuts out and redacts what is not wanted; [`compare`]
//! holds it against what is known and says what happened, [`id`] names the result.

mod clean;
pub mod compare;
mod diff;
pub mod id;
mod json;
mod pattern;
mod redact;
mod rules;
pub mod scan;
mod version;
mod writers;

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::Id;
use serde::{Deserialize, Serialize};

pub use clean::{Cleaner, Cleaning, TypeMeta};
pub use pattern::{Ignored, Pattern, PatternError};
pub use redact::RedactKey;
pub use scan::NoIdentity;
pub use version::ResourceVersion;
pub use writers::Writers;

/// An object's place within its stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// One object as a LIST or a WATCH showed it, cleaned.
#[derive(Clone)]
pub struct Observed {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`, or `namespace/name` for an object without one.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// What its `metadata.managedFields` were.
    pub managed: Managed,
    /// Who wrote them.
    pub writers: Writers,
    /// The cleaned bytes, or why there are none.
    pub object: Result<Bytes, String>,
}

impl Observed {
    /// Whether it could not be walked because it is too deep.
    pub fn is_too_deep(&self) -> bool {
        self.object.as_ref().is_err_and(|problem| problem.starts_with(json::TOO_DEEP))
    }
}

/// A checksum of each entry of an object's `managedFields`, which are not kept themselves. With them a metadata-only LIST can
/// tell two contents of one version apart, and a new entry is known as new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Managed(pub Vec<Trace>);

/// What is kept of one entry of `managedFields`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// A checksum of all of it.
    pub entry: u32,
    /// A checksum of who wrote it and when. An entry that has only lost fields to another writer keeps it.
    pub writer: u32,
}

/// What is known of one object: the row of the store, and what the next observation is compared with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The uid of the object that is known under this name.
    pub uid: String,
    /// The newest version that was observed.
    pub seen: ResourceVersion,
    /// The version of the state that was logged last.
    pub logged: ResourceVersion,
    /// The id of that state.
    pub id: Id,
    /// Where in the log it is.
    pub seq: u64,
    /// Where in the log the object was first told of.
    pub since: u64,
    /// When it was observed.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub observed_at: Timestamp,
    /// `metadata.generation` of that state.
    pub generation: Option<i64>,
    /// The managedFields of the version that was seen last.
    pub managed: Managed,
    /// The cleaned object of that state.
    pub object: Option<Bytes>,
}
