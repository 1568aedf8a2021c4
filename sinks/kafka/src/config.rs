//! The keys of `type: kafka`, and what serde cannot see about them.

use std::{collections::BTreeMap, num::NonZeroU32};

use kubetide_sink::{ConfigProblem, Field, Format, Reference, Template, Text, Tls};
use serde::{Deserialize, Serialize};

use crate::{properties, topic};

/// The keys of `type: kafka`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// Brokers to begin with, as `host:port`; they name the others.
    pub brokers: Vec<String>,
    /// The topic of a record, with places for cluster, group, resource and namespace.
    #[serde(default = "default_topic")]
    pub topic: String,
    /// How topics are made that are missing. If not given, a missing topic stops the sink until somebody makes it.
    #[serde(default)]
    pub create_topics: Option<CreateTopics>,
    /// How messages are compressed.
    #[serde(default)]
    pub compression: Compression,
    /// Given, even if empty: connections are encrypted.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Who the sink is to the brokers.
    #[serde(default)]
    pub sasl: Option<Sasl>,
    /// Properties of librdkafka, as it spells them; none that has a key of its own here or that a guarantee rests on.
    #[serde(default)]
    pub properties: BTreeMap<String, Property>,
    /// Where control records go as messages with headers alone, with `format: debezium`, which has no place for them.
    #[serde(default)]
    pub control_topic: Option<String>,
    /// Where cursors are kept with `delivery: exactly_once`. One topic serves all sinks.
    #[serde(default = "default_cursor_topic")]
    pub cursor_topic: String,
}

/// A topic per cluster and resource: whoever reads one kind of object reads no other.
fn default_topic() -> String {
    "kubetide.{cluster}.{group}.{resource}".into()
}

fn default_cursor_topic() -> String {
    "kubetide-cursors".into()
}

/// `create_topics`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreateTopics {
    /// How many partitions; the broker's default if not given.
    pub partitions: Option<NonZeroU32>,
    /// How many copies of each; the broker's default if not given.
    pub replication: Option<NonZeroU32>,
    /// What goes when: the broker's default if not given.
    pub cleanup_policy: Option<CleanupPolicy>,
}

/// `create_topics.cleanup_policy`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanupPolicy {
    /// By age or size.
    Delete,
    /// All but the last message of a key.
    Compact,
    /// Both.
    #[serde(rename = "compact,delete")]
    CompactDelete,
}

impl CleanupPolicy {
    /// As the broker spells it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Compact => "compact",
            Self::CompactDelete => "compact,delete",
        }
    }
}

/// `compression`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// As they are.
    None,
    /// The slowest.
    Gzip,
    /// The least dense.
    Snappy,
    /// The fastest.
    Lz4,
    /// Objects are JSON that repeats itself: the densest, at little cost.
    #[default]
    Zstd,
}

impl Compression {
    /// As librdkafka spells it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// `sasl`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    /// How the sink proves who it is.
    pub mechanism: Mechanism,
    /// Who it is.
    #[serde(default)]
    pub username: Option<Text>,
    /// Its password.
    #[serde(default)]
    pub password: Option<Reference>,
    /// Its token, for `OAUTHBEARER`.
    #[serde(default)]
    pub token: Option<Reference>,
}

/// `sasl.mechanism`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mechanism {
    /// The password itself: only behind TLS.
    #[serde(rename = "PLAIN")]
    Plain,
    /// A proof of the password.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// A proof of the password.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    /// A token, read again every few minutes.
    #[serde(rename = "OAUTHBEARER")]
    OAuthBearer,
}

impl Mechanism {
    /// As the protocol spells it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OAuthBearer => "OAUTHBEARER",
        }
    }
}

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Property {
    /// `true`
    Bool(bool),
    /// `5`
    Number(i64),
    /// `text`
    Text(String),
}

impl Property {
    /// As librdkafka reads it.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Text(value) => value.clone(),
        }
    }
}

impl KafkaConfig {
    /// Says what is impossible, with the key.
    pub fn check(&self, exactly_once: bool, format: Format) -> Result<(), ConfigProblem> {
        let refuse = |key: &str, problem: &str| Err(ConfigProblem::new(key, problem));
        if self.brokers.is_empty() {
            return refuse("brokers", "found none, expected at least one, as host:port");
        }
        if let Some(at) = self.brokers.iter().position(|broker| broker.trim().is_empty() || broker.contains(',')) {
            return refuse(&format!("brokers[{at}]"), "expected one broker, as host:port");
        }
        let template = Template::parse(&self.topic, Field::OF_TOPICS);
        let template = template.map_err(|error| ConfigProblem::new("topic", error.to_string()))?;
        // Every place takes at least one character.
        topic::legal(&template.with_all("x")).map_err(|problem| ConfigProblem::new("topic", problem))?;
        if let Some(name) = &self.control_topic {
            topic::legal(name).map_err(|problem| ConfigProblem::new("control_topic", problem))?;
            if format != Format::Debezium {
                return refuse(
                    "control_topic",
                    "only with format: debezium; the other formats have control records in the topic of their stream",
                );
            }
        }
        if exactly_once {
            topic::legal(&self.cursor_topic).map_err(|problem| ConfigProblem::new("cursor_topic", problem))?;
            if self.cursor_topic == self.topic || Some(&self.cursor_topic) == self.control_topic.as_ref() {
                return refuse("cursor_topic", "expected a topic that nothing else is written to");
            }
        }
        if let Some(tls) = &self.tls {
            match (&tls.cert, &tls.key) {
                (Some(_), None) => return refuse("tls.key", "missing: tls.cert is of no use without its key"),
                (None, Some(_)) => return refuse("tls.cert", "missing: tls.key is of no use without its certificate"),
                _ => {}
            }
        }
        self.sasl.as_ref().map_or(Ok(()), |sasl| self.check_sasl(sasl))?;
        properties::check(&self.properties)
    }

    /// Says what is impossible about the topic of dead letters.
    pub fn check_letters(&self, topic: &str) -> Result<(), ConfigProblem> {
        let wrong = |problem| Err(ConfigProblem::new("dead_letter.topic", problem));
        if let Err(problem) = topic::legal(topic) {
            return wrong(problem);
        }
        let others = [Some(&self.topic), Some(&self.cursor_topic), self.control_topic.as_ref()];
        match others.into_iter().flatten().any(|other| other == topic) {
            true => wrong(format!("found {topic}, expected a topic that nothing else is written to")),
            false => Ok(()),
        }
    }

    fn check_sasl(&self, sasl: &Sasl) -> Result<(), ConfigProblem> {
        let name = sasl.mechanism.as_str();
        let missing = |key: &str| Err(ConfigProblem::new(key, format!("missing: the mechanism {name} needs it")));
        let idle = |key: &str| Err(ConfigProblem::new(key, format!("the mechanism {name} has no use for it")));
        if sasl.mechanism == Mechanism::OAuthBearer {
            if self.create_topics.is_some() {
                let problem =
                    "not with sasl.mechanism: OAUTHBEARER, where kubetide cannot make topics; make them beforehand";
                return Err(ConfigProblem::new("create_topics", problem));
            }
            return match (&sasl.token, &sasl.password) {
                (None, _) => missing("sasl.token"),
                (_, Some(_)) => idle("sasl.password"),
                _ => Ok(()),
            };
        }
        match (&sasl.username, &sasl.password, &sasl.token) {
            (None, _, _) => missing("sasl.username"),
            (_, None, _) => missing("sasl.password"),
            (_, _, Some(_)) => idle("sasl.token"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{Value, json};

    use super::*;

    fn config(more: Value) -> KafkaConfig {
        let mut config = json!({"brokers": ["a:9092"]});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn brokers_are_enough() {
        let config = config(json!({}));
        assert_eq!(config.check(false, Format::Native), Ok(()));
        assert_eq!(config.check(true, Format::Native), Ok(()));
        assert_eq!(
            (config.topic.as_str(), config.compression),
            ("kubetide.{cluster}.{group}.{resource}", Compression::Zstd)
        );
        assert!(serde_json::from_value::<KafkaConfig>(json!({})).is_err());
        assert!(serde_json::from_value::<KafkaConfig>(json!({"brokers": ["a:9092"], "acks": 1})).is_err());
    }

    #[test]
    fn what_is_impossible_is_refused_with_its_key() {
        let scram = |more: Value| {
            let mut sasl = json!({"mechanism": "SCRAM-SHA-256", "username": "u", "password": {"env": "P"}});
            sasl.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"sasl": sasl})
        };
        let token = json!({"mechanism": "OAUTHBEARER", "token": {"env": "T"}});
        for (more, key) in [
            (json!({"brokers": []}), "brokers"),
            (json!({"brokers": ["a:9092", ""]}), "brokers[1]"),
            (json!({"brokers": ["a:9092,b:9092"]}), "brokers[0]"),
            (json!({"topic": "k.{name}"}), "topic"),
            (json!({"topic": "k/{group}"}), "topic"),
            (json!({"topic": ""}), "topic"),
            (json!({"topic": "x".repeat(248) + "{group}{resource}"}), "topic"),
            (json!({"control_topic": "c"}), "control_topic"),
            (json!({"tls": {"cert": "/a"}}), "tls.key"),
            (json!({"tls": {"key": "/a"}}), "tls.cert"),
            (scram(json!({"username": null})), "sasl.username"),
            (scram(json!({"password": null})), "sasl.password"),
            (scram(json!({"token": {"env": "T"}})), "sasl.token"),
            (json!({"sasl": {"mechanism": "OAUTHBEARER"}}), "sasl.token"),
            (json!({"sasl": token, "create_topics": {}}), "create_topics"),
            (json!({"properties": {"acks": 1}}), "properties.acks"),
        ] {
            let refused = config(more.clone()).check(false, Format::Native).unwrap_err();
            assert_eq!(refused.key, key, "{more}: {refused}");
        }
        let debezium = config(json!({"control_topic": "c"}));
        assert_eq!(debezium.check(false, Format::Debezium), Ok(()));
        assert_eq!(
            config(json!({"control_topic": "a b"})).check(false, Format::Debezium).unwrap_err().key,
            "control_topic"
        );
        let same = config(json!({"topic": "all", "cursor_topic": "all"}));
        assert_eq!(same.check(false, Format::Native), Ok(()), "there are no cursors");
        assert_eq!(same.check(true, Format::Native).unwrap_err().key, "cursor_topic");
    }

    #[test]
    fn what_was_read_is_written_the_same() {
        let written = config(json!({
            "create_topics": {"partitions": 3, "cleanup_policy": "compact,delete"},
            "compression": "lz4",
            "tls": {"ca": {"file": "/ca"}},
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": {"env": "U"}, "password": {"file": "/p"}},
            "properties": {"linger.ms": 20, "client.id": "a", "socket.keepalive.enable": true},
        }));
        let again: KafkaConfig = serde_json::from_value(serde_json::to_value(&written).unwrap()).unwrap();
        assert_eq!(again, written);
    }
}
