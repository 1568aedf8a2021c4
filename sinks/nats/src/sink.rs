//! `type: nats`: connects when it delivers, looks at the stream, publishes.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{Batch, ConfigProblem, Decision, Letter, Sink, SinkError, Terms};

use crate::{
    NatsConfig,
    access::Access,
    at_least_once,
    connection::Connection,
    exactly_once::Fence,
    letter,
    message::Making,
    stream::{self, Facts, Need},
    subject::Subjects,
};

/// So often the files of credentials and certificates are looked at while a connection stands.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A stream of a NATS server.
pub struct NatsSink {
    config: NatsConfig,
    /// What the server shows as the name of the client.
    name: String,
    making: Making,
    need: Need,
    /// Where the cursor is committed with the records.
    fence: Option<Fence>,
    /// The subject of dead letters; none if they are not published.
    letters: Option<String>,
    /// None until it is needed, and after a failure.
    link: Option<Link>,
    /// What was warned of, so that it is not said again at each connection.
    warned: Vec<String>,
}

/// A connection, what it was made with, and what the stream is like.
struct Link {
    connection: Connection,
    access: Access,
    looked: Instant,
    max_message: usize,
}

impl NatsSink {
    /// Makes the sink. No server need be there.
    pub fn open(config: &NatsConfig, terms: Terms) -> Result<Self, ConfigProblem> {
        // How large batches are is not known here; one that is too large is split.
        config.check(terms.exactly_once, 0)?;
        let Terms { name, cluster, format, exactly_once, letters } = terms;
        let subjects = Subjects::parse(&config.subject, &cluster, &name)?;
        Ok(Self {
            config: config.clone(),
            name: format!("kubetide-{name}"),
            need: Need::new(config, &subjects, format, exactly_once),
            making: Making { format, subjects, stream: config.stream.clone() },
            fence: exactly_once.then(Fence::new),
            letters,
            link: None,
            warned: Vec::new(),
        })
    }

    /// The connection there is, if it still is one and its credentials are those of now; else a new one.
    async fn link(&mut self) -> Result<Link, SinkError> {
        // Taken out: if this is cancelled, it is not used again.
        let old = match self.link.take().filter(|link| link.connection.is_up()) {
            Some(link) if link.looked.elapsed() < LOOK_EVERY => return Ok(link),
            old => old,
        };
        let access = self.access().await?;
        if let Some(link) = old.filter(|link| link.access == access) {
            return Ok(Link { looked: Instant::now(), ..link });
        }
        let mut connection = Connection::open(&self.config, &access, &self.name).await?;
        let facts = stream::prepare(&mut connection, &self.config.stream, &self.need).await?;
        let max_message = connection.max_payload().min(facts.max_message.unwrap_or(usize::MAX));
        self.warn(facts);
        Ok(Link { connection, access, looked: Instant::now(), max_message })
    }

    async fn access(&self) -> Result<Access, SinkError> {
        let config = self.config.clone();
        match tokio::task::spawn_blocking(move || Access::read(&config)).await {
            Ok(Ok(access)) => Ok(access),
            Ok(Err(error)) => Err(SinkError::hold(format!("read the credentials: {error}"))),
            Err(ended) => Err(SinkError::retry(format!("read the credentials: {ended}"))),
        }
    }

    fn warn(&mut self, facts: Facts) {
        for warning in facts.warnings.iter().filter(|warning| !self.warned.contains(warning)) {
            tracing::warn!(stream = self.config.stream, "{warning}");
        }
        self.warned = facts.warnings;
    }

    /// Keeps the connection if it is as good as before.
    fn put_back(&mut self, link: Link, outcome: Option<&SinkError>) {
        let is_good = match outcome.map(|error| error.decision) {
            None | Some(Decision::Oversize | Decision::Poison | Decision::Split) => true,
            // The stream, the server or who we are may be another one when it is tried again.
            Some(Decision::Retry { .. } | Decision::Hold | Decision::Fatal) => false,
        };
        self.link = Some(link).filter(|_| is_good);
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        if batch.records.is_empty() && cursor.is_none() {
            return Ok(());
        }
        let mut link = self.link().await?;
        let Link { connection, max_message, .. } = &mut link;
        let outcome = match (&mut self.fence, cursor) {
            (Some(fence), Some(cursor)) => fence.commit(connection, &self.making, batch, cursor, *max_message).await,
            _ => at_least_once::publish(connection, &self.making, batch, *max_message).await,
        };
        self.put_back(link, outcome.as_ref().err());
        outcome
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        if self.fence.is_none() {
            return Ok(None);
        }
        let mut link = self.link().await?;
        let Some(fence) = &mut self.fence else { return Ok(None) };
        let outcome = fence.restore(&mut link.connection, &self.making).await;
        self.put_back(link, outcome.as_ref().err());
        outcome
    }
    async fn set_aside(&mut self, letter: &Letter, _: Option<&Bytes>) -> Result<(), SinkError> {
        let Some(subject) = self.letters.clone() else {
            return Err(SinkError::hold("there is no subject for dead letters"));
        };
        let mut link = self.link().await?;
        let outcome = letter::publish(&mut link.connection, Making::letter(&subject, letter), link.max_message).await;
        self.put_back(link, outcome.as_ref().err());
        outcome
    }
}
