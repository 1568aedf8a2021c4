//! Where a stream is: its phase and its position. Durable, in the same frame as the records that led there.

use jiff::Timestamp;
use kubetide_sink::{Counts, Id, Reason};
use serde::{Deserialize, Serialize};

use crate::change::{
    ResourceVersion,
    compare::{By, View},
};

/// The durable state of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// What the stream is doing.
    pub phase: Phase,
    /// Raised when versions stop being comparable with what was logged.
    pub lineage: u64,
    /// How the stream was read when its last LIST began: a change of that is a break.
    pub fingerprint: Fingerprint,
    /// The configuration's word that led to this stream.
    pub asked_as: String,
    /// When it was followed last, if it is not any more: a sink that is left behind is told so, though the log has forgotten.
    pub removal: Option<Removal>,
}

/// The record that says that a stream is no longer followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Where it is in the log.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// How many objects were told as deleted just before.
    pub deleted: u64,
}

impl StreamState {
    /// What the LIST under way is for.
    pub const fn purpose(&self) -> Option<Purpose> {
        match &self.phase {
            Phase::Listing { purpose, .. } => Some(*purpose),
            Phase::New | Phase::Watching { .. } | Phase::Removed { .. } => None,
        }
    }
}

/// A hash over everything that shapes what a stream shows: served version, selectors, content, cleaning rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; 16]);

/// What a stream is doing. The record that announces a LIST is in the frame that enters [`Phase::Listing`], so that it is
/// written once, however often the process dies there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Never read.
    #[default]
    New,
    /// A LIST is to be completed; the position is unknown until its end.
    Listing {
        /// What for.
        purpose: Purpose,
        /// What it has found, over all attempts.
        counts: Counts,
    },
    /// Following the watch.
    Watching {
        /// The version to resume from.
        position: ResourceVersion,
        /// When it was reached.
        at: Timestamp,
    },
    /// Taken out of the configuration. The rows are kept for a day, in case it comes back.
    Removed {
        /// The position that it had, if any.
        position: Option<ResourceVersion>,
        /// Since when.
        at: Timestamp,
    },
}

/// What a LIST is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// The stream's first: everything in it is a snapshot with this id.
    Snapshot(Id),
    /// To mend a break in history.
    Resync(Reason),
    /// To take up a stream again that was out of the configuration. Whoever was given the whole state meanwhile was given nothing of
    /// it: every object is told, also one that is as it was.
    Return {
        /// The record that announces it: an object that was told behind it has been told.
        since: u64,
        /// Its id, which names what is told again.
        id: Id,
    },
}

impl Purpose {
    /// How the objects of the LIST are compared with what is known.
    pub const fn view(self) -> View {
        match self {
            Self::Snapshot(id) => View::Snapshot(id),
            Self::Resync(reason) if breaks_lineage(reason) => View::Resync(By::Content),
            Self::Resync(_) => View::Resync(By::Version),
            Self::Return { since, id } => View::Return { since, id },
        }
    }
}

/// Whether a version may stand for something else after this break than what was logged under it before.
pub(super) const fn breaks_lineage(reason: Reason) -> bool {
    match reason {
        Reason::VersionRegressed | Reason::ConfigChanged | Reason::Divergence => true,
        Reason::Expired | Reason::Undecodable | Reason::SinkBehind | Reason::LogLost | Reason::LogRewound => false,
    }
}
