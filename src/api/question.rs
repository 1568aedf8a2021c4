//! Questions and demands, and how they are written as the path of a request.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What may be asked. Nothing is changed by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The streams and where they are.
    Streams,
    /// The sinks and how far they are.
    Sinks,
    /// The log and its files.
    Log,
    /// Whether every file of the log is whole.
    Verify,
    /// Records.
    Changes(Box<Changes>),
    /// Objects as they were logged last.
    Objects(Objects),
    /// The dead letters of this sink that wait, as they are; lines that are none are told as [`item::Aside`](super::item::Aside).
    Letters(String),
}

/// What may be demanded. The answer comes when it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Deliver again from here on.
    Replay {
        /// To which sink.
        sink: String,
        /// From where on.
        from: Point,
    },
    /// Deliver every known object, as to a new sink.
    Resnapshot {
        /// To which sink.
        sink: String,
    },
    /// Deliver dead letters again.
    ReplayLetters {
        /// Of which sink.
        sink: String,
        /// Those of these places in the log; all if empty.
        seqs: Vec<u64>,
    },
    /// Remove whole segments whose records are all before this.
    Purge {
        /// The first record to keep.
        before: Point,
    },
}

/// Which records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    /// From here on; from the oldest record if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Point>,
    /// A seq: up to and with it. A time: what was observed before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Point>,
    /// Streams, by name or by resource.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub stream: Words,
    /// Namespaces of objects.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub namespace: Words,
    /// Names of objects.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub name: Words,
    /// Objects, as `namespace/name` or `name`.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub object: Words,
    /// Ops.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub op: Words,
    /// Classes of changes.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub class: Words,
    /// Only the last so many of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// Whether to go on with what comes.
    #[serde(skip_serializing_if = "is_false")]
    pub follow: bool,
    /// Whether each record is given a further member `was`: the old values of its patch, where they are known.
    #[serde(skip_serializing_if = "is_false")]
    pub was: bool,
    /// Whether the answer says now and then how far it is, in lines of its own: [`item::Reached`](super::item::Reached).
    #[serde(skip_serializing_if = "is_false")]
    pub progress: bool,
}

/// Which objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objects {
    /// Streams, by name or by resource.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub stream: Words,
    /// Namespaces.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub namespace: Words,
    /// One object, as `namespace/name` or `name`: then the answer holds the object itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A record.
    Seq(u64),
    /// The first record that was observed at this time or later.
    At(Timestamp),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seq(seq) => write!(f, "{seq}"),
            Self::At(at) => write!(f, "{at}"),
        }
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seq = text.parse().ok().map(Self::Seq);
        seq.or_else(|| text.parse().ok().map(Self::At)).ok_or_else(|| {
            format!("found {text:?}; allowed: a seq such as 1042, or a time such as 2026-11-16T04:00:00Z")
        })
    }
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Words that are allowed, with commas between them; none = all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

impl Words {
    /// Whether all are allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one is allowed.
    pub fn allow(&self, word: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|allowed| allowed == word)
    }
}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.join(","))
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.split(',').any(str::is_empty) {
            return Err(de::Error::custom(format!(
                "found {text:?}; allowed: words with commas between them, none of them empty"
            )));
        }
        Ok(Self(text.split(',').map(Into::into).collect()))
    }
}

impl Question {
    /// The path of the request.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Streams => "/api/v1/streams".into(),
            Self::Sinks => "/api/v1/sinks".into(),
            Self::Log => "/api/v1/log".into(),
            Self::Verify => "/api/v1/log/verify".into(),
            Self::Changes(changes) => with_query("/api/v1/changes", changes),
            Self::Objects(objects) => with_query("/api/v1/objects", objects),
            Self::Letters(sink) => format!("/api/v1/sinks/{}/dead-letters", encoded(sink)),
        }
    }
}

impl Demand {
    /// The path of the request.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Replay { sink, from } => {
                format!("/api/v1/sinks/{}/replay?from={}", encoded(sink), encoded(&from.to_string()))
            }
            Self::Resnapshot { sink } => format!("/api/v1/sinks/{}/resnapshot", encoded(sink)),
            Self::ReplayLetters { sink, seqs } => {
                let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
                let query = if seqs.is_empty() { String::new() } else { format!("?seq={}", encoded(&seqs.join(","))) };
                format!("/api/v1/sinks/{}/dead-letters/replay{query}", encoded(sink))
            }
            Self::Purge { before } => format!("/api/v1/log/purge?before={}", encoded(&before.to_string())),
        }
    }
}

fn with_query(path: &str, query: &impl Serialize) -> String {
    // A flat struct of texts and numbers: there is nothing in it that could fail.
    let members = serde_json::to_value(query).unwrap_or_default();
    let mut text = path.to_owned();
    for (index, (key, value)) in members.as_object().into_iter().flatten().enumerate() {
        let value = value.as_str().map_or_else(|| value.to_string(), Into::into);
        text.push(if index == 0 { '?' } else { '&' });
        text.push_str(&format!("{key}={}", encoded(&value)));
    }
    text
}

/// Percent-encoded, all but what is never special.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
