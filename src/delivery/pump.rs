//! One sink's loop: read the log, cut a batch, note it, deliver it, move the cursor. A sink that is new or was left behind is
//! first given the state of the objects.
//!
//! The cursor moves only past what the sink has acknowledged. A batch is noted beside the cursor before it is sent for the
//! first time, so that a restart sends exactly the same one again.

use std::{collections::VecDeque, io, time::Duration};

use jiff::Timestamp;
use kubetide_sink::{Cluster, Record, Sink};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Batcher, Cut, Filter, Limits, Noted, Order, Ordered, Portion,
    dead_letter::DeadLetters,
    deliver::{Refusals, Tally},
};
use crate::{
    backoff::Backoff,
    blocking::blocking,
    changelog::{
        CatchUp, Cause, Cursor, CursorFile, Errand, LogReader, Loss, OpenError, Page, PageLimits, ReadError,
        StoreError, View,
    },
    clock::Clock,
    config::Oversize,
    vitals::SinkVitals,
};

/// A sink that takes nothing for this many records notes how far it is all the same, so that a restart need not read them again.
const SKIPPED_AT_MOST: u64 = 10_000;
/// As many frames of the log are read for the batch behind one that waits meanwhile.
const READS_AHEAD: usize = 4;

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
    /// What it takes, and what becomes of what is refused.
    pub policy: Policy,
    /// What was refused lately.
    pub refusals: Refusals,
    /// What an operator asks for.
    pub orders: mpsc::Receiver<Ordered>,
    /// The clock.
    pub clock: Clock,
    /// Asks the loop to deliver what it has and end.
    pub drain: CancellationToken,
}

/// What a sink takes, and what becomes of what is refused.
#[derive(Debug)]
pub struct Policy {
    /// Which changes of its streams it takes; none = all.
    pub filter: Option<Filter>,
    /// What becomes of a record that is larger than the receiver takes.
    pub oversize: Oversize,
    /// Where records go that the receiver will never take.
    pub letters: DeadLetters,
    /// Whether the cursor is committed with the records, at the receiver.
    pub exactly_once: bool,
}

/// Where the loop goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
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
pub(super) enum Delivered {
    /// It is durable at the receiver.
    Taken,
    /// The process stops first.
    Stopped,
    /// An order has changed the cursor: the batch is not wanted any more.
    Ordered,
    /// What it says does not hold any more.
    Outdated,
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obeyed {
    /// Nothing: it was refused.
    No,
    /// The cursor says otherwise than before what comes next.
    Anew,
    /// Something is to be done when there is time: dead letters.
    Later,
}

impl Pump {
    /// Runs until it is asked to drain.
    pub async fn run(mut self) -> Result<(), DeliveryError> {
        if self.policy.exactly_once && self.restore().await? == Course::Stop {
            return Ok(());
        }
        self.weigh_letters();
        loop {
            let course = match self.cursor.cursor().errand.clone() {
                // They were ordered, whatever has happened since.
                None if self.policy.letters.is_replaying() => self.begin_letters()?,
                None => self.follow_log().await?,
                Some(Errand::Letters { at, .. }) => self.give_letters(at).await?,
                Some(Errand::Replay { at }) => self.announce_replay(at).await?,
                Some(Errand::Loss { loss, seq, at }) => self.announce_loss(loss, seq, at).await?,
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
        let mut ahead = None;
        loop {
            let (cut, cut_out) = match ahead.take() {
                Some(next) => {
                    if let Ok(ordered) = self.orders.try_recv()
                        && self.obey(ordered)? != Obeyed::No
                    {
                        return Ok(Course::On);
                    }
                    next
                }
                None => match self.fill(&mut reader, &mut batcher, &mut waiting).await? {
                    Filled::Cut(cut) => (cut, batcher.take()),
                    Filled::Ordered => return Ok(Course::On),
                    Filled::Trimmed => {
                        self.fall_behind()?;
                        return Ok(Course::On);
                    }
                },
            };
            if cut_out.records.is_empty() {
                if cut_out.to >= cut_out.from {
                    self.acknowledge(cut_out.to)?;
                }
            } else {
                let Portion { from, to, .. } = cut_out;
                if self.cursor.cursor().in_flight != Some((from, to)) {
                    self.write_cursor(|cursor| cursor.begin(from, to))?;
                }
                debug!(sink = %self.name, from, to, records = cut_out.records.len(), ?cut, "batch");
                self.vitals.cut(cut.as_str());
                let tally = Tally::of(&cut_out, true);
                if cut != Cut::Stop {
                    ahead = self.cut_ahead(&mut reader, &mut batcher, &mut waiting).await;
                }
                let next = ahead.as_ref().map(|(_, next)| (next.from, next.to));
                let move_on = |cursor: &mut Cursor| {
                    cursor.acknowledge(to);
                    cursor.in_flight = next;
                };
                match self.deliver(cut_out, move_on).await? {
                    Delivered::Taken => self.report(tally),
                    Delivered::Stopped => return Ok(Course::Stop),
                    Delivered::Ordered | Delivered::Outdated => return Ok(Course::On),
                }
            }
            if cut == Cut::Stop || self.drain.is_cancelled() {
                if ahead.is_some() {
                    self.withdraw()?;
                }
                return Ok(Course::Stop);
            }
            if self.policy.letters.is_ordered() {
                return Ok(Course::On);
            }
        }
    }

    /// What was cut ahead and noted will not be sent any more: whoever comes next need not take it for a batch that may be there already.
    fn withdraw(&mut self) -> Result<(), DeliveryError> {
        self.write_cursor(|file| file.change(|cursor| cursor.in_flight = None))
    }

    /// Reads the log into the batch until there is a reason to cut.
    async fn fill(
        &mut self,
        reader: &mut LogReader,
        batcher: &mut Batcher,
        waiting: &mut VecDeque<Record>,
    ) -> Result<Filled, DeliveryError> {
        loop {
            if let Some(cut) = self.gather(batcher, waiting) {
                return Ok(Filled::Cut(cut));
            }
            if let Some(cut) = batcher.due(Instant::now()) {
                return Ok(Filled::Cut(cut));
            }
            if batcher.skipped() >= SKIPPED_AT_MOST {
                return Ok(Filled::Cut(Cut::Count));
            }
            if let Ok(ordered) = self.orders.try_recv() {
                return Ok(if self.obey(ordered)? == Obeyed::No { continue } else { Filled::Ordered });
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
                        if self.obey(ordered)? == Obeyed::No {
                            continue;
                        }
                        return Ok(Filled::Ordered);
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

    /// The batch behind the one that is about to be delivered, if the log has all of it by now: it is noted as under way in the
    /// same write that acknowledges the one before it, which saves every other sync where there is much to deliver.
    async fn cut_ahead(
        &mut self,
        reader: &mut LogReader,
        batcher: &mut Batcher,
        waiting: &mut VecDeque<Record>,
    ) -> Option<(Cut, Portion)> {
        for read in 0.. {
            let cut = self.gather(batcher, waiting).or_else(|| batcher.due(Instant::now()));
            // By age alone it is not cut yet: more may come while the one before it is delivered.
            if let Some(cut) = cut.filter(|cut| *cut != Cut::Age) {
                return Some((cut, batcher.take()));
            }
            if read >= READS_AHEAD || !reader.is_ready() {
                break;
            }
            // What is wrong with the log is found again when nothing is left to be delivered.
            waiting.extend(reader.read().await.ok()?);
        }
        None
    }

    /// Moves what was read into the batch. Why it must be cut, if it must.
    fn gather(&self, batcher: &mut Batcher, waiting: &mut VecDeque<Record>) -> Option<Cut> {
        while let Some(record) = waiting.pop_front() {
            let takes = self.takes(&record);
            if let Some(cut) = batcher.cut_before(&record, takes) {
                waiting.push_front(record);
                return Some(cut);
            }
            batcher.push(record, takes, Instant::now());
        }
        None
    }

    fn takes(&self, record: &Record) -> bool {
        (self.streams.is_empty() || takes(&self.streams, &record.stream.to_string())) && self.wants(record)
    }

    pub(super) fn wants(&self, record: &Record) -> bool {
        self.policy.filter.as_ref().is_none_or(|filter| filter.takes(record))
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
                && self.obey(ordered)? == Obeyed::Anew
            {
                return Ok(Course::On);
            }
            if self.lacks_deletes(&catch_up)? {
                self.begin_anew(&catch_up)?;
                return Ok(Course::On);
            }
            let page = self.page(&catch_up).await?;
            let mut records = Vec::new();
            if !catch_up.announced {
                records.extend(self.view.opening(&self.name, &self.cluster, &catch_up));
            }
            records.extend(page.records.into_iter().filter(|record| self.wants(record)));
            let (to, at_end) = (catch_up.head, page.after.is_none());
            let finished = at_end && may_end(&self.view, &catch_up);
            let mut next = CatchUp { announced: true, after: page.after, ..catch_up.clone() };
            next.given += page.given;
            if finished {
                records.extend(self.closing(&next).await?);
            } else if at_end {
                (next.from, next.head) = (next.head, self.view.head());
            }
            let (goes_on, done) = (next.clone(), finished);
            let move_on = move |cursor: &mut Cursor| match done {
                true => cursor.acknowledge(to),
                false => cursor.errand = Some(Errand::CatchUp(goes_on)),
            };
            if records.is_empty() {
                self.write_cursor(|cursor| cursor.change(move_on))?;
            } else {
                let portion = Portion { from: self.cursor.cursor().acknowledged + 1, to, records };
                let tally = Tally::of(&portion, false);
                // The receiver may be down for hours: that it is at its end must still be so when it is told.
                let holds = |view: &View| !finished || may_end(view, &catch_up);
                match self.deliver_while(portion, move_on, holds).await? {
                    Delivered::Taken => self.report(tally),
                    Delivered::Stopped => return Ok(Course::Stop),
                    Delivered::Ordered => return Ok(Course::On),
                    Delivered::Outdated => continue,
                }
            }
            catch_up = next;
            if finished {
                info!(sink = %self.name, given = ?catch_up.given, "caught up");
                return Ok(Course::On);
            }
        }
    }

    /// Whether deletes are forgotten that the walk under way should tell: the sink was away from the configuration in the middle of
    /// it. A first walk over everything needs none, because what it does not show is gone.
    fn lacks_deletes(&self, catch_up: &CatchUp) -> Result<bool, DeliveryError> {
        let forgotten = || self.view.has_forgotten_deletes_behind(catch_up.from);
        Ok(catch_up.from > 0 && forgotten().map_err(|source| self.cannot_read(source))?)
    }

    /// What the sink was given so far is not enough: it is given everything.
    fn begin_anew(&mut self, catch_up: &CatchUp) -> Result<(), DeliveryError> {
        let (head, at, name) = (self.view.head(), self.clock.wall(), self.name.clone());
        warn!(sink = %name, from = catch_up.from, "deletes were forgotten while the sink was away, giving it everything");
        let cause = catch_up.cause_anew();
        self.write_cursor(|cursor| cursor.change(|cursor| cursor.catch_up(&name, cause, 0, head, at)))
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
        let portion = Portion { from: acknowledged + 1, to: acknowledged, records: vec![record] };
        Ok(match self.deliver(portion, |cursor| cursor.acknowledge(acknowledged)).await? {
            Delivered::Stopped => Course::Stop,
            Delivered::Taken | Delivered::Ordered | Delivered::Outdated => Course::On,
        })
    }

    /// The word that the log which the sink knows of is not there any more. Then this one from its beginning, where it still has
    /// it, or else the state of the objects.
    async fn announce_loss(&mut self, loss: Loss, seq: u64, at: Timestamp) -> Result<Course, DeliveryError> {
        let record = self.view.loss_record(&self.name, &self.cluster, loss, seq, at);
        warn!(sink = %self.name, ?loss, seq, "the log that the sink knows of is not there any more, giving it everything");
        let (head, has_all, name) = (self.view.head(), self.view.oldest() == 1, self.name.clone());
        let move_on = move |cursor: &mut Cursor| match has_all {
            true => cursor.acknowledge(0),
            false => cursor.catch_up(&name, Cause::New, 0, head, at),
        };
        let portion = Portion { from: 0, to: 0, records: vec![record] };
        Ok(match self.deliver(portion, move_on).await? {
            Delivered::Stopped => Course::Stop,
            Delivered::Taken | Delivered::Ordered | Delivered::Outdated => Course::On,
        })
    }

    /// Does what an operator asks for, if it can be done.
    pub(super) fn obey(&mut self, (order, answer): Ordered) -> Result<Obeyed, DeliveryError> {
        let mut cursor = self.cursor.cursor().clone();
        let noted = order.note(&self.name, &mut cursor, self.view.oldest(), self.view.head(), self.clock.wall());
        let (obeyed, noted) = match (&order, noted) {
            (_, Err(refused)) => (Obeyed::No, Err(refused)),
            (Order::Letters { seqs }, Ok(())) => {
                match tokio::task::block_in_place(|| self.policy.letters.take_out(seqs)) {
                    Ok(taken) => (Obeyed::Later, Ok(Noted::Letters(taken))),
                    Err(refused) => (Obeyed::No, Err(refused.to_string())),
                }
            }
            (Order::Replay { .. } | Order::Resnapshot, Ok(())) => {
                self.write_cursor(|file| file.change(|current| *current = cursor))?;
                (Obeyed::Anew, Ok(Noted::Cursor))
            }
        };
        // Whoever asked may have gone away meanwhile.
        let _ = answer.send(noted);
        Ok(obeyed)
    }

    pub(super) fn cannot_read(&self, source: StoreError) -> DeliveryError {
        DeliveryError::Log { sink: self.name.clone(), source: OpenError::from(source).into() }
    }

    fn acknowledge(&mut self, to: u64) -> Result<(), DeliveryError> {
        self.write_cursor(|cursor| cursor.acknowledge(to))
    }

    /// A cursor is one sector and one sync: done in place, with the runtime's other tasks moved aside.
    pub(super) fn write_cursor(
        &mut self,
        write: impl FnOnce(&mut CursorFile) -> io::Result<()>,
    ) -> Result<(), DeliveryError> {
        tokio::task::block_in_place(|| write(&mut self.cursor)).map_err(|source| DeliveryError::Cursor {
            sink: self.name.clone(),
            path: self.cursor.path().display().to_string(),
            source,
        })
    }
}

/// If the log behind the head is gone as well by now, another round brings the sink up to the present one. A sink that has read the
/// log up to the head is told instead that what follows is lost: as soon as it wants to read on.
fn may_end(view: &View, catch_up: &CatchUp) -> bool {
    catch_up.cause == Cause::Asked || view.oldest() <= catch_up.head + 1
}

pub(super) fn takes(streams: &[String], name: &str) -> bool {
    streams.is_empty() || streams.iter().any(|stream| stream == name)
}
