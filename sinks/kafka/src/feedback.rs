//! What a client of librdkafka tells while it works: acknowledgements, failures, trouble with its connections.
//!
//! librdkafka calls from a thread of its own. What it says is kept here, and whoever waits for it is woken.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kubetide_sink::{Decision, Reference};
use rdkafka::{
    ClientContext,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{DeliveryResult, ProducerContext},
    types::RDKafkaErrorCode as Code,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tracing::{debug, trace};

use crate::failure;

/// A token is read again so often, whatever it says of itself: it costs a file to be read.
const TOKEN_LIVES: Duration = Duration::from_secs(300);

/// What is known of the messages of one batch, and of the client that sends them.
#[derive(Default)]
pub(crate) struct Feedback {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    /// For each record of the batch how many of its messages are not acknowledged.
    pending: Vec<u32>,
    /// How many messages are with librdkafka.
    pub(crate) outstanding: usize,
    /// Counts acknowledgements.
    settled: u64,
    /// The first record that was refused for a reason of its own, and the reason.
    failed: Option<(usize, RDKafkaErrorCode)>,
    /// No further message will be acknowledged.
    broken: bool,
    trouble: Option<Trouble>,
}

/// The last thing that was wrong with a connection, since the last acknowledgement.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) decision: Decision,
    pub(crate) message: String,
    /// Nobody has been told yet.
    fresh: bool,
}

/// Why a wait has ended without what it was for.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Nothing was acknowledged for long. All goes on.
    Stalled,
    /// The brokers do not let us in. All goes on: they may think otherwise.
    Shut(Trouble),
    /// A message has failed, or the client.
    Broken,
}

impl Feedback {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch of so many records begins.
    pub(crate) fn begin(&self, records: usize) {
        let mut state = self.lock();
        state.pending.clear();
        state.pending.resize(records, 0);
        state.failed = None;
        state.broken = false;
    }

    /// A message of this record is about to be handed over.
    pub(crate) fn sending(&self, record: usize) {
        let mut state = self.lock();
        state.outstanding += 1;
        state.pending[record] += 1;
    }

    /// It was not taken.
    pub(crate) fn not_sent(&self, record: usize) {
        let mut state = self.lock();
        state.outstanding -= 1;
        state.pending[record] -= 1;
    }

    /// How many messages are with librdkafka.
    pub(crate) fn outstanding(&self) -> usize {
        self.lock().outstanding
    }

    fn settled(&self, record: usize, failed: Option<RDKafkaErrorCode>) {
        let mut state = self.lock();
        state.outstanding -= 1;
        match failed {
            None => {
                state.settled += 1;
                state.trouble = None;
                if let Some(pending) = state.pending.get_mut(record) {
                    *pending -= 1;
                }
            }
            Some(code) => {
                state.broken = true;
                // What falls with another says nothing of itself.
                let itself = !matches!(
                    code,
                    Code::Fatal | Code::PurgeQueue | Code::PurgeInflight | Code::GaplessGuarantee | Code::DestroyBroker
                );
                if itself && state.failed.is_none_or(|(first, _)| record < first) {
                    state.failed = Some((record, code));
                }
            }
        }
        // Waking for each of hundreds would cost more than the acknowledgement.
        if state.broken || state.outstanding.is_multiple_of(32) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How many of the first so many records are acknowledged without a hole.
    pub(crate) fn durable(&self, of: usize) -> usize {
        let state = self.lock();
        state.pending.iter().take(of).position(|pending| *pending > 0).unwrap_or(of)
    }

    /// The first record that was refused for a reason of its own.
    pub(crate) fn failed(&self) -> Option<(usize, RDKafkaErrorCode)> {
        self.lock().failed
    }

    /// What is wrong with the connections, if it was not told yet and nothing can be done about it here.
    pub(crate) fn shut(&self) -> Option<Trouble> {
        let mut state = self.lock();
        let trouble = state.trouble.as_mut().filter(|trouble| trouble.fresh && trouble.decision == Decision::Hold)?;
        trouble.fresh = false;
        Some(trouble.clone())
    }

    /// What is wrong with the connections.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.lock().trouble.clone()
    }

    /// Waits until `done`, as long as something is acknowledged within `patience`.
    pub(crate) async fn wait(&self, patience: Duration, done: impl Fn(&State) -> bool) -> Result<(), Stop> {
        let mut settled = None;
        let mut deadline = Instant::now() + patience;
        loop {
            {
                let state = self.lock();
                if state.broken {
                    return Err(Stop::Broken);
                }
                if done(&state) {
                    return Ok(());
                }
                if settled.replace(state.settled) != Some(state.settled) {
                    deadline = Instant::now() + patience;
                }
            }
            if let Some(trouble) = self.shut() {
                return Err(Stop::Shut(trouble));
            }
            if timeout_at(deadline, self.changed.notified()).await.is_err() {
                return Err(Stop::Stalled);
            }
        }
    }

    /// Waits until nothing is with librdkafka any more, or gives up.
    pub(crate) async fn drained(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.lock().outstanding > 0 {
            if timeout_at(deadline, self.changed.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// What librdkafka calls.
pub(crate) struct Context {
    pub(crate) feedback: Arc<Feedback>,
    /// Where the token is, and whose it is.
    pub(crate) token: Option<(Reference, String)>,
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    /// What matters of it comes back as an error of the sink; the rest is for whoever looks for a cause.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug => trace!(facility, "librdkafka: {message}"),
            _ => debug!(facility, ?level, "librdkafka: {message}"),
        }
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        debug!(?code, reason, "librdkafka reports an error");
        let mut state = self.feedback.lock();
        if code == Code::Fatal {
            state.broken = true;
        } else {
            let decision = failure::of_connection(code, reason);
            // That all brokers are down says less than why.
            if code == Code::AllBrokersDown && state.trouble.is_some() {
                return;
            }
            let known = state.trouble.as_ref().is_some_and(|trouble| !trouble.fresh && trouble.message == reason);
            state.trouble = Some(Trouble { decision, message: reason.to_owned(), fresh: !known });
        }
        drop(state);
        self.feedback.changed.notify_one();
    }

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let (reference, principal) = self.token.as_ref().ok_or("no token is configured")?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let lifetime_ms = i64::try_from((now + TOKEN_LIVES).as_millis())?;
        Ok(OAuthToken { token: reference.read_text()?, principal_name: principal.clone(), lifetime_ms })
    }
}

impl ProducerContext for Context {
    /// The record that a message is of.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, record: usize) {
        let failed = result.as_ref().err().map(|(error, _)| error.rdkafka_error_code().unwrap_or(Code::Unknown));
        self.feedback.settled(record, failed);
    }
}

impl ConsumerContext for Context {}
