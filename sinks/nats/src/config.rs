//! The keys of `type: nats`.

use std::{num::NonZeroU64, path::Path};

use async_nats::ServerAddr;
use kubetide_sink::{Cluster, ConfigProblem, Reference, Text, Tls};
use serde::{Deserialize, Serialize};

use crate::subject::{Subjects, is_subject};

/// A server takes no more messages in one atomic batch, and one of them is the cursor.
pub(crate) const RECORDS_AT_ONCE: usize = 999;

/// The keys of `type: nats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`, any of them; all belong to one NATS system.
    pub servers: Vec<String>,
    /// The JetStream stream. Nothing is ever written to another one.
    #[serde(default = "default_stream")]
    pub stream: String,
    /// The subject of a record, with `{cluster}`, `{group}`, `{resource}`, `{namespace}` and `{name}`.
    #[serde(default = "default_subject")]
    pub subject: String,
    /// How to make the stream where it is missing; not at all if not given. A stream that is there is never changed.
    #[serde(default)]
    pub create_stream: Option<CreateStream>,
    /// Who the sink says it is.
    #[serde(default)]
    pub credentials: Credentials,
    /// TLS, also where the URLs say `nats://`. Without it, TLS is used where a URL or the server asks for it, and the server's
    /// certificate must be signed by a public authority.
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// The stream to make where it is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreateStream {
    /// How many servers have a copy: 1, 3 or 5.
    pub replicas: u8,
    /// Where messages are.
    pub storage: Storage,
    /// What to do when a limit is reached.
    pub discard: Discard,
    /// Messages older than this are removed; none if not given.
    pub max_age_secs: Option<NonZeroU64>,
    /// How large the stream may become; unlimited if not given.
    pub max_bytes: Option<NonZeroU64>,
    /// How many messages it may hold; unlimited if not given.
    pub max_messages: Option<NonZeroU64>,
    /// How many messages it may hold for one subject: with 1 and `{name}` in the subject, the last state of each object.
    pub max_messages_per_subject: Option<NonZeroU64>,
    /// How long the server remembers which messages it has, so that one that comes again is not stored again.
    pub duplicate_window_secs: NonZeroU64,
}

impl Default for CreateStream {
    fn default() -> Self {
        Self {
            replicas: 1,
            storage: Storage::File,
            discard: Discard::Old,
            max_age_secs: None,
            max_bytes: None,
            max_messages: None,
            max_messages_per_subject: None,
            // The server's own default.
            duplicate_window_secs: NonZeroU64::new(120).unwrap_or(NonZeroU64::MIN),
        }
    }
}

/// Where a stream keeps its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// On disk.
    #[default]
    File,
    /// In memory: gone when the servers are.
    Memory,
}

/// What a stream does when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// It removes its oldest messages.
    #[default]
    Old,
    /// It takes no more; the sink holds.
    New,
}

/// Who the sink says it is: at most one of them, or user and password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Credentials {
    /// What a `.creds` file holds: a JWT and the seed that goes with it.
    pub creds: Option<Reference>,
    /// The seed of an nkey.
    pub nkey: Option<Reference>,
    /// A token.
    pub token: Option<Reference>,
    /// A user, with a password.
    pub user: Option<Text>,
    /// The user's password.
    pub password: Option<Reference>,
}

fn default_stream() -> String {
    "KUBETIDE".into()
}

fn default_subject() -> String {
    "kubetide.{cluster}.{group}.{resource}.{namespace}.{name}".into()
}

impl NatsConfig {
    /// What serde cannot see. `max_records` is the sink's `batch.max_records`.
    pub fn check(&self, exactly_once: bool, max_records: usize) -> Result<(), ConfigProblem> {
        if exactly_once && max_records > RECORDS_AT_ONCE {
            let problem = format!(
                "found {max_records}: with delivery: exactly_once at most {RECORDS_AT_ONCE}, because a server takes 1000 \
                 messages at once and one of them is the cursor"
            );
            return Err(ConfigProblem::new("batch.max_records", problem));
        }
        self.check_servers()?;
        if !is_stream_name(&self.stream) {
            let problem = "must not be empty, nor have spaces, control characters, slashes, or any of . * >";
            return Err(ConfigProblem::new("stream", format!("found {:?}: a stream's name {problem}", self.stream)));
        }
        // Any cluster and sink will do: the template is what can be wrong.
        let any = Cluster { name: "any".into(), uid: String::new() };
        Subjects::parse(&self.subject, &any, "any")?;
        if let Some(create) = &self.create_stream {
            create.check()?;
        }
        self.credentials.check()?;
        match &self.tls {
            Some(Tls { cert: Some(_), key: None, .. }) => {
                Err(ConfigProblem::new("tls.key", "missing: tls.cert is of no use without its key"))
            }
            Some(Tls { cert: None, key: Some(_), .. }) => {
                Err(ConfigProblem::new("tls.cert", "missing: tls.key is of no use without its certificate"))
            }
            _ => Ok(()),
        }
    }

    /// Says what is wrong with the subject of dead letters.
    pub fn check_letters(&self, subject: &str) -> Result<(), ConfigProblem> {
        let wrong =
            |problem: &str| Err(ConfigProblem::new("dead_letter.subject", format!("found {subject:?}: {problem}")));
        if !is_subject(subject) || subject.contains(['{', '}']) {
            return wrong(
                "one subject for all of them, without places; tokens between dots must not be empty, nor have spaces, control characters, * or >",
            );
        }
        if subject.starts_with('$') {
            return wrong("subjects with $ at the beginning are the server's own");
        }
        if subject == self.subject {
            return wrong("expected a subject that nothing else is published to");
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), ConfigProblem> {
        const EXAMPLE: &str = "nats://HOST:4222 or tls://HOST:4222";
        if self.servers.is_empty() {
            return Err(ConfigProblem::new("servers", format!("found none, needed: at least one {EXAMPLE}")));
        }
        for (index, server) in self.servers.iter().enumerate() {
            let wrong = |problem| Err(ConfigProblem::new(format!("servers[{index}]"), problem));
            // The server is not repeated: somebody may have written a password into it.
            let Ok(address) = server.parse::<ServerAddr>() else {
                return wrong(format!("found what is no URL of a server, allowed: {EXAMPLE}"));
            };
            if !["nats", "tls"].contains(&address.scheme()) || !server.contains("://") {
                return wrong(format!("found another scheme, or none, allowed: {EXAMPLE}"));
            }
            if address.has_user_pass() || address.password().is_some() {
                return wrong("found a user or password in the URL: they belong into credentials".into());
            }
            if address.host().is_empty() {
                return wrong(format!("found no host, allowed: {EXAMPLE}"));
            }
        }
        Ok(())
    }
}

impl CreateStream {
    fn check(&self) -> Result<(), ConfigProblem> {
        if ![1, 3, 5].contains(&self.replicas) {
            let problem = format!("found {}, allowed: 1, 3 or 5", self.replicas);
            return Err(ConfigProblem::new("create_stream.replicas", problem));
        }
        let limits = [
            ("max_age_secs", self.max_age_secs, u64::MAX / 1_000_000_000 / 2),
            ("duplicate_window_secs", Some(self.duplicate_window_secs), u64::MAX / 1_000_000_000 / 2),
            ("max_bytes", self.max_bytes, i64::MAX as u64),
            ("max_messages", self.max_messages, i64::MAX as u64),
            ("max_messages_per_subject", self.max_messages_per_subject, i64::MAX as u64),
        ];
        for (key, limit, most) in limits {
            if let Some(limit) = limit.filter(|limit| limit.get() > most) {
                let problem = format!("found {limit}, allowed: at most {most}");
                return Err(ConfigProblem::new(format!("create_stream.{key}"), problem));
            }
        }
        if let Some(age) = self.max_age_secs.filter(|age| *age < self.duplicate_window_secs) {
            let problem =
                format!("found {}, allowed: at most max_age_secs, which is {age}", self.duplicate_window_secs);
            return Err(ConfigProblem::new("create_stream.duplicate_window_secs", problem));
        }
        Ok(())
    }
}

impl Credentials {
    fn check(&self) -> Result<(), ConfigProblem> {
        let kinds = [
            ("creds", self.creds.is_some()),
            ("nkey", self.nkey.is_some()),
            ("token", self.token.is_some()),
            ("user", self.user.is_some() || self.password.is_some()),
        ];
        let given: Vec<&str> = kinds.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect();
        if given.len() > 1 {
            let problem =
                format!("found {}, allowed: one of creds, nkey, token, or user with password", given.join(" and "));
            return Err(ConfigProblem::new("credentials", problem));
        }
        match (&self.user, &self.password) {
            (Some(_), None) => Err(ConfigProblem::new("credentials.password", "missing: a user needs a password")),
            (None, Some(_)) => Err(ConfigProblem::new("credentials.user", "missing: a password needs a user")),
            _ => Ok(()),
        }
    }
}

/// The server uses the name in subjects and in paths.
fn is_stream_name(name: &str) -> bool {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '.' | '*' | '>' | '/' | '\\');
    !name.is_empty() && name.chars().all(fits) && Path::new(name).components().count() == 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{Value, json};

    use super::*;

    fn with(key: &str, value: Value) -> NatsConfig {
        let mut config = json!({"servers": ["nats://127.0.0.1:4222"]});
        config[key] = value;
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn only_the_servers_must_be_given() {
        let config = with("tls", Value::Null);
        assert_eq!(config.stream, "KUBETIDE");
        assert_eq!(config.subject, "kubetide.{cluster}.{group}.{resource}.{namespace}.{name}");
        assert_eq!((&config.create_stream, &config.tls), (&None, &None));
        config.check(true, 999).unwrap();
        config.check(false, 100_000).unwrap();
        let made = with("create_stream", json!({})).create_stream.unwrap();
        assert_eq!((made.replicas, made.storage, made.duplicate_window_secs.get()), (1, Storage::File, 120));
    }

    #[test]
    fn what_cannot_work_is_refused_under_its_key() {
        let secret = json!({"env": "X"});
        for (key, value, at) in [
            ("servers", json!([]), "servers"),
            ("servers", json!(["nats://a", "http://b"]), "servers[1]"),
            ("servers", json!(["a:4222"]), "servers[0]"),
            ("servers", json!(["nats://me:hunter2@a"]), "servers[0]"),
            ("servers", json!(["nats://:hunter2@a"]), "servers[0]"),
            ("servers", json!(["wss://a"]), "servers[0]"),
            ("servers", json!(["nats://"]), "servers[0]"),
            ("stream", json!(""), "stream"),
            ("stream", json!("a.b"), "stream"),
            ("stream", json!("a b"), "stream"),
            ("subject", json!("a..b"), "subject"),
            ("create_stream", json!({"replicas": 2}), "create_stream.replicas"),
            ("create_stream", json!({"max_age_secs": 60}), "create_stream.duplicate_window_secs"),
            ("create_stream", json!({"max_age_secs": u64::MAX}), "create_stream.max_age_secs"),
            ("create_stream", json!({"max_bytes": u64::MAX}), "create_stream.max_bytes"),
            ("credentials", json!({"token": secret, "nkey": secret}), "credentials"),
            ("credentials", json!({"user": "me"}), "credentials.password"),
            ("credentials", json!({"password": secret}), "credentials.user"),
            ("tls", json!({"cert": "a.pem"}), "tls.key"),
            ("tls", json!({"key": "a.pem"}), "tls.cert"),
        ] {
            let problem = with(key, value).check(false, 500).unwrap_err();
            assert_eq!(problem.key, at, "{problem}");
            assert!(!problem.problem.contains("hunter2"), "{problem}");
        }
        let problem = with("tls", json!({})).check(true, 1000).unwrap_err();
        assert_eq!(problem.key, "batch.max_records");
    }

    #[test]
    fn unknown_keys_are_refused_and_what_was_read_is_written_the_same() {
        for value in [json!({"x": 1}), json!({"credentials": {"jwt": "a"}}), json!({"create_stream": {"max_age": 1}})] {
            let mut config = json!({"servers": ["nats://a"]});
            config.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            serde_json::from_value::<NatsConfig>(config).unwrap_err();
        }
        let config = with("credentials", json!({"user": "me", "password": {"file": "/p"}}));
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<NatsConfig>(written).unwrap(), config);
    }
}
