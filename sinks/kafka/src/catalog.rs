//! The topics that the sink writes to: whether they are there, how many partitions they have, how much they take.

use std::{collections::HashMap, time::Duration};

use kubetide_sink::SinkError;
use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    config::FromClientConfigAndContext as _,
    types::RDKafkaErrorCode as Code,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tracing::{debug, info};

use crate::{
    config::{CleanupPolicy, CreateTopics, KafkaConfig, Mechanism},
    connection::{self, Connection, PATIENCE},
    failure::{self, Meaning},
    feedback::Context,
    topic::{self, Pattern},
};

/// Kafka's default of `max.message.bytes`, for brokers that do not say.
const USUAL_LIMIT: usize = 1_048_588;

/// How long a topic that was just made may be unknown to the next broker.
const SPREADS: Duration = Duration::from_millis(100);

/// What is known of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) partitions: i32,
    /// `max.message.bytes`: what a batch of messages may have, compressed.
    pub(crate) limit: usize,
    /// Whether the last message of each key is kept for ever; unknown if the broker does not say.
    pub(crate) compacted: Option<bool>,
}

/// What is known of all topics that were written to.
pub(crate) struct Catalog {
    known: HashMap<String, Known>,
    /// Topics that may look like those of records, and are not.
    apart: Vec<String>,
}

/// How a topic is made.
pub(crate) struct Made<'a> {
    partitions: i32,
    replication: i32,
    settings: Vec<(&'a str, &'a str)>,
}

impl<'a> Made<'a> {
    /// For records.
    pub(crate) fn for_records(create: &'a CreateTopics) -> Self {
        let settings = create.cleanup_policy.map(|policy| ("cleanup.policy", policy.as_str()));
        Self {
            partitions: or_default(create.partitions),
            replication: or_default(create.replication),
            settings: settings.into_iter().collect(),
        }
    }

    /// For control records with headers alone, which a compacted topic would take for tombstones.
    pub(crate) fn for_control(create: &'a CreateTopics) -> Self {
        Self { settings: vec![("cleanup.policy", CleanupPolicy::Delete.as_str())], ..Self::for_records(create) }
    }

    /// For dead letters: they stay until somebody removes them, and a compacted topic would keep one of each object.
    pub(crate) fn for_letters(create: &'a CreateTopics) -> Self {
        let settings = vec![("cleanup.policy", CleanupPolicy::Delete.as_str()), ("retention.ms", "-1")];
        Self { settings, ..Self::for_records(create) }
    }

    /// For cursors: one partition, of which only the last of each sink matters.
    pub(crate) fn for_cursors(create: &'a CreateTopics) -> Self {
        // A segment is not compacted while it is written to.
        let settings =
            vec![("cleanup.policy", "compact"), ("segment.bytes", "16777216"), ("min.cleanable.dirty.ratio", "0.1")];
        Self { partitions: 1, replication: or_default(create.replication), settings }
    }
}

/// -1 is the broker's default.
fn or_default(number: Option<std::num::NonZeroU32>) -> i32 {
    number.map_or(-1, |number| i32::try_from(number.get()).unwrap_or(i32::MAX))
}

impl Catalog {
    pub(crate) fn new(config: &KafkaConfig, letters: Option<&String>) -> Self {
        let apart = std::iter::once(&config.cursor_topic).chain(&config.control_topic).chain(letters);
        let apart = apart.cloned().collect();
        Self { known: HashMap::new(), apart }
    }

    /// Whether this is a topic of records that the pattern stands for.
    fn is_of(&self, pattern: &Pattern, name: &str) -> bool {
        pattern.has(name) && (pattern.only().is_some() || !self.apart.iter().any(|apart| apart == name))
    }

    /// What is known of this topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Known> {
        self.known.get(topic).copied()
    }

    /// The known topics that this stands for, with their partitions.
    pub(crate) fn of(&self, pattern: &Pattern) -> Vec<(String, i32)> {
        let all = self.known.iter().filter(|(name, _)| self.is_of(pattern, name));
        let mut all: Vec<_> = all.map(|(name, known)| (name.clone(), known.partitions)).collect();
        all.sort();
        all
    }

    /// The least that any of the topics takes.
    pub(crate) fn least(&self) -> Option<usize> {
        self.known.values().map(|known| known.limit).min()
    }

    /// Something about a topic has turned out to be otherwise: ask again.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Makes sure that this topic is there, and learns what it takes.
    pub(crate) async fn ensure(
        &mut self,
        connection: &Connection,
        config: &KafkaConfig,
        topic: &str,
        made: Option<Made<'_>>,
    ) -> Result<(), SinkError> {
        if self.known.contains_key(topic) {
            return Ok(());
        }
        topic::legal(topic).map_err(|problem| SinkError::hold(format!("{problem}; change the sink's topic")))?;
        let mut may_create = made;
        let deadline = Instant::now() + PATIENCE;
        let partitions = loop {
            match one(connection, topic).await? {
                Ok(partitions) if partitions > 0 => break partitions,
                Err(Code::UnknownTopicOrPartition | Code::UnknownTopic) if config.create_topics.is_none() => {
                    let act = "make it, or set create_topics";
                    return Err(SinkError::hold(format!("the topic {topic} is missing: {act}")));
                }
                Err(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
                    if let Some(made) = may_create.take() {
                        create(connection, topic, made).await?;
                    }
                }
                Err(code) if failure::meaning(code) == Meaning::Closed => {
                    return Err(SinkError::hold(format!("look for the topic {topic}: {code}")));
                }
                Ok(_) | Err(_) => {}
            }
            if Instant::now() > deadline {
                return Err(SinkError::retry(format!("the topic {topic} has no leader yet")));
            }
            sleep(SPREADS).await;
        };
        let (limit, compacted) = describe(connection, config, topic).await.unwrap_or((USUAL_LIMIT, None));
        self.known.insert(topic.to_owned(), Known { partitions, limit, compacted });
        Ok(())
    }

    /// Learns all topics that this stands for, and how many partitions they have now.
    pub(crate) async fn find(
        &mut self,
        connection: &Connection,
        config: &KafkaConfig,
        pattern: &Pattern,
    ) -> Result<(), SinkError> {
        for (name, partitions) in connection.metadata(pattern.only()).await? {
            if !self.is_of(pattern, &name) {
                continue;
            }
            let Ok(partitions) = partitions else { continue };
            self.ensure(connection, config, &name, None).await?;
            if let Some(known) = self.known.get_mut(&name) {
                known.partitions = partitions;
            }
        }
        Ok(())
    }
}

async fn one(connection: &Connection, topic: &str) -> Result<Result<i32, Code>, SinkError> {
    let mut topics = connection.metadata(Some(topic)).await?;
    Ok(topics.pop().map_or(Err(Code::UnknownTopic), |(_, partitions)| partitions))
}

async fn create(connection: &Connection, topic: &str, made: Made<'_>) -> Result<(), SinkError> {
    let mut new = NewTopic::new(topic, made.partitions, TopicReplication::Fixed(made.replication));
    for (key, value) in made.settings {
        new = new.set(key, value);
    }
    let what = format!("make the topic {topic}");
    let admin = admin(connection).await?;
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
    let answer = admin.create_topics([&new], &options).await;
    // It waits for its thread.
    let _ = spawn_blocking(move || drop(admin)).await;
    let results = answer.map_err(|error| failure::error(&what, &error))?;
    for result in results {
        match result {
            Ok(_) => info!(topic, "topic made"),
            Err((_, Code::TopicAlreadyExists)) => {}
            Err((_, code)) => return Err(connection::of_client(code, &what)),
        }
    }
    Ok(())
}

/// `max.message.bytes` and whether it is compacted; none if the broker does not tell us.
async fn describe(connection: &Connection, config: &KafkaConfig, topic: &str) -> Option<(usize, Option<bool>)> {
    // This kind of client cannot renew its token.
    if config.sasl.as_ref().is_some_and(|sasl| sasl.mechanism == Mechanism::OAuthBearer) {
        return None;
    }
    let admin = admin(connection).await.ok()?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let answer = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
    let _ = spawn_blocking(move || drop(admin)).await;
    let described = match answer.map(|mut all| all.pop()) {
        Ok(Some(Ok(described))) => described,
        Ok(Some(Err(code))) => {
            debug!(topic, %code, "the broker does not say what the topic takes");
            return None;
        }
        Ok(None) => return None,
        Err(error) => {
            debug!(topic, %error, "the broker does not say what the topic takes");
            return None;
        }
    };
    let value = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
    let limit = value("max.message.bytes").and_then(|value| value.parse().ok()).unwrap_or(USUAL_LIMIT);
    Some((limit, value("cleanup.policy").map(|policy| policy == CleanupPolicy::Compact.as_str())))
}

async fn admin(connection: &Connection) -> Result<AdminClient<Context>, SinkError> {
    let (client, feedback) = (connection.client.clone(), Default::default());
    let made =
        spawn_blocking(move || AdminClient::from_config_and_context(&client, Context { feedback, token: None })).await;
    let made = made.map_err(|panic| SinkError::fatal(format!("make an admin client: {panic}")))?;
    made.map_err(|error| connection::cannot("make an admin client", error))
}
