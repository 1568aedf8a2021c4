//! `type: kafka`: the sink, and delivery at least once.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{Batch, ConfigProblem, Decision, Id, Letter, Sink, SinkError, Terms};
use rdkafka::{
    error::RDKafkaErrorCode,
    producer::{Producer as _, PurgeConfig},
};
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

use crate::{
    catalog::{Catalog, Made},
    config::{KafkaConfig, Mechanism},
    connection::{Connection, largest, of_client},
    credentials::Credentials,
    failure::{self, Meaning},
    feedback::Stop,
    flight::{Flight, Halt},
    message::{Destination, Messages, Writing},
    topic::Topics,
    transaction::Ledger,
};

/// librdkafka's default for a batch, which is less than what brokers take by default.
const BATCH_BYTES: usize = 1_000_000;

/// What a batch has besides its messages.
const BATCH_FRAME: usize = 128;

/// What is asked of librdkafka's queue when a message has failed.
const DRAINS: Duration = Duration::from_secs(5);

/// Records as messages of a Kafka cluster.
pub struct KafkaSink {
    pub(crate) config: KafkaConfig,
    pub(crate) terms: Terms,
    messages: Arc<Messages>,
    /// No larger message is worth asking a broker about.
    pub(crate) largest: usize,
    /// How large a batch of librdkafka's may be, so that every topic takes it.
    pub(crate) batch_bytes: usize,
    pub(crate) connection: Option<Connection>,
    pub(crate) catalog: Catalog,
    /// The batch that is with librdkafka. It stays there when delivery hears that nothing is acknowledged.
    flight: Option<Flight>,
    /// One message at a time, until a whole batch got through.
    pub(crate) careful: bool,
    pub(crate) ledger: Ledger,
}

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink").field("name", &self.terms.name).finish_non_exhaustive()
    }
}

impl KafkaSink {
    /// Prepares to write. The brokers need not be there yet.
    pub fn open(config: &KafkaConfig, terms: Terms) -> Result<Self, ConfigProblem> {
        config.check(terms.exactly_once, terms.format)?;
        let topics = Topics::new(&config.topic, &terms.cluster.name);
        let topics = topics.map_err(|error| ConfigProblem::new("topic", error.to_string()))?;
        if config.tls.is_none()
            && config
                .sasl
                .as_ref()
                .is_some_and(|sasl| matches!(sasl.mechanism, Mechanism::Plain | Mechanism::OAuthBearer))
        {
            warn!(sink = terms.name, "without tls the credentials of this sink are sent in the clear");
        }
        let given = config.properties.get("batch.size").and_then(|value| value.to_text().parse().ok());
        Ok(Self {
            messages: Arc::new(Messages { format: terms.format, topics, control_topic: config.control_topic.clone() }),
            largest: largest(config),
            batch_bytes: given.unwrap_or(BATCH_BYTES),
            config: config.clone(),
            connection: None,
            catalog: Catalog::new(config, terms.letters.as_ref()),
            terms,
            flight: None,
            careful: false,
            ledger: Ledger::default(),
        })
    }

    async fn write(&mut self, batch: &Batch, cursor: Option<&Bytes>, writing: Writing<'_>) -> Result<(), SinkError> {
        match self.terms.exactly_once {
            true => self.exactly_once(batch, cursor, writing).await,
            false => self.at_least_once(batch, writing).await,
        }
    }

    async fn at_least_once(&mut self, batch: &Batch, writing: Writing<'_>) -> Result<(), SinkError> {
        self.look_at_credentials().await;
        // Delivery has thought otherwise: what was not sent yet must not be.
        if self.flight.is_some_and(|flight| flight.batch != batch.id) {
            self.close().await;
        }
        let mut flight = loop {
            if let Some(flight) = self.flight {
                break flight;
            }
            let connection = self.connected().await?;
            connection.feedback.begin(batch.records.len());
            if self.prepare(batch, writing).await? {
                break Flight::new(batch.id, self.careful, self.largest);
            }
            self.close().await;
        };
        let Some(connection) = &self.connection else { return Err(SinkError::retry("the producer is gone")) };
        let slot = self.flight.insert(flight);
        let sent = slot.hand_over(connection, writing, &self.catalog, &batch.records).await;
        flight = *slot;
        let sent = match sent {
            Ok(()) => connection.settled().await.map_err(Halt::from),
            halted => halted,
        };
        debug_assert!(sent.is_err() || flight.next == batch.records.len(), "all of it was handed over");
        match sent {
            Ok(()) => {
                self.flight = None;
                self.careful = false;
                Ok(())
            }
            // It stays with librdkafka, which alone can repeat it without writing it twice.
            Err(Halt::Stop(Stop::Stalled)) => Err(connection.stalled("write", "nothing was acknowledged for long")),
            Err(Halt::Stop(Stop::Shut(trouble))) => {
                Err(SinkError::new(trouble.decision, format!("write: {}", trouble.message)))
            }
            Err(Halt::TooLarge(record)) => {
                self.flight = None;
                let message = format!("the record is larger than message.max.bytes ({})", self.largest);
                Err(SinkError::new(Decision::Oversize, message).behind(record))
            }
            Err(Halt::Stop(Stop::Broken)) => Err(self.broken(batch.records.len(), None).await),
            Err(Halt::NotTaken(code)) => Err(self.broken(batch.records.len(), Some(code)).await),
        }
    }

    /// A message was refused. Nothing behind it is sent; what is on its way is waited for.
    async fn broken(&mut self, records: usize, not_taken: Option<RDKafkaErrorCode>) -> SinkError {
        let Some(connection) = &self.connection else { return SinkError::retry("the producer is gone") };
        connection.producer.purge(PurgeConfig::default().queue());
        connection.feedback.drained(DRAINS).await;
        let durable = connection.feedback.durable(records);
        let failed = connection.feedback.failed();
        let code = failed.map(|(_, code)| code).or(not_taken).or(connection.fatal().map(|(code, _)| code));
        let code = code.unwrap_or(RDKafkaErrorCode::Fatal);
        debug!(?failed, ?not_taken, durable, "a message was not taken");
        let alone =
            self.flight.is_some_and(|flight| flight.alone) && failed.is_some_and(|(record, _)| record == durable);
        self.close().await;
        self.catalog.forget();
        match failure::meaning(code) {
            Meaning::TooLarge if alone => SinkError::new(Decision::Oversize, format!("write: {code}")),
            Meaning::Refused if alone => SinkError::new(Decision::Poison, format!("write: {code}")),
            Meaning::TooLarge | Meaning::Refused => {
                // The broker refuses batches of messages: alone it will be seen which one it is.
                self.careful = true;
                SinkError::new(Decision::Retry { after: Some(Duration::ZERO) }, format!("write: {code}"))
            }
            Meaning::Away | Meaning::Closed | Meaning::Fenced => of_client(code, "write"),
        }
        .behind(durable)
    }

    /// Whether everything is ready for this batch; if not, another connection is needed.
    pub(crate) async fn prepare(&mut self, batch: &Batch, writing: Writing<'_>) -> Result<bool, SinkError> {
        let Some(connection) = &self.connection else { return Ok(false) };
        let create = self.config.create_topics.as_ref();
        let mut found = Vec::new();
        for record in &batch.records {
            match writing.destination(record) {
                None => {}
                Some(Destination::Key(name)) => {
                    let control = self.config.control_topic.as_ref() == Some(&name);
                    let made = create.map(match writing {
                        Writing::Letter(..) => Made::for_letters,
                        Writing::Records(_) if control => Made::for_control,
                        Writing::Records(_) => Made::for_records,
                    });
                    self.catalog.ensure(connection, &self.config, &name, made).await?;
                }
                Some(Destination::Partitions(pattern)) => {
                    if found.contains(&pattern) {
                        continue;
                    }
                    if let Some(name) = pattern.only() {
                        self.catalog.ensure(connection, &self.config, name, create.map(Made::for_records)).await?;
                    }
                    // Partitions may have been added.
                    self.catalog.find(connection, &self.config, &pattern).await?;
                    found.push(pattern);
                }
            }
        }
        match self.catalog.least() {
            Some(least) if least < self.batch_bytes => {
                self.batch_bytes = least.saturating_sub(BATCH_FRAME).max(1);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    async fn connected(&mut self) -> Result<&Connection, SinkError> {
        if self.connection.is_none() {
            let (config, terms, batch_bytes) = (self.config.clone(), self.terms.clone(), self.batch_bytes);
            let opened = spawn_blocking(move || Connection::open_now(&config, &terms, batch_bytes)).await;
            self.connection = Some(opened.map_err(|panic| SinkError::fatal(format!("make a producer: {panic}")))??);
        }
        self.connection.as_ref().ok_or_else(|| SinkError::retry("the producer is gone"))
    }

    /// Drops a producer whose credentials are not those in the files any more, or that has come to its end.
    pub(crate) async fn look_at_credentials(&mut self) {
        let Some(connection) = &self.connection else { return };
        let mut over = connection.fatal().is_some();
        if self.config.tls.is_some() || self.config.sasl.is_some() {
            let config = self.config.clone();
            // Files that are being replaced may be missing for a moment: what we have is still good.
            if let Ok(Ok(now)) = spawn_blocking(move || Credentials::read(&config)).await {
                over |= now != connection.credentials;
            }
        }
        if over {
            self.close().await;
        }
    }

    /// Drops the producer, and with it what it has not sent.
    pub(crate) async fn close(&mut self) {
        self.flight = None;
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }
}

#[async_trait]
impl Sink for KafkaSink {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let messages = Arc::clone(&self.messages);
        self.write(batch, cursor, Writing::Records(&messages)).await
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        if self.terms.exactly_once { self.restored().await } else { Ok(None) }
    }

    async fn set_aside(&mut self, letter: &Letter, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let Some(topic) = self.terms.letters.clone() else {
            return Err(SinkError::hold("there is no topic for dead letters"));
        };
        let (records, seq) = (vec![letter.record.clone()], letter.record.seq);
        // Another one than that of a batch that has the record: the two must not be taken for one.
        let id = Id(letter.record.id.0.map(|byte| !byte));
        self.write(&Batch { id, from: seq, to: seq, records }, cursor, Writing::Letter(&topic, letter)).await
    }
}
