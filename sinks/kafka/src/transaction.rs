//! `delivery: exactly_once`: the records of a batch and its cursor in one transaction.
//!
//! Who writes is decided by the broker: making a producer under our identity fences off whoever had it before, and only then the cursor is read.
//! Whether a commit of which nothing was heard has happened is not guessed at: the producer is dropped, a new one is made, and the
//! cursor is read again. If it is the one that was to be committed, the batch is there. If it is neither that nor the one
//! before, somebody else has been writing, and we are the one to go.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use kubetide_sink::{Batch, Decision, SinkError, Terms};
use rdkafka::{
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::Producer as _,
};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::{
    catalog::Made,
    connection::{Address, Connection, PATIENCE, Producer, context, of_client, transactional_id},
    credentials::Credentials,
    cursor::{self, Hidden},
    failure::{self, Meaning},
    feedback::Stop,
    flight::{Flight, Halt, send},
    message::{Outgoing, Writing},
    sink::KafkaSink,
};

/// The broker aborts a transaction that is open for longer. Kafka's own default.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A transaction that is nearly as old as that may have been ended by the broker, which looks no different from being fenced off.
const OLD: Duration = Duration::from_secs(45);

/// How long one call of librdkafka may take before it is looked whether the brokers let us in at all.
const SLICE: Duration = Duration::from_secs(1);

/// So many records are handed over before the cursor: the partitions of a transaction are told to the broker one lot after the other, and
/// the first lot is to have as many as possible, with the cursor's among them.
const BEFORE_CURSOR: usize = 16;

/// So long acknowledgements are waited for that we know of to be let go.
const LETS_GO: Duration = Duration::from_millis(100);

/// What is known of the cursor in Kafka.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The cursor that is committed, as far as we know; none before it was read.
    committed: Option<Option<Bytes>>,
    /// The cursor whose commit was tried last.
    tried: Option<Bytes>,
    /// Whether the producer has our identity and the cursor was read under it.
    ready: bool,
    /// When the transaction that is open began.
    open: Option<Instant>,
    /// A producer that is being made. Waited for before another one is made, so that an old one does not fence off a new one.
    opening: Option<JoinHandle<Result<Connection, SinkError>>>,
    /// Why nothing will ever be written again.
    lost: Option<String>,
}

impl KafkaSink {
    /// Fences off whoever wrote before, and reads the cursor.
    pub(crate) async fn restored(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.still_ours()?;
        self.close().await;
        let stored = self.take_over().await?;
        self.ledger.committed = Some(stored.clone());
        self.ledger.ready = true;
        Ok(stored)
    }

    /// Commits the batch and the cursor, or nothing.
    pub(crate) async fn exactly_once(
        &mut self,
        batch: &Batch,
        cursor: Option<&Bytes>,
        writing: Writing<'_>,
    ) -> Result<(), SinkError> {
        self.still_ours()?;
        // A call that was dropped has not heard of it.
        let fatal = self.connection.as_ref().and_then(Connection::fatal);
        if fatal.is_some_and(|(code, _)| failure::meaning(code) == Meaning::Fenced) {
            return Err(self.fenced().await);
        }
        self.look_at_credentials().await;
        // A call was dropped in the middle: what became of its transaction must be asked.
        if !self.ledger.ready || self.ledger.open.is_some() {
            self.close().await;
        }
        loop {
            if self.connection.is_none() {
                // Whoever has taken our place in the meantime is left in peace.
                if self.ledger.committed.is_some() {
                    let stored = self.stored(Hidden::Ignored).await?;
                    self.judge(&stored)?;
                }
                let stored = self.take_over().await?;
                self.judge(&stored)?;
                self.ledger.ready = true;
                if stored.is_some() && stored.as_ref() == cursor {
                    return Ok(());
                }
            }
            if self.prepare(batch, writing).await? {
                break;
            }
            self.close().await;
        }
        self.run(batch, cursor, writing).await
    }

    fn still_ours(&self) -> Result<(), SinkError> {
        self.ledger.lost.as_ref().map_or(Ok(()), |why| Err(SinkError::fatal(why.clone())))
    }

    /// Makes a producer that has our identity alone, and reads the cursor.
    async fn take_over(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.ledger.ready = false;
        self.ledger.open = None;
        if let Some(opening) = self.ledger.opening.as_mut() {
            // Whatever it came to, it came too late.
            let opened = opening.await;
            self.ledger.opening = None;
            if let Ok(Ok(connection)) = opened {
                connection.close().await;
            }
        }
        let (config, terms, batch_bytes) = (self.config.clone(), self.terms.clone(), self.batch_bytes);
        let asked = Arc::new(());
        let still = Arc::downgrade(&asked);
        let opening = spawn_blocking(move || {
            let connection = Connection::open_now(&config, &terms, batch_bytes)?;
            take_identity(&connection, &terms, &still)?;
            Ok(connection)
        });
        let opened = self.ledger.opening.insert(opening).await;
        self.ledger.opening = None;
        let connection =
            self.connection.insert(opened.map_err(|panic| SinkError::fatal(format!("make a producer: {panic}")))??);
        let topic = self.config.cursor_topic.clone();
        let made = self.config.create_topics.as_ref().map(Made::for_cursors);
        self.catalog.ensure(connection, &self.config, &topic, made).await?;
        if self.catalog.get(&topic).is_some_and(|known| known.compacted == Some(false)) {
            self.catalog.forget();
            let act = "set its cleanup.policy to compact, or cursors get lost";
            return Err(SinkError::hold(format!("the topic {topic} is not compacted: {act}")));
        }
        self.stored(Hidden::Awaited).await
    }

    /// The cursor that is in Kafka.
    async fn stored(&self, hidden: Hidden) -> Result<Option<Bytes>, SinkError> {
        let (config, terms) = (self.config.clone(), self.terms.clone());
        let asked = Arc::new(());
        let still = Arc::downgrade(&asked);
        let read = spawn_blocking(move || {
            let credentials = Credentials::read(&config)?;
            let client = credentials.client(&config, &terms);
            let context = || context(&config, &credentials, Arc::default());
            cursor::read(&client, context, &config.cursor_topic, &transactional_id(&terms), hidden, &still)
        });
        read.await.map_err(|panic| SinkError::fatal(format!("read the cursor: {panic}")))?
    }

    /// Whether the cursor that was found is one that we have written.
    fn judge(&mut self, stored: &Option<Bytes>) -> Result<(), SinkError> {
        let ledger = &mut self.ledger;
        let ours = ledger.committed.as_ref().is_none_or(|committed| committed == stored)
            || stored.is_some() && *stored == ledger.tried;
        if !ours {
            return Err(self.lose("its cursor is not the one that this process has written"));
        }
        ledger.committed = Some(stored.clone());
        Ok(())
    }

    async fn run(&mut self, batch: &Batch, cursor: Option<&Bytes>, writing: Writing<'_>) -> Result<(), SinkError> {
        self.ledger.open = Some(Instant::now());
        self.call("begin a transaction", |producer| producer.begin_transaction()).await?;
        let Some(connection) = &self.connection else { return Err(SinkError::retry("the producer is gone")) };
        let mut flight = Flight::new(batch.id, self.careful, self.largest);
        connection.feedback.begin(batch.records.len() + 1);
        let sent = async {
            let first = &batch.records[..batch.records.len().min(BEFORE_CURSOR)];
            flight.hand_over(connection, writing, &self.catalog, first).await?;
            if let Some(cursor) = cursor {
                let key = transactional_id(&self.terms);
                let message = Outgoing {
                    key,
                    headers: Vec::new(),
                    body: Some(cursor.to_vec()),
                    then_tombstone: false,
                    timestamp: 0,
                };
                let to = Address { topic: &self.config.cursor_topic, partition: Some(cursor::PARTITION) };
                send(connection, to, batch.records.len(), &message, Some(cursor)).await?;
            }
            flight.hand_over(connection, writing, &self.catalog, &batch.records).await?;
            connection.settled().await.map_err(Halt::from)
        };
        if let Err(halt) = sent.await {
            return Err(self.fall(halt, flight.alone).await);
        }
        self.ledger.tried = cursor.cloned();
        self.call("commit a transaction", commit).await?;
        self.ledger.open = None;
        if cursor.is_some() {
            self.ledger.committed = Some(cursor.cloned());
        }
        self.careful = false;
        Ok(())
    }

    /// A call that blocks. If it fails, it is not known what it has come to: the producer is dropped, and the next one asks.
    async fn call(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&Producer) -> KafkaResult<()> + Send + 'static,
    ) -> Result<(), SinkError> {
        let Some(connection) = &self.connection else { return Err(SinkError::retry("the producer is gone")) };
        let producer = connection.producer.clone();
        let called = spawn_blocking(move || call(&producer)).await;
        let Err(error) = called.map_err(|panic| SinkError::fatal(format!("{what}: {panic}")))? else { return Ok(()) };
        let code = connection.fatal().map(|(code, _)| code).or(error.rdkafka_error_code());
        if code.map(failure::meaning) == Some(Meaning::Fenced) {
            return Err(self.fenced().await);
        }
        self.close().await;
        Err(failure::error(what, &error))
    }

    /// The transaction cannot be committed: what delivery should do.
    async fn fall(&mut self, halt: Halt, alone: bool) -> SinkError {
        let Some(connection) = &self.connection else { return SinkError::retry("the producer is gone") };
        let (record, code) = match halt {
            Halt::Stop(Stop::Stalled) => {
                let error = connection.stalled("write", "nothing was acknowledged for long");
                self.close().await;
                return error;
            }
            Halt::Stop(Stop::Shut(trouble)) => {
                self.close().await;
                return SinkError::new(trouble.decision, format!("write: {}", trouble.message));
            }
            Halt::TooLarge(record) => {
                let error = refused(record, Decision::Oversize, "the record is larger than message.max.bytes");
                self.abort().await;
                return error;
            }
            Halt::Stop(Stop::Broken) | Halt::NotTaken(_) => {
                connection.feedback.drained(PATIENCE).await;
                let fatal = connection.fatal().map(|(code, _)| (0, code));
                let not_taken = if let Halt::NotTaken(code) = halt { Some((0, code)) } else { None };
                fatal.or(connection.feedback.failed()).or(not_taken).unwrap_or((0, RDKafkaErrorCode::Unknown))
            }
        };
        self.of_code(record, code, alone).await
    }

    async fn of_code(&mut self, record: usize, code: RDKafkaErrorCode, alone: bool) -> SinkError {
        let decision = match failure::meaning(code) {
            Meaning::Fenced => return self.fenced().await,
            Meaning::TooLarge => Decision::Oversize,
            Meaning::Refused => Decision::Poison,
            Meaning::Away | Meaning::Closed => {
                self.catalog.forget();
                self.close().await;
                return of_client(code, "write");
            }
        };
        // Not aborted: librdkafka has numbered the messages that were refused, and the broker would miss them.
        self.close().await;
        if !alone {
            // The broker refuses batches of messages: alone it will be seen which one it is.
            self.careful = true;
            return SinkError::new(Decision::Retry { after: Some(Duration::ZERO) }, format!("write: {code}"));
        }
        refused(record, decision, &format!("write: {code}"))
    }

    /// Ends the transaction without a trace.
    async fn abort(&mut self) {
        let Some(connection) = &self.connection else { return };
        let producer = connection.producer.clone();
        let aborted = spawn_blocking(move || producer.abort_transaction(PATIENCE)).await;
        connection.feedback.drained(PATIENCE).await;
        if matches!(aborted, Ok(Ok(()))) && connection.feedback.outstanding() == 0 {
            self.ledger.open = None;
        } else {
            self.close().await;
        }
    }

    /// The broker says that our identity is another's.
    async fn fenced(&mut self) -> SinkError {
        let open = self.ledger.open.take();
        self.close().await;
        if open.is_some_and(|since| since.elapsed() > OLD) {
            return SinkError::retry("the broker has ended a transaction that took too long");
        }
        self.lose("the broker has fenced it off")
    }

    fn lose(&mut self, why: &str) -> SinkError {
        let id = transactional_id(&self.terms);
        let message = format!(
            "another process writes as {id}: {why}; give each sink of each process a name of its own, or stop one of them"
        );
        self.ledger.lost = Some(message.clone());
        SinkError::fatal(message)
    }
}

/// Commits what is acknowledged. Blocks.
///
/// rdkafka looks first whether anything is outstanding, and if so waits for 100 ms before it looks again. The last acknowledgements count
/// as outstanding until the thread that has told us of them lets them go, which takes it some microseconds.
fn commit(producer: &Producer) -> KafkaResult<()> {
    let since = Instant::now();
    while producer.in_flight_count() > 0 && since.elapsed() < LETS_GO {
        std::thread::sleep(Duration::from_micros(50));
    }
    producer.commit_transaction(PATIENCE)
}

/// Nothing of a transaction that is not committed is durable: what is refused behind the first record asks for smaller batches.
fn refused(record: usize, decision: Decision, message: &str) -> SinkError {
    SinkError::new(if record == 0 { decision } else { Decision::Split }, message)
}

/// From here on nobody else has our identity. Ends what was left open under it. Blocks, as long as `asked` is alive.
fn take_identity(connection: &Connection, terms: &Terms, asked: &Weak<()>) -> Result<(), SinkError> {
    let what = format!("take the identity {}", transactional_id(terms));
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        let error = match connection.producer.init_transactions(SLICE) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if let Some(trouble) = connection.feedback.shut() {
            return Err(SinkError::new(trouble.decision, format!("{what}: {}", trouble.message)));
        }
        let again = matches!(&error, KafkaError::Transaction(error) if error.is_retriable());
        if !again {
            return Err(failure::error(&what, &error));
        }
        if Instant::now() > deadline || asked.strong_count() == 0 {
            return Err(connection.stalled(&what, &error.to_string()));
        }
    }
}
