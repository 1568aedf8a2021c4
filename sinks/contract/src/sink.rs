//! The trait that every sink implements, and what its answers mean.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Cluster, Format, Id, Letter, Record};

/// Consecutive records of the log for one sink.
///
/// `from..=to` is the range of the log that the batch stands for. Records that this sink does not take are left out of
/// `records`. There are none at all only where a cursor is to be committed alone.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The identity of the batch: the same when the very same records come again, after a failure or a restart; another one
    /// for any other records.
    pub id: Id,
    /// The first place in the log that this batch covers.
    pub from: u64,
    /// The last place in the log that this batch covers.
    pub to: u64,
    /// The records, in log order.
    pub records: Vec<Record>,
}

/// A place that batches are pushed to.
///
/// The contract:
/// - **Ok means durable there.** What was acknowledged is never sent again, so a sink answers `Ok` only when a
///   crash of the receiver, or of the machine it is on, cannot take the batch back.
/// - **Order.** Batches come in log order, one at a time. A sink writes the records of a batch in their order, at least
///   those of one object.
/// - **Duplicates.** After an error, or a crash between delivery and checkpoint, the very same batch comes again, less what
///   the error has called durable. Part of it may already be there. Each record's `id` tells a receiver so.
/// - **Retries are not the sink's business.** It tries once and says what happened; delivery decides. A client library
///   that repeats by itself may do so only where that neither reorders nor repeats.
/// - **A receiver may be away.** A sink is made without its receiver; it connects when it delivers, and again after every
///   failure that may have broken its connection. Credentials are read again when their files have changed.
/// - **Cancellation.** At shutdown the future may be dropped; the batch then counts as not delivered.
/// - **Messages** of errors name what was tried and where, never a credential or what is in an object.
#[async_trait]
pub trait Sink: Send {
    /// Writes the batch and returns when it is durable. Where the sink delivers exactly once, `cursor` is committed in one
    /// transaction with the records: all of it is there, or nothing. Other sinks are never given one.
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError>;

    /// The cursor that was committed last. Before it answers, whoever wrote under the same identity before is fenced off.
    /// Asked once, before the first delivery, of sinks that deliver exactly once.
    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        Ok(None)
    }

    /// Writes a record that the receiver will never take to where [`Terms::letters`] says, and returns when it is durable there:
    /// only then does delivery go on behind the record. Asked only of sinks whose configuration allows such a place, and only
    /// between two calls of [`deliver`](Self::deliver).
    ///
    /// The letter comes again after an error, and after a crash: a receiver that can tell that it has it already keeps it once.
    /// `cursor` is the one behind the record, where the sink delivers exactly once: if the place takes part in the transaction, both
    /// are committed in one, and if not, it is left out; delivery commits it with what follows in any case.
    /// [`Decision::Oversize`] asks for the same letter with the record truncated; what is not to be retried holds the sink.
    async fn set_aside(&mut self, letter: &Letter, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let _ = cursor;
        // The configuration refuses a place for letters where there is none.
        Err(SinkError::hold(format!("sink {} has no place for dead letters at its receiver", letter.sink)))
    }
}

/// What every sink is opened with besides its own configuration.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The sink's name, which is its identity.
    pub name: String,
    /// The cluster that the records are of.
    pub cluster: Cluster,
    /// How records are written.
    pub format: Format,
    /// Whether the cursor is committed together with the records.
    pub exactly_once: bool,
    /// Where dead letters go at the receiver, such as a topic; none if they are kept in files.
    pub letters: Option<String>,
}

/// A batch was not delivered, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// How many records from the front are durable all the same: they do not come again. The decision is about what is
    /// behind them.
    pub durable: usize,
    /// What delivery should do.
    pub decision: Decision,
    /// What failed, naming the operand, without object content.
    pub message: String,
}

/// One variant for each thing that delivery may do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The receiver is away or busy: try the same again, after a while.
    Retry {
        /// The receiver's own wish for the pause, where it has one.
        after: Option<Duration>,
    },
    /// The receiver takes no batch like this one, and may take parts of it. Only of more than one record.
    Split,
    /// The first record is larger than the receiver takes.
    Oversize,
    /// The receiver will never take the first record, whatever else it takes.
    Poison,
    /// The receiver takes nothing: wrong credentials, a missing topic. Try again seldom; an operator must act.
    Hold,
    /// No retry can help and nobody is left to receive: stop the process.
    Fatal,
}

impl Decision {
    /// The word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry { .. } => "retry",
            Self::Split => "split",
            Self::Oversize => "oversize",
            Self::Poison => "poison",
            Self::Hold => "hold",
            Self::Fatal => "fatal",
        }
    }
}

impl SinkError {
    /// A failure that this is to be done about.
    pub fn new(decision: Decision, message: impl Into<String>) -> Self {
        Self { durable: 0, decision, message: message.into() }
    }

    /// A failure that is worth another try at the usual pace.
    pub fn retry(message: impl Into<String>) -> Self {
        Self::new(Decision::Retry { after: None }, message)
    }

    /// Wrong credentials, a missing topic: an operator must act.
    pub fn hold(message: impl Into<String>) -> Self {
        Self::new(Decision::Hold, message)
    }

    /// Nothing can be delivered ever again.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::new(Decision::Fatal, message)
    }

    /// The same, with this many records from the front of the batch durable.
    #[must_use]
    pub fn behind(self, durable: usize) -> Self {
        Self { durable, ..self }
    }
}

/// What is wrong with the configuration of a sink: the key below the sink's own, and the problem with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigProblem {
    /// Such as `topic` or `tls.ca`.
    pub key: String,
    /// What was found, what is allowed, what to do.
    pub problem: String,
}

impl ConfigProblem {
    /// A problem with this key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}
