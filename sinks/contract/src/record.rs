//! One record of the change log, as every sink sees it.
//!
//! A record is either a change of one object or a control record that says something about a whole stream
//! (where a snapshot begins and ends, where history broke). Both carry their place in the log.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The cluster that a record comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cluster {
    /// The name given in the configuration.
    pub name: String,
    /// The uid of the namespace `kube-system`, which stands for the cluster.
    pub uid: String,
}

/// One LIST+WATCH: the unit of order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stream {
    /// The cluster.
    pub cluster: Cluster,
    /// The API group; empty for the core group.
    pub group: String,
    /// The served version, such as `v1`.
    pub version: String,
    /// The plural resource name, such as `deployments`.
    pub resource: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
    /// The one namespace this stream is limited to, if any.
    pub namespace: Option<String>,
}

impl Stream {
    /// The group as people write it: the core group is `core`.
    pub fn group_name(&self) -> &str {
        if self.group.is_empty() { "core" } else { &self.group }
    }

    /// `apiVersion` as objects of this stream carry it.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The stream's name: `apps/deployments`, `core/pods@default`.
impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group_name(), self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, "@{namespace}"),
            None => Ok(()),
        }
    }
}

/// The identity of one state of one object, the same after any retry, restart or relist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id(pub [u8; 16]);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// The object was there when its stream was first read.
    Snapshot,
    /// The object is new.
    Create,
    /// The object differs from what was logged last.
    Update,
    /// The object is gone, or has left the selection.
    Delete,
}

impl Op {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// How a change came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// Seen as a watch event.
    Watch,
    /// Inferred by comparing a LIST with what was known.
    List,
}

impl Origin {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::List => "list",
        }
    }
}

/// A change of one object.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub op: Op,
    /// How it is known.
    pub origin: Origin,
    /// The object's namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// The version of this state.
    pub resource_version: String,
    /// The version that was logged last for this object.
    pub previous_resource_version: Option<String>,
    /// `metadata.generation`, where the object has one.
    pub generation: Option<i64>,
    /// The snapshot this record belongs to, for [`Op::Snapshot`].
    pub snapshot: Option<Id>,
    /// The cleaned object, as the API server sent it; none if it could not be walked.
    pub object: Option<Bytes>,
    /// Why there is no object.
    pub problem: Option<String>,
}

// By hand: no object content in `Debug`, which ends up in logs.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("op", &self.op)
            .field("origin", &self.origin)
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("resource_version", &self.resource_version)
            .finish_non_exhaustive()
    }
}

/// Why history is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The API server no longer has the history from the stored position (410 Gone).
    Expired,
    /// The API server's version is before the stored position: its store was restored from an older copy.
    VersionRegressed,
    /// The stream is read in another way than before: another version, selector, content or cluster.
    ConfigChanged,
    /// Verification found the stream and the cluster to differ.
    Divergence,
    /// The watch could not be read past the position.
    Undecodable,
}

impl Reason {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::VersionRegressed => "version_regressed",
            Self::ConfigChanged => "config_changed",
            Self::Divergence => "divergence",
            Self::Undecodable => "undecodable",
        }
    }
}

/// How much a control record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// One stream.
    Stream,
}

impl Scope {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
        }
    }
}

/// What a resync found, by op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Objects that were new.
    pub create: u64,
    /// Objects that had changed.
    pub update: u64,
    /// Objects that were gone.
    pub delete: u64,
    /// Objects that were as known.
    pub unchanged: u64,
}

/// Where a break begins: the last thing that is certain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    /// The position from which history is missing.
    pub resource_version: Option<String>,
    /// When that position was reached.
    pub at: Option<Timestamp>,
    /// The last record of the log before the break.
    pub seq: u64,
}

/// What a control record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The first LIST of a stream begins.
    SnapshotStarted,
    /// The first LIST of a stream is complete.
    SnapshotFinished {
        /// How many objects the stream has.
        snapshot: u64,
        /// The position that the LIST ends at.
        position: String,
    },
    /// History is missing from here on, until [`What::ResyncFinished`].
    Gap {
        /// Why.
        reason: Reason,
        /// Since when.
        from: From,
    },
    /// The stream was compared with the cluster and is whole again.
    ResyncFinished {
        /// What the comparison found.
        counts: Counts,
        /// The position that the LIST ends at.
        position: String,
    },
    /// The stream is no longer followed: its resource is gone from the cluster, or it was taken out of the configuration.
    StreamRemoved {
        /// How many objects were told as deleted: all that were known if the resource is gone, none otherwise.
        deleted: u64,
    },
}

impl What {
    /// The word in the record.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::SnapshotStarted => "snapshot_started",
            Self::SnapshotFinished { .. } => "snapshot_finished",
            Self::Gap { .. } => "gap",
            Self::ResyncFinished { .. } => "resync_finished",
            Self::StreamRemoved { .. } => "stream_removed",
        }
    }
}

/// A record about a whole stream rather than about one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// What it says.
    pub what: What,
    /// What it speaks of.
    pub scope: Scope,
}

/// One record of the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's identity.
    pub id: Id,
    /// The log that this record is in.
    pub log_id: Arc<str>,
    /// Its place in the log: 1, 2, 3 without holes.
    pub seq: u64,
    /// The stream it belongs to.
    pub stream: Arc<Stream>,
    /// When kubetide saw it; set once.
    pub observed_at: Timestamp,
    /// The change or the control message.
    pub body: Body,
}

/// The two kinds of record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A change of one object.
    Change(Change),
    /// A message about the stream.
    Control(Control),
}

impl Record {
    /// The op as the record spells it.
    pub fn op(&self) -> &'static str {
        match &self.body {
            Body::Change(change) => change.op.as_str(),
            Body::Control(control) => control.what.as_str(),
        }
    }

    /// About how many bytes this record takes in a batch: the object and a flat charge for the rest.
    pub fn weight(&self) -> usize {
        // The envelope of a native record is 500 to 700 bytes.
        const ENVELOPE: usize = 640;
        match &self.body {
            Body::Change(change) => ENVELOPE + change.object.as_ref().map_or(0, Bytes::len),
            Body::Control(_) => ENVELOPE,
        }
    }
}
