//! `sinks`: what every sink has, and the registry of their types.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
};

use kubetide_sink::{ConfigProblem, Format, Sink as Receiver, Terms};
use kubetide_sink_file::{FileConfig, FileSink, StdoutConfig, StdoutSink};
#[cfg(feature = "kafka")]
use kubetide_sink_kafka::{KafkaConfig, KafkaSink};
#[cfg(feature = "nats")]
use kubetide_sink_nats::{NatsConfig, NatsSink};
#[cfg(feature = "webhook")]
use kubetide_sink_webhook::{WebhookConfig, WebhookSink};
use serde::{Deserialize, Serialize};

use super::{ConfigError, refuse};
use crate::delivery::Filter;

/// An item of `sinks`: what all types have, and what the type needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sink {
    /// The keys of every sink.
    #[serde(flatten)]
    pub common: SinkCommon,
    /// The type and its keys.
    #[serde(flatten)]
    pub kind: SinkKind,
}

/// The keys of every sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkCommon {
    /// The sink's identity: its cursor is kept under this name.
    pub name: String,
    /// How records are written.
    #[serde(default)]
    pub format: Format,
    /// The streams it takes, by name; empty = all.
    #[serde(default)]
    pub streams: Vec<String>,
    /// What a crash may do to what is delivered.
    #[serde(default)]
    pub delivery: Delivery,
    /// Where a new sink begins.
    #[serde(default)]
    pub start: Start,
    /// What happens when the log outgrows `log.max_bytes` before this sink has read it.
    #[serde(default)]
    pub when_behind: WhenBehind,
    /// When a batch is cut.
    #[serde(default)]
    pub batch: Batch,
    /// How failed batches are tried again.
    #[serde(default)]
    pub retry: Retry,
    /// Which changes it takes: a CEL expression; none = all.
    #[serde(default)]
    pub filter: Option<String>,
    /// What becomes of a record that is larger than the receiver takes.
    #[serde(default)]
    pub oversize: Oversize,
    /// Where records go that the receiver will never take.
    #[serde(default)]
    pub dead_letter: DeadLetter,
}

/// `delivery`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Nothing is lost; a hard kill may repeat one batch.
    #[default]
    AtLeastOnce,
    /// The records and the cursor are committed together at the receiver.
    ExactlyOnce,
}

/// `oversize`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oversize {
    /// It is delivered without its object, and says so.
    #[default]
    Truncate,
    /// It goes to the dead letters.
    DeadLetter,
    /// Nothing more is delivered until the receiver takes it.
    Fail,
}

/// `dead_letter`: at most one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetter {
    /// The directory of the files; `dead-letter/NAME` in the data directory if nothing is given.
    pub path: Option<PathBuf>,
    /// A topic of the same Kafka, instead of files.
    pub topic: Option<String>,
    /// A subject of the same NATS, instead of files.
    pub subject: Option<String>,
}

/// Where the dead letters of a sink are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterPlace {
    /// Files in this directory.
    Files(PathBuf),
    /// Messages of this topic.
    Topic(String),
    /// Messages of this subject.
    Subject(String),
}

impl DeadLetter {
    /// Where those of this sink are.
    pub fn place(&self, data_dir: &Path, sink: &str) -> LetterPlace {
        match (&self.path, &self.topic, &self.subject) {
            (None, Some(topic), _) => LetterPlace::Topic(topic.clone()),
            (None, None, Some(subject)) => LetterPlace::Subject(subject.clone()),
            (Some(path), _, _) => LetterPlace::Files(path.clone()),
            (None, None, None) => LetterPlace::Files(data_dir.join("dead-letter").join(sink)),
        }
    }

    /// The keys that are given.
    fn given(&self) -> Vec<&'static str> {
        let keys =
            [("path", self.path.is_some()), ("topic", self.topic.is_some()), ("subject", self.subject.is_some())];
        keys.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect()
    }
}

/// `start`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With every object that is known, then the log.
    #[default]
    Snapshot,
    /// With the oldest record that the log still has.
    Earliest,
    /// With the next record.
    Now,
}

/// `when_behind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenBehind {
    /// It is told of the gap, and then of everything that is different now.
    #[default]
    Resync,
    /// Nothing more is appended until it has caught up.
    Block,
}

/// The type of a sink, with its own keys. A new type has a variant here, and an arm in each of the functions below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SinkKind {
    /// Messages to Kafka.
    #[cfg(feature = "kafka")]
    Kafka(KafkaConfig),
    /// Messages to NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(NatsConfig),
    /// Requests to a web server.
    #[cfg(feature = "webhook")]
    Webhook(WebhookConfig),
    /// Lines into a file.
    File(FileConfig),
    /// Lines into a pipe, one-liners on a terminal.
    Stdout(StdoutConfig),
}

impl SinkKind {
    /// The words for those that this build has.
    pub(super) const TYPES: &[&str] = &[
        #[cfg(feature = "kafka")]
        "kafka",
        #[cfg(feature = "nats")]
        "nats",
        #[cfg(feature = "webhook")]
        "webhook",
        "file",
        "stdout",
    ];

    /// Reads the keys of one type; none if there is no such type.
    pub(super) fn read<E>(word: &str, read: impl ReadKeys<E>) -> Option<Result<Self, E>> {
        Some(match word {
            #[cfg(feature = "kafka")]
            "kafka" => read.keys().map(Self::Kafka),
            #[cfg(feature = "nats")]
            "nats" => read.keys().map(Self::Nats),
            #[cfg(feature = "webhook")]
            "webhook" => read.keys().map(Self::Webhook),
            "file" => read.keys().map(Self::File),
            "stdout" => read.keys().map(Self::Stdout),
            _ => return None,
        })
    }

    /// What is wrong with its keys beyond what a type can say.
    fn check(&self, common: &SinkCommon) -> Result<(), ConfigProblem> {
        let exactly_once = common.delivery == Delivery::ExactlyOnce;
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.check(exactly_once, common.format),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.check(exactly_once, common.batch.max_records.get()),
            #[cfg(feature = "webhook")]
            Self::Webhook(webhook) => webhook.check(exactly_once),
            Self::File(_) | Self::Stdout(_) if exactly_once => {
                Err(ConfigProblem::new("delivery", "found exactly_once, allowed for this type: at_least_once"))
            }
            Self::File(file) => file.check(),
            Self::Stdout(_) => Ok(()),
        }
    }

    /// What is wrong with where its dead letters go: a topic and a subject are of one type each.
    fn check_letters(&self, letters: &DeadLetter) -> Result<(), ConfigProblem> {
        let given = letters.given();
        if given.len() > 1 {
            let problem = format!(
                "found {}, allowed: one of path, topic (of type kafka), subject (of type nats)",
                given.join(" and ")
            );
            return Err(ConfigProblem::new("dead_letter", problem));
        }
        if letters.path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(ConfigProblem::new("dead_letter.path", "empty; name a directory, or leave it out"));
        }
        match (self, letters) {
            #[cfg(feature = "kafka")]
            (Self::Kafka(kafka), DeadLetter { topic: Some(topic), .. }) => kafka.check_letters(topic),
            #[cfg(feature = "nats")]
            (Self::Nats(nats), DeadLetter { subject: Some(subject), .. }) => nats.check_letters(subject),
            (_, DeadLetter { topic: Some(topic), .. }) => {
                let problem = format!(
                    "found {topic:?}, which only a sink of type kafka can write to; allowed here: {}",
                    self.letter_keys()
                );
                Err(ConfigProblem::new("dead_letter.topic", problem))
            }
            (_, DeadLetter { subject: Some(subject), .. }) => {
                let problem = format!(
                    "found {subject:?}, which only a sink of type nats can write to; allowed here: {}",
                    self.letter_keys()
                );
                Err(ConfigProblem::new("dead_letter.subject", problem))
            }
            _ => Ok(()),
        }
    }

    const fn letter_keys(&self) -> &'static str {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "path, topic",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "path, subject",
            _ => "path",
        }
    }

    /// Where its lines go, if it must be the only one who writes them there.
    fn place(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(&file.path),
            Self::Stdout(_) => Some(Path::new("/dev/stdout")),
            #[allow(unreachable_patterns, reason = "a build may have no other types")]
            _ => None,
        }
    }

    /// The way to the receiver.
    pub fn open(&self, terms: Terms) -> Result<Box<dyn Receiver>, ConfigProblem> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => Box::new(KafkaSink::open(kafka, terms)?),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => Box::new(NatsSink::open(nats, terms)?),
            #[cfg(feature = "webhook")]
            Self::Webhook(webhook) => Box::new(WebhookSink::open(webhook, terms)?),
            Self::File(file) => Box::new(FileSink::open(file, terms)?),
            Self::Stdout(_) => Box::new(StdoutSink::new(terms.format)),
        })
    }
}

/// Reads keys as the type that is asked for.
pub(super) trait ReadKeys<E> {
    /// All of them.
    fn keys<T: serde::de::DeserializeOwned>(self) -> Result<T, E>;
}

/// `batch`: whichever comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Records.
    pub max_records: NonZeroUsize,
    /// Bytes.
    pub max_bytes: NonZeroUsize,
    /// Age of the oldest record.
    pub max_wait_ms: u64,
}

/// `retry`: exponential with full jitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// The first pause, at most.
    pub initial_ms: NonZeroU64,
    /// The longest pause.
    pub max_ms: NonZeroU64,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            max_records: const { NonZeroUsize::new(500).unwrap() },
            // What brokers take by default.
            max_bytes: const { NonZeroUsize::new(1024 * 1024).unwrap() },
            max_wait_ms: 1000,
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            initial_ms: const { NonZeroU64::new(500).unwrap() },
            // A receiver that comes back waits a minute at most.
            max_ms: const { NonZeroU64::new(60_000).unwrap() },
        }
    }
}

/// What a type cannot express.
pub(super) fn validate(sinks: &[Sink]) -> Result<(), ConfigError> {
    if sinks.is_empty() {
        return refuse("sinks", "empty; name at least one, such as `- {name: out, type: stdout}`");
    }
    for (index, sink) in sinks.iter().enumerate() {
        let before = &sinks[..index];
        let SinkCommon { name, filter, retry: Retry { initial_ms, max_ms }, .. } = &sink.common;
        let well_formed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > 63 || !name.chars().all(well_formed) {
            let problem = format!("found {name:?}, allowed: 1 to 63 of a-z, 0-9, - and _");
            return refuse(format!("sinks[{index}].name"), problem);
        }
        if let Some(first) = before.iter().position(|other| other.common.name == *name) {
            let problem = format!("found {name}, which is the name of sinks[{first}] already");
            return refuse(format!("sinks[{index}].name"), problem);
        }
        if initial_ms > max_ms {
            let problem = format!("found {initial_ms}, which is more than max_ms ({max_ms})");
            return refuse(format!("sinks[{index}].retry.initial_ms"), problem);
        }
        if let Some(Err(problem)) = filter.as_deref().map(Filter::compile) {
            return refuse(format!("sinks[{index}].filter"), problem);
        }
        if let Err(ConfigProblem { key, problem }) = sink.kind.check(&sink.common) {
            return refuse(format!("sinks[{index}].{key}"), problem);
        }
        if let Err(ConfigProblem { key, problem }) = sink.kind.check_letters(&sink.common.dead_letter) {
            return refuse(format!("sinks[{index}].{key}"), problem);
        }
        let letters = &sink.common.dead_letter.path;
        if let Some(first) =
            before.iter().position(|other| letters.is_some() && other.common.dead_letter.path == *letters)
        {
            let problem = format!("is that of sinks[{first}]: whose letters they are could not be told");
            return refuse(format!("sinks[{index}].dead_letter.path"), problem);
        }
        let place = sink.kind.place();
        if let Some(first) = before.iter().position(|other| place.is_some() && other.kind.place() == place) {
            let problem = format!("writes to the same place as sinks[{first}]: their lines would mix");
            return refuse(format!("sinks[{index}]"), problem);
        }
    }
    Ok(())
}
