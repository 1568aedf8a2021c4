//! The trait that every sink implements, and what its answers mean.

use std::time::Duration;

use async_trait::async_trait;

use crate::Record;

/// Consecutive records of the log for one sink.
///
/// `from..=to` is the range of the log that the batch stands for. Records that this sink does not take are
/// left out of `records`, so that there may be fewer records than places in the range, but never none.
#[derive(Debug)]
pub struct Batch {
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
/// - **Order.** Batches come in log order, one at a time. A sink writes the records of a batch in their order.
/// - **Duplicates.** After an error, or a crash between delivery and checkpoint, the very same batch comes again.
///   Part of it may already be there. Each record's `id` tells a receiver so.
/// - **Retries are not the sink's business.** It tries once and says what happened; delivery decides.
/// - **Cancellation.** At shutdown the future may be dropped; the batch then counts as not delivered.
#[async_trait]
pub trait Sink: Send {
    /// Writes the batch and returns when it is durable.
    async fn deliver(&mut self, batch: &Batch) -> Result<(), SinkError>;
}

/// Why a batch was not delivered: one variant for each thing that delivery may do about it.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// Try the same batch again, after a while.
    #[error("{message}")]
    Retry {
        /// What failed, naming the operand, without object content.
        message: String,
        /// The receiver's own wish for the pause, where it has one.
        after: Option<Duration>,
    },
    /// No retry can help and nobody is left to receive: stop the process.
    #[error("{0}")]
    Fatal(String),
}

impl SinkError {
    /// A failure that is worth another try at the usual pace.
    pub fn retry(message: impl Into<String>) -> Self {
        Self::Retry { message: message.into(), after: None }
    }
}
