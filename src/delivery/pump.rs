//! One sink's loop: read the log, cut a batch, note it, deliver it, move the cursor.
//!
//! The cursor moves only past what the sink has acknowledged. A batch is noted beside the cursor before it is sent for the
//! first time, so that a restart sends exactly the same one again.

use std::{collections::VecDeque, io, time::Duration};

use kubetide_sink::{Batch, Record, Sink, SinkError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Batcher, Cut, Limits};
use crate::{
    backoff::Backoff,
    changelog::{CursorFile, LogReader, ReadError},
    vitals::SinkVitals,
};

/// A sink that takes nothing for this many records notes how far it is all the same, so that a restart need not read them again.
const SKIPPED_AT_MOST: u64 = 10_000;

/// Why a sink's loop ended though it was not asked to. The process must end.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The log cannot be read.
    #[error("sink {sink}: {source}")]
    Log {
        /// The sink.
        sink: String,
        /// What is wrong.
        source: ReadError,
    },
    /// The cursor cannot be written.
    #[error("sink {sink}: cannot write the cursor {path}: {source}")]
    Cursor {
        /// The sink.
        sink: String,
        /// The file.
        path: String,
        /// What is wrong.
        source: io::Error,
    },
    /// The sink will never take anything again.
    #[error("sink {sink}: {message}")]
    Sink {
        /// The sink.
        sink: String,
        /// What is wrong.
        message: String,
    },
}

/// Everything one sink's loop works with.
pub struct Pump {
    /// The sink's name.
    pub name: String,
    /// Where it reports how it is.
    pub vitals: SinkVitals,
    /// The receiver.
    pub sink: Box<dyn Sink>,
    /// The log, from behind the cursor on.
    pub reader: LogReader,
    /// How far the sink is.
    pub cursor: CursorFile,
    /// When to cut.
    pub limits: Limits,
    /// How to retry.
    pub backoff: Backoff,
    /// The longest pause between two tries.
    pub longest_pause: Duration,
    /// The streams that the sink takes, by name; empty = all.
    pub streams: Vec<String>,
    /// Asks the loop to deliver what it has and end.
    pub drain: CancellationToken,
}

impl Pump {
    /// Runs until it is asked to drain.
    pub async fn run(mut self) -> Result<(), DeliveryError> {
        let cursor = self.cursor.cursor();
        let mut batcher = Batcher::new(self.limits, cursor.acknowledged, cursor.in_flight);
        let mut waiting = VecDeque::new();
        loop {
            let cut = self.fill(&mut batcher, &mut waiting).await?;
            let batch = batcher.take();
            if batch.records.is_empty() {
                if batch.to >= batch.from {
                    self.acknowledge(batch.to)?;
                }
            } else if !self.deliver(&batch, cut).await? {
                return Ok(());
            }
            // After the last batch: what is left stays in the log for the next start.
            if cut == Cut::Stop || self.drain.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Reads the log into the batch until there is a reason to cut.
    async fn fill(&mut self, batcher: &mut Batcher, waiting: &mut VecDeque<Record>) -> Result<Cut, DeliveryError> {
        loop {
            while let Some(record) = waiting.pop_front() {
                let takes = self.takes(&record);
                if let Some(cut) = batcher.cut_before(&record, takes) {
                    waiting.push_front(record);
                    return Ok(cut);
                }
                batcher.push(record, takes, Instant::now());
            }
            if let Some(cut) = batcher.due(Instant::now()) {
                return Ok(cut);
            }
            if batcher.skipped() >= SKIPPED_AT_MOST {
                return Ok(Cut::Count);
            }
            if !self.reader.is_ready() {
                let deadline = batcher.deadline();
                let age = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(deadline).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    more = self.reader.ready() => if !more {
                        return Ok(Cut::Stop);
                    },
                    () = self.drain.cancelled() => return Ok(Cut::Stop),
                    () = age => continue,
                }
            }
            let records = self.reader.read().await;
            waiting.extend(records.map_err(|source| DeliveryError::Log { sink: self.name.clone(), source })?);
        }
    }

    fn takes(&self, record: &Record) -> bool {
        self.streams.is_empty() || self.streams.iter().any(|name| *name == record.stream.to_string())
    }

    /// Delivers one batch, however long it takes. False if the process stops first.
    async fn deliver(&mut self, batch: &Batch, cut: Cut) -> Result<bool, DeliveryError> {
        if self.cursor.cursor().in_flight != Some((batch.from, batch.to)) {
            self.write_cursor(|cursor| cursor.begin(batch.from, batch.to))?;
        }
        debug!(sink = %self.name, from = batch.from, to = batch.to, records = batch.records.len(), ?cut, "batch");
        loop {
            match self.sink.deliver(batch).await {
                Ok(()) => {
                    if self.backoff.failures() > 0 {
                        info!(sink = %self.name, failures = self.backoff.failures(), "delivering again");
                        self.backoff.reset();
                    }
                    self.acknowledge(batch.to)?;
                    self.report(batch);
                    return Ok(true);
                }
                Err(SinkError::Fatal(message)) => return Err(DeliveryError::Sink { sink: self.name.clone(), message }),
                Err(SinkError::Retry { message, after }) => {
                    let pause = self.backoff.next(rand::random(), self.longest_pause, after);
                    let attempt = self.backoff.failures();
                    self.vitals.failed(&message);
                    warn!(sink = %self.name, attempt, pause_ms = pause.as_millis() as u64, error = message, "delivery failed, trying again");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.drain.cancelled() => return Ok(false),
                    }
                }
            }
        }
    }

    fn report(&self, batch: &Batch) {
        let now = jiff::Timestamp::now();
        let lag = batch.records.first().map(|record| now.duration_since(record.observed_at));
        // The wall clock may have been set back meanwhile.
        let lag = lag.and_then(|lag| Duration::try_from(lag).ok()).unwrap_or_default();
        let bytes: usize = batch.records.iter().map(Record::weight).sum();
        self.vitals.delivered(batch.records.len() as u64, bytes as u64, lag);
    }

    fn acknowledge(&mut self, to: u64) -> Result<(), DeliveryError> {
        self.write_cursor(|cursor| cursor.acknowledge(to))
    }

    /// A cursor is one sector and one sync: done in place, with the runtime's other tasks moved aside.
    fn write_cursor(&mut self, write: impl FnOnce(&mut CursorFile) -> io::Result<()>) -> Result<(), DeliveryError> {
        tokio::task::block_in_place(|| write(&mut self.cursor)).map_err(|source| DeliveryError::Cursor {
            sink: self.name.clone(),
            path: self.cursor.path().display().to_string(),
            source,
        })
    }
}
