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

/// One LIST+WATCH: the unit of order. Records that speak of no single stream have one without a resource.
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
    /// No stream of its own: for what concerns all streams of a cluster.
    pub fn none_of(cluster: Cluster) -> Self {
        let empty = String::new;
        Self { cluster, group: empty(), version: empty(), resource: empty(), kind: empty(), namespace: None }
    }

    /// Whether this is a stream at all.
    pub fn is_any(&self) -> bool {
        !self.resource.is_empty()
    }

    /// The group as people write it: the core group is `core`.
    pub fn group_name(&self) -> &str {
        if self.group.is_empty() { "core" } else { &self.group }
    }

    /// `apiVersion` as objects of this stream carry it.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The stream's name: `apps/deployments`, `core/pods@default`; `*` where it is none.
impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_any() {
            return write!(f, "*");
        }
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

impl Id {
    /// Its 32 digits: written several times for every record, so not one by one.
    pub fn digits(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        digits
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).map_err(|_| fmt::Error)?)
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
    /// What differs from the state that was logged before, for [`Op::Update`].
    pub difference: Option<Difference>,
    /// Who did it, as far as `managedFields` tell.
    pub actor: Option<Actor>,
    /// The same difference as an RFC 6902 patch: a JSON array.
    pub patch: Option<Bytes>,
    /// The cleaned object as it was logged before.
    pub before: Option<Bytes>,
    /// The cleaned object, as the API server sent it; none if it could not be walked.
    pub object: Option<Bytes>,
    /// Why there is no object.
    pub problem: Option<String>,
    /// What was cut away because it is more than the receiver takes.
    pub truncated: Option<Truncated>,
}

/// What was cut away because it is more than the receiver takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// How many bytes: those of the object, of the one before and of the patch.
    pub bytes: u64,
    /// The SHA-256 of the object, where there was one.
    pub object_sha256: Option<[u8; 32]>,
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

/// What differs between two states of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The parts of the object that it touches, each once.
    pub classes: Vec<Class>,
    /// The paths of the patch, as JSON Pointers.
    pub paths: Vec<String>,
}

/// A part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// What is wanted.
    Spec,
    /// What is.
    Status,
    /// Labels, annotations, owners and the like.
    Metadata,
    /// `data`, `binaryData` and `stringData`.
    Data,
    /// Everything else.
    Other,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Spec, Self::Status, Self::Metadata, Self::Data, Self::Other];

    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Status => "status",
            Self::Metadata => "metadata",
            Self::Data => "data",
            Self::Other => "other",
        }
    }
}

/// The field manager behind a change: a hint, not an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Its name.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// When, as the API server wrote it.
    pub at: Option<String>,
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
    /// The log that the sink knows of is not there any more: the data directory was lost.
    LogLost,
    /// The sink knows more of the log than there is: the data directory was restored from an older copy.
    LogRewound,
    /// The log was trimmed before this sink had read it.
    SinkBehind,
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
            Self::LogLost => "log_lost",
            Self::LogRewound => "log_rewound",
            Self::SinkBehind => "sink_behind",
        }
    }
}

/// How much a control record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// One stream.
    Stream,
    /// Everything that one sink receives; other sinks do not get the record.
    Sink,
    /// The log as a whole: it is not the one that was delivered from before.
    Log,
}

impl Scope {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Sink => "sink",
            Self::Log => "log",
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
        /// The position that the LIST ends at; none if the state came from kubetide's own store.
        position: Option<String>,
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
        /// The position that the LIST ends at; none if the state came from kubetide's own store.
        position: Option<String>,
    },
    /// The stream is no longer followed: its resource is gone from the cluster, or it was taken out of the configuration.
    StreamRemoved {
        /// How many objects were told as deleted: all that were known if the resource is gone, none otherwise.
        deleted: u64,
    },
    /// What follows was delivered before and comes again, because somebody asked for it.
    Replay {
        /// The place in the log before the first record that comes again.
        from: From,
    },
    /// What follows are dead letters of this sink, which are given to it again because somebody asked for it. Spelled as a replay.
    Letters {
        /// The place in the log before the first of them.
        from: From,
        /// How many there are.
        letters: u64,
    },
}

impl What {
    /// The word for why history is broken, or what comes again; none where there is nothing to tell apart.
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Gap { reason, .. } => Some(reason.as_str()),
            Self::Letters { .. } => Some("dead_letters"),
            _ => None,
        }
    }

    /// The word in the record.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::SnapshotStarted => "snapshot_started",
            Self::SnapshotFinished { .. } => "snapshot_finished",
            Self::Gap { .. } => "gap",
            Self::ResyncFinished { .. } => "resync_finished",
            Self::StreamRemoved { .. } => "stream_removed",
            Self::Replay { .. } | Self::Letters { .. } => "replay",
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
#[allow(clippy::large_enum_variant, reason = "nearly every record is a change")]
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
            Body::Change(Change { object, patch, before, .. }) => {
                let bytes = [object, patch, before].into_iter().flatten();
                ENVELOPE + bytes.map(Bytes::len).sum::<usize>()
            }
            Body::Control(_) => ENVELOPE,
        }
    }
}
