//! A producer: how it is made, fed and ended.

use std::{sync::Arc, time::Duration};

use kubetide_sink::{Decision, SinkError, Terms};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, Producer as _, PurgeConfig, ThreadedProducer},
    types::RDKafkaErrorCode as Code,
};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    config::KafkaConfig,
    credentials::Credentials,
    failure,
    feedback::{Context, Feedback, Stop},
    message::Outgoing,
};

/// How long nothing may be acknowledged before delivery hears of it. What is with librdkafka stays there and goes on, so that a second look
/// costs nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long one question for metadata waits before it looks whether the brokers let us in at all.
const SLICE: Duration = Duration::from_secs(1);

/// More than a record with an object of 1.5 MiB, its predecessor and the patch between them. What is larger is not worth asking a broker.
pub(crate) const LARGEST: usize = 8 * 1024 * 1024;

/// What librdkafka holds at most: a batch is 1 MiB if nobody says otherwise.
const QUEUE_KBYTES: usize = 32 * 1024;

pub(crate) type Producer = ThreadedProducer<Context>;

/// A topic, and the number of its partitions or what is wrong with it.
type Listed = (String, Result<i32, RDKafkaErrorCode>);

/// A producer and what it tells.
pub(crate) struct Connection {
    pub(crate) producer: Producer,
    pub(crate) feedback: Arc<Feedback>,
    pub(crate) credentials: Credentials,
    /// For further clients with the same credentials.
    pub(crate) client: ClientConfig,
}

/// Where a message goes.
#[derive(Clone, Copy)]
pub(crate) struct Address<'a> {
    pub(crate) topic: &'a str,
    /// None: that of the key.
    pub(crate) partition: Option<i32>,
}

impl Connection {
    /// Reads the credentials and makes a producer with them. Blocks.
    pub(crate) fn open_now(config: &KafkaConfig, terms: &Terms, batch_bytes: usize) -> Result<Self, SinkError> {
        Self::open(config, terms, batch_bytes, Credentials::read(config)?)
    }

    /// Makes a producer. It connects when it is used.
    fn open(
        config: &KafkaConfig,
        terms: &Terms,
        batch_bytes: usize,
        credentials: Credentials,
    ) -> Result<Self, SinkError> {
        let client = credentials.client(config, terms);
        let mut producing = client.clone();
        for (name, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("partitioner", "murmur2_random"),
            ("allow.auto.create.topics", "false"),
            ("compression.type", config.compression.as_str()),
        ] {
            producing.set(name, value);
        }
        let mut unless_given = |name: &str, value: String| {
            if !config.properties.contains_key(name) {
                producing.set(name, value);
            }
        };
        // A batch is handed over at once: there is nothing to wait for.
        unless_given("linger.ms", "0".into());
        unless_given("message.max.bytes", LARGEST.to_string());
        producing.set("batch.size", batch_bytes.to_string());
        producing.set("queue.buffering.max.kbytes", QUEUE_KBYTES.max(2 * largest(config) / 1024).to_string());
        if terms.exactly_once {
            producing.set("transactional.id", transactional_id(terms));
            producing.set("transaction.timeout.ms", crate::transaction::TIMEOUT.as_millis().to_string());
        } else {
            // A message that expires would be overtaken by the next one of its key, and so would one that is refused.
            producing.set("message.timeout.ms", "0");
            producing.set("enable.gapless.guarantee", "true");
        }
        let feedback = Arc::new(Feedback::default());
        let context = context(config, &credentials, Arc::clone(&feedback));
        let producer = producing.create_with_context(context).map_err(|error| cannot("make a producer", error))?;
        Ok(Self { producer, feedback, credentials, client })
    }

    /// Hands a message over.
    pub(crate) fn send(
        &self,
        to: Address<'_>,
        record: usize,
        message: &Outgoing,
        body: Option<&[u8]>,
    ) -> Result<(), RDKafkaErrorCode> {
        let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
        // A tombstone is nothing but its key.
        if body.is_some() || message.body.is_none() {
            for (key, value) in &message.headers {
                headers = headers.insert(Header { key, value: Some(value) });
            }
        }
        let mut sent = BaseRecord::with_opaque_to(to.topic, record)
            .key(message.key.as_bytes())
            .timestamp(message.timestamp)
            .headers(headers);
        sent.payload = body;
        sent.partition = to.partition;
        self.feedback.sending(record);
        self.producer.send(sent).map_err(|(error, _)| {
            self.feedback.not_sent(record);
            error.rdkafka_error_code().unwrap_or(Code::InvalidArgument)
        })
    }

    /// Topics, each with the number of its partitions or what is wrong with it: this one, or all that there are.
    pub(crate) async fn metadata(&self, topic: Option<&str>) -> Result<Vec<Listed>, SinkError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (producer, topic) = (self.producer.clone(), topic.map(str::to_owned));
            let asked = spawn_blocking(move || fetch(&producer, topic.as_deref())).await;
            let error = match asked.map_err(|panic| SinkError::fatal(format!("ask for metadata: {panic}")))? {
                Ok(topics) => return Ok(topics),
                Err(error) => error,
            };
            if let Some(trouble) = self.feedback.shut() {
                return Err(SinkError::new(trouble.decision, trouble.message));
            }
            if Instant::now() > deadline {
                return Err(self.stalled("ask for metadata", &error.to_string()));
            }
        }
    }

    /// Nothing has come back for long.
    pub(crate) fn stalled(&self, what: &str, otherwise: &str) -> SinkError {
        match self.feedback.trouble() {
            Some(trouble) => SinkError::new(trouble.decision, format!("{what}: {}", trouble.message)),
            None => SinkError::retry(format!("{what}: {otherwise}")),
        }
    }

    /// Waits until everything that was handed over is acknowledged.
    pub(crate) async fn settled(&self) -> Result<(), Stop> {
        self.feedback.wait(PATIENCE, |state| state.outstanding == 0).await
    }

    /// Why the client as a whole can go no further, if it cannot.
    pub(crate) fn fatal(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.producer.client().fatal_error()
    }

    /// Ends the producer: what it has not sent it will not send any more.
    pub(crate) async fn close(self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
        // It waits for its threads. A panic in there concerns nobody any more.
        let _ = spawn_blocking(move || drop(self)).await;
    }
}

/// What librdkafka calls, for a client of this sink.
pub(crate) fn context(config: &KafkaConfig, credentials: &Credentials, feedback: Arc<Feedback>) -> Context {
    let token = config.sasl.as_ref().and_then(|sasl| sasl.token.clone());
    Context { feedback, token: token.map(|token| (token, credentials.principal().to_owned())) }
}

/// Whose transactions and whose cursor they are.
pub(crate) fn transactional_id(terms: &Terms) -> String {
    format!("kubetide-{}-{}", terms.cluster.uid, terms.name)
}

/// The largest message that is worth asking a broker about.
pub(crate) fn largest(config: &KafkaConfig) -> usize {
    let given = config.properties.get("message.max.bytes").and_then(|value| value.to_text().parse().ok());
    given.unwrap_or(LARGEST)
}

/// A client could not be made: what it was given is wrong. Its message may hold what it was given, so only a part of it is repeated.
pub(crate) fn cannot(what: &str, error: KafkaError) -> SinkError {
    let problem = match error {
        KafkaError::ClientConfig(_, problem, key, _) => format!("{key}: {problem}"),
        error => error.to_string(),
    };
    SinkError::new(Decision::Hold, format!("{what}: {problem}"))
}

fn fetch(producer: &Producer, topic: Option<&str>) -> Result<Vec<Listed>, KafkaError> {
    let metadata = producer.client().fetch_metadata(topic, SLICE)?;
    let topics = metadata.topics().iter().map(|topic| {
        let partitions = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
        let wrong = topic.error().map(RDKafkaErrorCode::from);
        (topic.name().to_owned(), wrong.map_or(Ok(partitions), Err))
    });
    Ok(topics.collect())
}

/// Retry or hold, for what has gone wrong with a client as a whole.
pub(crate) fn of_client(code: RDKafkaErrorCode, message: &str) -> SinkError {
    failure::error(message, &KafkaError::Global(code))
}
