//! What the commands ask of a data directory, and the answers: over `kubetide.sock` from the process that holds it, or from
//! the files of one that does not run.
//!
//! ```text
//!  command ─▶ Question ─▶ Client ─▶ socket ─▶ routes ─▶ answer(Desk of the process) ─▶ lines of JSON ─▶ what people see
//!                     └────────────────────────────────▶ answer(Desk of the files) ───┘
//! ```
//!
//! Both ways go through [`answer::answer`], so that both show the same. An answer reads the log by itself and waits for its
//! reader with a few blocks in hand: it never holds back the log or a sink.

pub mod answer;
mod changes;
mod client;
pub mod item;
mod letters;
mod log;
mod objects;
mod order;
mod previous;
mod question;
mod routes;
mod sinks;
mod socket;

use std::{collections::HashMap, path::Path, sync::Arc};

use bytes::Bytes;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub use client::Client;
pub use letters::Letters;
pub use order::carry_out;
pub use question::{Changes, Demand, Objects, Point, Question, Words};

use crate::{
    changelog::{Archive, Purger, View},
    delivery::Orders,
};

/// Blocks that wait for the reader of an answer: enough to keep it busy, little enough to forget about.
const BLOCKS: usize = 4;

/// What answers are made from.
#[derive(Clone)]
pub struct Desk {
    /// The log and what was built on it.
    pub view: View,
    /// Who carries out what is demanded.
    pub hands: Hands,
    /// `log.max_bytes`, where the configuration is known.
    pub max_bytes: Option<u64>,
    /// The sinks of the configuration, where it is known.
    pub attached: Option<Vec<String>>,
    /// Where the dead letters of each sink are.
    pub letters: Letters,
    /// Ends answers that would go on for ever.
    pub stop: CancellationToken,
}

/// Who carries out what is demanded.
#[derive(Clone)]
pub enum Hands {
    /// The loops of a process that runs.
    Live {
        /// The way to each sink's loop.
        sinks: Arc<HashMap<String, Orders>>,
        /// Who removes old segments.
        purger: Purger,
    },
    /// The files, which nothing else has open.
    Files(Arc<Archive>),
}

/// Why there is no answer, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The question is wrong.
    #[error("{0}")]
    Usage(String),
    /// What was asked for is not there.
    #[error("{0}")]
    Absent(String),
    /// It could not be done.
    #[error("{0}")]
    Failed(String),
    /// Nobody is there to answer.
    #[error("{0}")]
    Unavailable(String),
}

impl Refusal {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// An answer: blocks of whole lines, each line one item as JSON.
pub struct Answer {
    blocks: mpsc::Receiver<Result<Bytes, Refusal>>,
    /// Whoever writes it. They end with the answer, also while there is nothing to write.
    _writers: JoinSet<()>,
}

impl Answer {
    /// The next block; none at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, Refusal>> {
        self.blocks.recv().await
    }

    /// The next block if it is there already.
    pub fn ready(&mut self) -> Option<Result<Bytes, Refusal>> {
        self.blocks.try_recv().ok()
    }
}

/// Where an answer is written to. Whoever writes stops when nobody reads any more.
struct Reply(mpsc::Sender<Result<Bytes, Refusal>>);

/// Nobody reads the answer any more.
struct Unread;

impl Reply {
    async fn send(&self, block: Vec<u8>) -> Result<(), Unread> {
        if block.is_empty() {
            return Ok(());
        }
        self.0.send(Ok(block.into())).await.map_err(|_| Unread)
    }

    async fn items<T: serde::Serialize>(&self, items: &[T]) -> Result<(), Stopped> {
        let mut block = Vec::new();
        for item in items {
            serde_json::to_writer(&mut block, item).map_err(Refusal::failed)?;
            block.push(b'\n');
        }
        Ok(self.send(block).await?)
    }
}

/// Why an answer ends early.
enum Stopped {
    Unread,
    Refused(Refusal),
}

impl From<Unread> for Stopped {
    fn from(_: Unread) -> Self {
        Self::Unread
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Serves the socket in the data directory until stopped. Capturing does not depend on it: if there can be no socket, that is
/// told, and the rest goes on.
pub async fn serve(data_dir: &Path, desk: Desk, stop: CancellationToken) {
    match socket::Socket::bind(data_dir) {
        Ok(socket) => routes::serve(socket, desk, stop).await,
        Err(error) => {
            tracing::error!(%error, "there is no kubetide.sock: commands cannot talk to this process");
        }
    }
}

#[cfg(test)]
mod tests;
