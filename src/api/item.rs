//! The items of answers, other than records: what a renderer sees, and what `--output json` prints.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::changelog::SegmentInfo;

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Its name.
    pub stream: String,
    /// `new`, `listing`, `watching` or `removed`.
    pub phase: String,
    /// The version that it resumes from.
    pub position: Option<String>,
    /// When that was reached.
    pub at: Option<Timestamp>,
    /// The configuration's word that led to it.
    pub asked_as: String,
}

/// A sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sink {
    /// Its name.
    pub name: String,
    /// The last record that it has acknowledged.
    pub acknowledged: u64,
    /// The last record of the log.
    pub head: u64,
    /// How many records are between them.
    pub lag_records: u64,
    /// When the first of those was observed.
    pub waiting_since: Option<Timestamp>,
    /// The batch that may or may not have reached the receiver.
    pub in_flight: Option<(u64, u64)>,
    /// `following`, `catching_up` or `detached`.
    pub state: State,
}

/// What a sink does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is given the log as it comes.
    Following,
    /// It has more to catch up with than what is under way at any time.
    CatchingUp,
    /// It is no longer in the configuration.
    Detached,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Its id.
    pub log_id: String,
    /// The oldest record that is there; one more than the head if there is none.
    pub oldest: u64,
    /// The last record; 0 if there was never one.
    pub head: u64,
    /// When the oldest record was observed.
    pub oldest_at: Option<Timestamp>,
    /// When the last record was observed.
    pub newest_at: Option<Timestamp>,
    /// The size of all files.
    pub bytes: u64,
    /// `log.max_bytes`, where the configuration is known.
    pub max_bytes: Option<u64>,
    /// Its files, oldest first.
    pub segments: Vec<Segment>,
}

/// A file of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The file.
    #[serde(flatten)]
    pub info: SegmentInfo,
    /// When its first record was observed.
    pub first_at: Option<Timestamp>,
}

/// A known object.
#[derive(Debug, Serialize, Deserialize)]
pub struct Object {
    /// Its stream.
    pub stream: String,
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The version that was logged last.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The record that told it.
    pub seq: u64,
    /// When that was observed.
    pub observed_at: Timestamp,
    /// The object, if one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<RawValue>>,
}

/// How far an answer with records is, wanted or not: among them, if that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// The last record that was looked at.
    pub reached: u64,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// The sink is delivered to again from this record on.
    Replaying {
        /// The sink.
        sink: String,
        /// The record.
        from: u64,
    },
    /// The sink is given every known object.
    Resnapshotting {
        /// The sink.
        sink: String,
    },
    /// Dead letters are given again.
    ReplayingLetters {
        /// To this sink.
        sink: String,
        /// How many.
        letters: u64,
        /// How many of those that were asked for stay: control records, which mean something only at their place in the log.
        left: u64,
    },
    /// Old segments are gone.
    Purged(Purged),
}

/// What is said among dead letters, and is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Aside {
    /// A line of a file that is no letter.
    #[serde(rename = "unread")]
    Unread {
        /// The file.
        file: String,
        /// The line.
        line: u64,
        /// What is wrong with it.
        problem: String,
        /// Whether it is only half a line, which a crash has left or which is just being written.
        torn: bool,
    },
    /// So many letters are being given again.
    #[serde(rename = "replaying")]
    Replaying {
        /// How many.
        letters: u64,
    },
}

/// What a purge has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Files.
    pub segments: usize,
    /// Their size.
    pub bytes: u64,
    /// Records.
    pub records: u64,
    /// The oldest record that is there now.
    pub oldest: u64,
    /// Why not all that was asked for is gone.
    pub kept: Option<String>,
}

/// The last line of an answer that ends early.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Broken {
    pub(super) error: String,
    pub(super) kind: Kind,
}

/// A refusal's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Usage,
    Absent,
    Failed,
    Unavailable,
}
