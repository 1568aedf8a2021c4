//! Where a stream is: its phase and its position. Durable, in the same frame as the records that led there.

use jiff::Timestamp;
use kubetide_sink::{Counts, Id, Reason};
use serde::{Deserialize, Serialize};

use crate::change::{ResourceVersion, compare::View};

/// The durable state of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// What the stream is doing.
    pub phase: Phase,
    /// Raised when versions stop being comparable with what was logged.
    pub lineage: u64,
}

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
}

/// What a LIST is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// The stream's first: everything in it is a snapshot with this id.
    Snapshot(Id),
    /// To mend a break in history.
    Resync(Reason),
}

impl From<Purpose> for View {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Snapshot(id) => Self::Snapshot(id),
            Purpose::Resync(_) => Self::Resync,
        }
    }
}
