//! The stream: looked at with each connection, made where it is missing and that was asked for, never changed.

use std::time::Duration;

use async_nats::jetstream::{
    context::{CreateStreamErrorKind, GetStreamErrorKind},
    stream::{Config, DiscardPolicy, PersistenceMode, StorageType},
};
use kubetide_sink::{Format, SinkError};

use crate::{
    CreateStream, Discard, NatsConfig, Storage,
    connection::Connection,
    subject::{Subjects, covers},
    verdict::Refusal,
};

/// A batch that comes again later than this after its first time may be stored twice, and after that usually comes never.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// What the sink needs of the stream.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) subjects: Vec<String>,
    create: Option<Config>,
    exactly_once: bool,
}

/// What the sink has to know of a stream that will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The largest message, headers included; unlimited if none.
    pub(crate) max_message: Option<usize>,
    /// What the operator should know although it works.
    pub(crate) warnings: Vec<String>,
}

impl Need {
    pub(crate) fn new(config: &NatsConfig, subjects: &Subjects, format: Format, exactly_once: bool) -> Self {
        let with_control = format != Format::Debezium;
        let create = config.create_stream.as_ref().map(|create| {
            let subjects = subjects.to_create(with_control, exactly_once);
            Config { allow_atomic_publish: exactly_once, ..to_make(create, &config.stream, subjects) }
        });
        Self { subjects: subjects.needed(with_control, exactly_once), create, exactly_once }
    }
}

/// Looks at the stream, or makes it.
pub(crate) async fn prepare(connection: &mut Connection, name: &str, need: &Need) -> Result<Facts, SinkError> {
    if need.exactly_once && !connection.is_at_least(2, 12, 1) {
        return Err(SinkError::hold(format!(
            "the server is version {}: delivery: exactly_once needs 2.12.1 or newer, at_least_once does not",
            connection.version()
        )));
    }
    let config = match look(connection, name).await? {
        Some(config) => config,
        None => match &need.create {
            Some(create) => make(connection, create).await?,
            None => {
                return Err(SinkError::hold(format!(
                    "there is no stream {name}: make it with the subjects {}{}, or set create_stream",
                    need.subjects.join(" "),
                    if need.exactly_once { " and allow_atomic" } else { "" },
                )));
            }
        },
    };
    judge(&config, need).map_err(|problem| SinkError::hold(format!("stream {name}: {problem}")))
}

/// How the stream is; none if it is not there.
async fn look(connection: &mut Connection, name: &str) -> Result<Option<Config>, SinkError> {
    let error = match connection.jetstream().get_stream(name).await {
        Ok(stream) => return Ok(Some(stream.cached_info().config.clone())),
        Err(error) => error,
    };
    let refused = match error.kind() {
        GetStreamErrorKind::JetStream(error) => Some(error),
        _ => None,
    };
    if refused.as_ref().is_some_and(|error| Refusal::from(error).is_missing()) {
        return Ok(None);
    }
    Err(connection.unanswered(refused.as_ref(), &format!("look at the stream {name}")))
}

async fn make(connection: &mut Connection, config: &Config) -> Result<Config, SinkError> {
    let error = match connection.jetstream().create_stream(config).await {
        Ok(stream) => {
            tracing::info!(stream = config.name, subjects = ?config.subjects, "stream created");
            return Ok(stream.cached_info().config.clone());
        }
        Err(error) => error,
    };
    let refused = match error.kind() {
        CreateStreamErrorKind::JetStream(error) => Some(error),
        _ => None,
    };
    Err(connection.unanswered(refused.as_ref(), &format!("create the stream {}", config.name)))
}

fn to_make(create: &CreateStream, name: &str, subjects: Vec<String>) -> Config {
    // The server's word for unlimited is -1. Larger numbers were refused before.
    let limit =
        |limit: Option<std::num::NonZeroU64>| limit.map_or(-1, |limit| i64::try_from(limit.get()).unwrap_or(-1));
    Config {
        name: name.into(),
        subjects,
        num_replicas: create.replicas.into(),
        storage: match create.storage {
            Storage::File => StorageType::File,
            Storage::Memory => StorageType::Memory,
        },
        discard: match create.discard {
            Discard::Old => DiscardPolicy::Old,
            Discard::New => DiscardPolicy::New,
        },
        max_age: Duration::from_secs(create.max_age_secs.map_or(0, std::num::NonZeroU64::get)),
        max_bytes: limit(create.max_bytes),
        max_messages: limit(create.max_messages),
        max_messages_per_subject: limit(create.max_messages_per_subject),
        duplicate_window: Duration::from_secs(create.duplicate_window_secs.get()),
        max_consumers: -1,
        max_message_size: -1,
        description: Some("changes of Kubernetes objects, by kubetide".into()),
        ..Config::default()
    }
}

/// Whether this stream will do.
fn judge(config: &Config, need: &Need) -> Result<Facts, String> {
    let missing: Vec<&str> = need
        .subjects
        .iter()
        .filter(|needed| !config.subjects.iter().any(|subject| covers(subject, needed)))
        .map(String::as_str)
        .collect();
    if config.mirror.is_some() {
        return Err("is a mirror: nothing can be published to it".into());
    }
    if !missing.is_empty() {
        return Err(format!(
            "does not take {}: add that to its subjects, which are {}",
            missing.join(" "),
            config.subjects.join(" ")
        ));
    }
    if config.sealed {
        return Err("is sealed: nothing can be published to it".into());
    }
    if config.no_ack {
        return Err("acknowledges nothing (no_ack): without that nothing can be delivered safely".into());
    }
    if need.exactly_once && !config.allow_atomic_publish {
        return Err("does not take atomic batches: set allow_atomic on it, or delivery: at_least_once".into());
    }
    Ok(Facts {
        max_message: usize::try_from(config.max_message_size).ok().filter(|size| *size > 0),
        warnings: warnings(config, need),
    })
}

fn warnings(config: &Config, need: &Need) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.storage == StorageType::Memory {
        warnings.push("the stream is in memory: what was acknowledged is lost with its servers".to_owned());
    }
    if config.persist_mode == Some(PersistenceMode::Async) {
        warnings
            .push("the stream acknowledges before it writes (persist_mode async): a crash loses records".to_owned());
    }
    if !need.exactly_once && config.duplicate_window < DUPLICATE_WINDOW {
        let window = config.duplicate_window;
        warnings
            .push(format!("the duplicate window is {window:?}: a retry after a longer failure stores records twice"));
    }
    if need.exactly_once && !config.max_age.is_zero() {
        let age = config.max_age;
        warnings.push(format!("the cursor expires like any message, after {age:?} without a change"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use kubetide_sink::Cluster;
    use serde_json::json;

    use super::*;

    fn need(exactly_once: bool) -> Need {
        let config = serde_json::from_value(json!({"servers": ["nats://a"], "create_stream": {}})).unwrap();
        let cluster = Cluster { name: "prod".into(), uid: "c".into() };
        let subjects = Subjects::parse("kubetide.{cluster}.{name}", &cluster, "audit").unwrap();
        Need::new(&config, &subjects, Format::Native, exactly_once)
    }

    #[test]
    fn a_stream_that_was_made_will_do_without_a_word() {
        for exactly_once in [false, true] {
            let need = need(exactly_once);
            let facts = judge(need.create.as_ref().unwrap(), &need).unwrap();
            assert_eq!(facts, Facts { max_message: None, warnings: vec![] });
        }
    }

    #[test]
    fn a_stream_that_cannot_take_everything_is_refused() {
        let good = need(true).create.unwrap();
        for (config, part) in [
            (Config { subjects: vec!["other.>".into()], ..good.clone() }, "does not take kubetide.prod.*"),
            (
                Config { subjects: vec!["kubetide.prod.*".into()], ..good.clone() },
                "_control.*.*.* kubetide.prod._cursor.audit:",
            ),
            (Config { sealed: true, ..good.clone() }, "sealed"),
            (Config { no_ack: true, ..good.clone() }, "no_ack"),
            (Config { allow_atomic_publish: false, ..good.clone() }, "allow_atomic"),
        ] {
            let problem = judge(&config, &need(true)).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
        judge(&Config { allow_atomic_publish: false, ..good }, &need(false)).unwrap();
    }

    #[test]
    fn what_endangers_a_promise_is_warned_of() {
        let good = need(true).create.unwrap();
        let warned = |config: Config, exactly_once| judge(&config, &need(exactly_once)).unwrap().warnings.join("; ");
        assert!(warned(Config { storage: StorageType::Memory, ..good.clone() }, false).contains("memory"));
        assert!(warned(Config { persist_mode: Some(PersistenceMode::Async), ..good.clone() }, false).contains("async"));
        let short = Config { duplicate_window: Duration::from_secs(10), ..good.clone() };
        assert!(warned(short.clone(), false).contains("10s"));
        assert_eq!(warned(short, true), "");
        let aging = Config { max_age: Duration::from_secs(3600), ..good };
        assert!(warned(aging.clone(), true).contains("expires"));
        assert_eq!(warned(aging, false), "");
    }
}
