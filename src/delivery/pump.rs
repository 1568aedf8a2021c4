//! One sink's loop: read the log, cut a batch, note it, deliver it, move the cursor. A sink that is new or was left behind is
//! first given the state of the objects.
//!
//! The cursor moves only past what the sink has acknowledged. A batch is noted beside the cursor before it is sent for the
//! first time, so that a restart sends exactly the same one again.

use std::{collections::VecDeque, io, time::Duration};

use jiff::Timestamp;
use kubetide_sink::{Batch, Cluster, Record, Sink, SinkError};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Batcher, Cut, Limits, Ordered};
use crate::{
    backoff::Backoff,
    blocking::blocking,
    changelog::{
        CatchUp, Cause, Cursor, CursorFile, Errand, LogReader, OpenError, Page, PageLimits, ReadError, StoreError, View,
    },
    clock::Clock,
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
    /// The cluster that the records are from.
    pub cluster: Cluster,
    /// Where it reports how it is.
    pub vitals: SinkVitals,
    /// The receiver.
    pub sink: Box<dyn Sink>,
    /// The log.
    pub view: View,
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
    /// What an operator asks for.
    pub orders: mpsc::Receiver<Ordered>,
    /// The clock.
    pub clock: Clock,
    /// Asks the loop to deliver what it has and end.
    pub drain: CancellationToken,
}

/// Where the loop goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// On: where to, the cursor says.
    On,
    /// The process stops. What is left stays in the log for the next start.
    Stop,
}

/// What came of reading the log.
enum Filled {
    /// The batch is to be cut.
    Cut(Cut),
    /// The log no longer has what comes next.
    Trimmed,
    /// An order has changed the cursor.
    Ordered,
}

/// What came of a batch.
#[derive(PartialEq, Eq)]
enum Delivered {
    /// It is durable at the receiver.
    Taken,
    /// The process stops first.
    Stopped,
    /// An order has changed the cursor: the batch is not wanted any more.
    Ordered,
}

impl Pump {
    /// Runs until it is asked to drain.
    pub async fn run(mut self) -> Result<(), DeliveryError> {
        loop {
            let course = match self.cursor.cursor().errand.clone() {
                None => self.follow_log().await?,
                Some(Errand::Replay { at }) => self.announce_replay(at).await?,
                Some(Errand::CatchUp(catch_up)) => self.catch_up(catch_up).await?,
            };
            if course == Course::Stop {
                return Ok(());
            }
        }
    }

    /// Batch after batch from the log, until something else is to be done.
    async fn follow_log(&mut self) -> Result<Course, DeliveryError> {
        let cursor = self.cursor.cursor();
        let mut reader = self.view.reader(cursor.acknowledged + 1);
        let mut batcher = Batcher::new(self.limits, cursor.acknowledged, cursor.in_flight);
        let mut waiting = VecDeque::new();
        loop {
            let cut = match self.fill(&mut reader, &mut batcher, &mut waiting).await? {
                Filled::Cut(cut) => cut,
                Filled::Ordered => return Ok(Course::On),
                Filled::Trimmed => {
                    self.fall_behind()?;
                    return Ok(Course::On);
                }
            };
            let batch = batcher.take();
            if batch.records.is_empty() {
                if batch.to >= batch.from {
                    self.acknowledge(batch.to)?;
                }
            } else {
                if self.cursor.cursor().in_flight != Some((batch.from, batch.to)) {
                    self.write_cursor(|cursor| cursor.begin(batch.from, batch.to))?;
                }
                debug!(sink = %self.name, from = batch.from, to = batch.to, records = batch.records.len(), ?cut, "batch");
                match self.deliver(&batch).await? {
                    Delivered::Taken => {
                        self.acknowledge(batch.to)?;
                        self.report(&batch, true);
                    }
                    Delivered::Stopped => return Ok(Course::Stop),
                    Delivered::Ordered => return Ok(Course::On),
                }
            }
            if cut == Cut::Stop || self.drain.is_cancelled() {
                return Ok(Course::Stop);
            }
        }
    }

    /// Reads the log into the batch until there is a reason to cut.
    async fn fill(
        &mut self,
        reader: &mut LogReader,
        batcher: &mut Batcher,
        waiting: &mut VecDeque<Record>,
    ) -> Result<Filled, DeliveryError> {
        loop {
            while let Some(record) = waiting.pop_front() {
                let takes = self.takes(&record);
                if let Some(cut) = batcher.cut_before(&record, takes) {
                    waiting.push_front(record);
                    return Ok(Filled::Cut(cut));
                }
                batcher.push(record, takes, Instant::now());
            }
            if let Some(cut) = batcher.due(Instant::now()) {
                return Ok(Filled::Cut(cut));
            }
            if batcher.skipped() >= SKIPPED_AT_MOST {
                return Ok(Filled::Cut(Cut::Count));
            }
            if let Ok(ordered) = self.orders.try_recv() {
                return Ok(if self.obey(ordered)? { Filled::Ordered } else { continue });
            }
            if !reader.is_ready() {
                let deadline = batcher.deadline();
                let age = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(deadline).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    more = reader.ready() => if !more {
                        return Ok(Filled::Cut(Cut::Stop));
                    },
                    () = self.drain.cancelled() => return Ok(Filled::Cut(Cut::Stop)),
                    Some(ordered) = self.orders.recv() => {
                        if self.obey(ordered)? {
                            return Ok(Filled::Ordered);
                        }
                        continue;
                    }
                    () = age => continue,
                }
            }
            match reader.read().await {
                Ok(records) => waiting.extend(records),
                // What was read before goes first.
                Err(ReadError::Trimmed { .. }) if batcher.covers_any() => return Ok(Filled::Cut(Cut::Count)),
                Err(ReadError::Trimmed { .. }) => return Ok(Filled::Trimmed),
                Err(source) => return Err(DeliveryError::Log { sink: self.name.clone(), source }),
            }
        }
    }

    fn takes(&self, record: &Record) -> bool {
        takes(&self.streams, &record.stream.to_string())
    }

    /// The log was trimmed before this sink had read it: it is told so, and then what is different now.
    fn fall_behind(&mut self) -> Result<(), DeliveryError> {
        let Cursor { acknowledged, .. } = *self.cursor.cursor();
        let forgotten = self.view.has_forgotten_deletes_behind(acknowledged);
        let forgotten = forgotten.map_err(|source| self.cannot_read(source))?;
        let since = if forgotten { 0 } else { acknowledged };
        let (head, at, name) = (self.view.head(), self.clock.wall(), self.name.clone());
        warn!(sink = %name, acknowledged, oldest = self.view.oldest(), "the log was trimmed before the sink had read it, giving it what has changed");
        self.write_cursor(|cursor| cursor.change(|cursor| cursor.catch_up(&name, Cause::Behind, since, head, at)))
    }

    /// The state of the objects, page by page, until the sink is at the head that was fixed when it began.
    async fn catch_up(&mut self, mut catch_up: CatchUp) -> Result<Course, DeliveryError> {
        info!(sink = %self.name, cause = ?catch_up.cause, from = catch_up.from, head = catch_up.head, "catching up");
        loop {
            if self.drain.is_cancelled() {
                return Ok(Course::Stop);
            }
            if let Ok(ordered) = self.orders.try_recv()
                && self.obey(ordered)?
            {
                return Ok(Course::On);
            }
            let page = self.page(&catch_up).await?;
            let mut records = Vec::new();
            if !catch_up.announced {
                records.extend(self.view.opening(&self.name, &self.cluster, &catch_up));
            }
            records.extend(page.records);
            catch_up.announced = true;
            catch_up.given += page.given;
            let to = catch_up.head;
            // If the log behind the head is gone as well by now, another round brings the sink up to the present one.
            let at_end = page.after.is_none();
            let finished = at_end && self.view.oldest() <= catch_up.head + 1;
            if finished {
                records.extend(self.closing(&catch_up).await?);
            } else if at_end {
                (catch_up.from, catch_up.head) = (catch_up.head, self.view.head());
            }
            catch_up.after = page.after;
            if !records.is_empty() {
                let batch = Batch { from: self.cursor.cursor().acknowledged + 1, to, records };
                match self.deliver(&batch).await? {
                    Delivered::Taken => self.report(&batch, false),
                    Delivered::Stopped => return Ok(Course::Stop),
                    Delivered::Ordered => return Ok(Course::On),
                }
            }
            if finished {
                self.acknowledge(to)?;
                info!(sink = %self.name, given = ?catch_up.given, "caught up");
                return Ok(Course::On);
            }
            let errand = Errand::CatchUp(catch_up.clone());
            self.write_cursor(|cursor| cursor.change(|cursor| cursor.errand = Some(errand)))?;
        }
    }

    async fn page(&mut self, catch_up: &CatchUp) -> Result<Page, DeliveryError> {
        let (view, catch_up, streams) = (self.view.clone(), catch_up.clone(), self.streams.clone());
        let limits = PageLimits { records: self.limits.max_records, bytes: self.limits.max_bytes };
        let read = move || view.page(&catch_up, |name| takes(&streams, name), limits);
        blocking(read).await.map_err(|source| self.cannot_read(source))
    }

    async fn closing(&mut self, catch_up: &CatchUp) -> Result<Vec<Record>, DeliveryError> {
        let (view, catch_up, streams) = (self.view.clone(), catch_up.clone(), self.streams.clone());
        let (name, cluster) = (self.name.clone(), self.cluster.clone());
        let read = move || view.closing(&name, &cluster, &catch_up, |name| takes(&streams, name));
        blocking(read).await.map_err(|source| self.cannot_read(source))
    }

    /// The word that what follows comes again.
    async fn announce_replay(&mut self, at: Timestamp) -> Result<Course, DeliveryError> {
        let acknowledged = self.cursor.cursor().acknowledged;
        let record = self.view.replay_record(&self.name, &self.cluster, acknowledged, at);
        info!(sink = %self.name, from = acknowledged + 1, "replaying");
        let batch = Batch { from: acknowledged + 1, to: acknowledged, records: vec![record] };
        match self.deliver(&batch).await? {
            Delivered::Taken => self.acknowledge(acknowledged)?,
            Delivered::Stopped => return Ok(Course::Stop),
            Delivered::Ordered => {}
        }
        Ok(Course::On)
    }

    /// Does what an operator asks for, if it can be done. Whether the cursor has changed.
    fn obey(&mut self, (order, answer): Ordered) -> Result<bool, DeliveryError> {
        let mut cursor = self.cursor.cursor().clone();
        let noted = order.note(&self.name, &mut cursor, self.view.oldest(), self.view.head(), self.clock.wall());
        let changed = noted.is_ok();
        if changed {
            self.write_cursor(|file| file.change(|current| *current = cursor))?;
        }
        // Whoever asked may have gone away meanwhile.
        let _ = answer.send(noted);
        Ok(changed)
    }

    /// Delivers one batch, however long it takes.
    async fn deliver(&mut self, batch: &Batch) -> Result<Delivered, DeliveryError> {
        loop {
            match self.sink.deliver(batch).await {
                Ok(()) => {
                    if self.backoff.failures() > 0 {
                        info!(sink = %self.name, failures = self.backoff.failures(), "delivering again");
                        self.backoff.reset();
                    }
                    return Ok(Delivered::Taken);
                }
                Err(SinkError::Fatal(message)) => return Err(DeliveryError::Sink { sink: self.name.clone(), message }),
                Err(SinkError::Retry { message, after }) => {
                    let pause = self.backoff.next(rand::random(), self.longest_pause, after);
                    let attempt = self.backoff.failures();
                    self.vitals.failed(&message);
                    warn!(sink = %self.name, attempt, pause_ms = pause.as_millis() as u64, error = message, "delivery failed, trying again");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.drain.cancelled() => return Ok(Delivered::Stopped),
                        Some(ordered) = self.orders.recv() => if self.obey(ordered)? {
                            return Ok(Delivered::Ordered);
                        },
                    }
                }
            }
        }
    }

    fn cannot_read(&self, source: StoreError) -> DeliveryError {
        DeliveryError::Log { sink: self.name.clone(), source: OpenError::from(source).into() }
    }

    /// Counts what was delivered. What is given in a catch-up was observed long ago: it says nothing about the lag.
    fn report(&self, batch: &Batch, fresh: bool) {
        let first = batch.records.first().filter(|_| fresh);
        let lag = first.map(|record| self.clock.wall().duration_since(record.observed_at));
        // The wall clock may have been set back meanwhile.
        let lag = lag.map(|lag| Duration::try_from(lag).unwrap_or_default());
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

fn takes(streams: &[String], name: &str) -> bool {
    streams.is_empty() || streams.iter().any(|stream| stream == name)
}
