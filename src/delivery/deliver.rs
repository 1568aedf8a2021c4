//! One batch on its way to the receiver: tried again, halved, cut short or set aside, until all of it is taken or buried. Only
//! then does the cursor move.

use std::time::Duration;

use bytes::Bytes;
use kubetide_sink::{Batch, Decision, Id, Letter, Record, SinkError, truncated};
use tracing::{error, info, warn};

use super::{
    Portion,
    pump::{Course, Delivered, DeliveryError, Obeyed, Pump},
    remains::{POISON_ROW, Remains, Step},
};
use crate::changelog::{Cursor, Errand, Loss, Slot, View};

/// What the receiver has refused for good lately.
#[derive(Debug, Default)]
pub struct Refusals {
    /// How many records in a row went to the dead letters.
    row: u32,
    /// In its words.
    last: String,
}

/// What a batch was, for the metrics.
pub(super) struct Tally {
    records: u64,
    bytes: u64,
    /// When the oldest record was observed. What is given in a catch-up was observed long ago: it says nothing about the lag.
    observed_at: Option<jiff::Timestamp>,
}

impl Tally {
    pub(super) fn of(portion: &Portion, fresh: bool) -> Self {
        let first = portion.records.first().filter(|_| fresh);
        Self {
            records: portion.records.len() as u64,
            bytes: portion.records.iter().map(Record::weight).sum::<usize>() as u64,
            observed_at: first.map(|record| record.observed_at),
        }
    }
}

impl Pump {
    /// Delivers a batch, however long it takes, and moves the cursor.
    pub(super) async fn deliver(
        &mut self,
        portion: Portion,
        move_on: impl FnOnce(&mut Cursor),
    ) -> Result<Delivered, DeliveryError> {
        self.deliver_while(portion, move_on, |_| true).await
    }

    /// Delivers a batch, as long as what it says holds, and moves the cursor.
    pub(super) async fn deliver_while(
        &mut self,
        portion: Portion,
        move_on: impl FnOnce(&mut Cursor),
        holds: impl Fn(&View) -> bool,
    ) -> Result<Delivered, DeliveryError> {
        let Portion { from, to, records } = portion;
        let mut moved = self.cursor.cursor().clone();
        move_on(&mut moved);
        let mut left = Remains::of(&self.name, from, to, records);
        // Whether the receiver has the cursor, where it keeps it.
        let mut committed = !self.policy.exactly_once;
        // How many records the cursor has passed that is part of the way.
        let mut noted = 0;
        loop {
            let (is_last, passed) = (left.is_last(), left.passed());
            let cursor_alone = Batch { id: Id([0; 16]), from, to, records: Vec::new() };
            let batch = match left.next() {
                Some(batch) => batch,
                None if !committed => &cursor_alone,
                None => break,
            };
            let state = match is_last {
                true => self.cursor.next(moved.clone()),
                false => self.part_way(batch.to, passed + batch.records.len() - noted),
            };
            let commit = self.policy.exactly_once.then(|| state.to_bytes());
            let step = match self.sink.deliver(batch, commit.as_ref()).await {
                Ok(()) => {
                    left.taken();
                    if self.policy.exactly_once && !is_last {
                        self.write_cursor(|file| file.put(state))?;
                        noted = left.passed();
                    }
                    committed |= is_last;
                    self.relieved();
                    continue;
                }
                Err(failed) => self.step(&mut left, failed)?,
            };
            if step == Step::Bury {
                let Some(record) = left.first() else { continue };
                let behind = match left.len() {
                    1 => self.cursor.next(moved.clone()),
                    _ => self.part_way(record.seq, left.passed() + 1 - noted),
                };
                if let Some(ended) = self.bury(record.clone(), &behind, &holds).await? {
                    return Ok(ended);
                }
                left.buried();
                if self.policy.exactly_once && left.len() > 0 {
                    self.write_cursor(|file| file.put(behind))?;
                    noted = left.passed();
                }
                continue;
            }
            if let Some(pause) = self.pause(&step)
                && let Some(ended) = self.rest(pause).await?
            {
                return Ok(ended);
            }
            if !holds(&self.view) {
                return Ok(Delivered::Outdated);
            }
        }
        let state = self.cursor.next(moved);
        self.write_cursor(|file| file.put(state))?;
        Ok(Delivered::Taken)
    }

    /// Where the sink is when a batch of the log, of which it took no more at once, is delivered up to here, by so many records. In a
    /// catch-up there is no such place between two pages: of a page that had to be split, parts may come again after a kill.
    fn part_way(&self, to: u64, records: usize) -> Slot {
        let mut cursor = self.cursor.cursor().clone();
        match &mut cursor.errand {
            None => cursor.acknowledge_part(to),
            // Looks at objects that led to no record are not among them: such a look comes again, which does no harm.
            Some(Errand::Letters { given, .. }) => *given += records as u64,
            Some(Errand::Replay { .. } | Errand::CatchUp(_) | Errand::Loss { .. }) => {}
        }
        self.cursor.next(cursor)
    }

    /// It works.
    pub(super) fn relieved(&mut self) {
        if self.backoff.failures() > 0 {
            info!(sink = %self.name, failures = self.backoff.failures(), "delivering again");
            self.backoff.reset();
        }
        self.refusals.row = 0;
    }

    /// What is to be done about a failure.
    fn step(&mut self, left: &mut Remains, failed: SinkError) -> Result<Step, DeliveryError> {
        let SinkError { decision, .. } = failed;
        let mut message = failed.to_string();
        let step = match left.failed(&failed, self.policy.oversize) {
            // Letters that come again were refused before, one by one: as many in a row say nothing new.
            Step::Bury if self.refusals.row + 1 >= POISON_ROW && !self.gives_letters() => {
                message = format!("{POISON_ROW} records in a row were refused, so it is not the records: {message}");
                Step::Hold
            }
            step => step,
        };
        match &step {
            Step::Stop => return Err(DeliveryError::Sink { sink: self.name.clone(), message }),
            Step::Again => {
                warn!(sink = %self.name, error = message, ?decision, "a batch was refused, trying it otherwise")
            }
            Step::Bury => {
                let record = left.first().map(|record| (record.seq, record.stream.to_string()));
                error!(sink = %self.name, error = message, ?record, "a record was refused for good and goes to the dead letters");
                self.refusals.last.clone_from(&message);
            }
            Step::Pause(_) => self.vitals.failed(&message, decision.as_str()),
            Step::Hold => {
                self.vitals.failed(&message, decision.as_str());
                error!(sink = %self.name, error = message, "delivery is held until somebody mends this; nothing is lost");
            }
        }
        if let Step::Pause(_) = step {
            let attempt = self.backoff.failures() + 1;
            warn!(sink = %self.name, attempt, error = message, "delivery failed, trying again");
        }
        Ok(step)
    }

    fn gives_letters(&self) -> bool {
        matches!(self.cursor.cursor().errand, Some(Errand::Letters { .. }))
    }

    /// How long to wait before the next try, if at all.
    fn pause(&mut self, step: &Step) -> Option<Duration> {
        match step {
            Step::Again | Step::Bury | Step::Stop => None,
            Step::Pause(wish) => Some(self.backoff.next(rand::random(), self.longest_pause, *wish)),
            Step::Hold => {
                // Seldom, but the first few times sooner: a permission may be on its way.
                let pause = self.backoff.next(1.0, self.longest_pause, None);
                Some(pause)
            }
        }
    }

    /// Waits. Something, if the batch is not to be tried again. Dead letters that are asked for come when it is through: whether the
    /// receiver has it may be unknown.
    pub(super) async fn rest(&mut self, pause: Duration) -> Result<Option<Delivered>, DeliveryError> {
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(None),
            () = self.drain.cancelled() => Ok(Some(Delivered::Stopped)),
            Some(ordered) = self.orders.recv() => {
                Ok((self.obey(ordered)? == Obeyed::Anew).then_some(Delivered::Ordered))
            }
        }
    }

    /// Sets a record aside, durably. `behind` is the cursor behind it. Something, if the batch is not to go on. As long as there is no
    /// place for it, a full volume say, the sink is held: no record is passed that is nowhere.
    async fn bury(
        &mut self,
        record: Record,
        behind: &Slot,
        holds: &impl Fn(&View) -> bool,
    ) -> Result<Option<Delivered>, DeliveryError> {
        let reason = self.refusals.last.clone();
        let mut letter = self.policy.letters.letter(record, &reason, self.clock.wall());
        let commit = self.policy.exactly_once.then(|| behind.to_bytes());
        while let Err(failed) = self.set_aside(&letter, commit.as_ref()).await {
            let SinkError { decision, message, .. } = failed;
            let small = if decision == Decision::Oversize { truncated(&letter.record) } else { None };
            if let Some(small) = small {
                warn!(sink = %self.name, error = message, "a dead letter is too large for its place, setting it aside without its object");
                letter.record = small;
                continue;
            }
            let pause = match decision {
                Decision::Fatal => return Err(DeliveryError::Sink { sink: self.name.clone(), message }),
                Decision::Retry { after } => self.backoff.next(rand::random(), self.longest_pause, after),
                _ => self.backoff.next(1.0, self.longest_pause, None),
            };
            self.vitals.failed(&message, decision.as_str());
            error!(sink = %self.name, error = message, "a dead letter cannot be set aside; delivery is held until it can, and nothing is lost");
            if let Some(ended) = self.rest(pause).await? {
                return Ok(Some(ended));
            }
            if !holds(&self.view) {
                return Ok(Some(Delivered::Outdated));
            }
        }
        self.refusals.row += 1;
        self.vitals.buried();
        self.weigh_letters();
        Ok(None)
    }

    async fn set_aside(&mut self, letter: &Letter, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let Some(directory) = self.policy.letters.directory().map(|directory| directory.display().to_string()) else {
            return self.sink.set_aside(letter, cursor).await;
        };
        let added = tokio::task::block_in_place(|| self.policy.letters.add(letter));
        added.map_err(|error| SinkError::hold(format!("cannot write the dead letters in {directory}: {error}")))
    }

    /// How much waits in the files, for the metrics.
    pub(super) fn weigh_letters(&self) {
        // If they cannot be read now, that is told when they must be.
        if let Ok(Some(bytes)) = tokio::task::block_in_place(|| self.policy.letters.size()) {
            self.vitals.letters(bytes);
        }
    }

    /// Counts what was delivered.
    pub(super) fn report(&self, tally: Tally) {
        let lag = tally.observed_at.map(|at| self.clock.wall().duration_since(at));
        // The wall clock may have been set back meanwhile.
        let lag = lag.map(|lag| Duration::try_from(lag).unwrap_or_default());
        self.vitals.delivered(tally.records, tally.bytes, lag);
    }

    /// Learns from the receiver how far it is, which alone knows.
    pub(super) async fn restore(&mut self) -> Result<Course, DeliveryError> {
        let kept = loop {
            let failed = match self.sink.restore().await {
                Ok(kept) => break kept,
                Err(failed) => failed,
            };
            let SinkError { decision, message, .. } = failed;
            if decision == Decision::Fatal {
                return Err(DeliveryError::Sink { sink: self.name.clone(), message });
            }
            self.vitals.failed(&message, decision.as_str());
            warn!(sink = %self.name, error = message, "the receiver does not say how far it is, asking again");
            let pause = self.backoff.next(rand::random(), self.longest_pause, None);
            if let Some(Delivered::Stopped) = self.rest(pause).await? {
                return Ok(Course::Stop);
            }
        };
        self.relieved();
        if let Some(kept) = kept {
            self.adopt(&kept)?;
        }
        Ok(Course::On)
    }

    /// Goes on from where the receiver is.
    fn adopt(&mut self, kept: &Bytes) -> Result<(), DeliveryError> {
        let slot = Slot::of_bytes(kept).map_err(|error| DeliveryError::Sink {
            sink: self.name.clone(),
            message: format!("the cursor that the receiver keeps cannot be read: {error}; is it of a newer kubetide?"),
        })?;
        let there = slot.cursor();
        let (seq, at) = (there.acknowledged, self.clock.wall());
        let loss = if there.log_id != self.view.log_id() {
            Loss::Lost
        // Not by the head of the log, which grows while the receiver is asked.
        } else if there.reached > self.cursor.cursor().furthest_sent() {
            Loss::Rewound
        } else {
            if self.cursor.is_before(&slot) {
                self.write_cursor(|file| file.put(slot))?;
            }
            return Ok(());
        };
        let errand = Some(Errand::Loss { loss, seq, at });
        self.write_cursor(|file| {
            file.change(|cursor| {
                *cursor = Cursor { acknowledged: 0, reached: 0, in_flight: None, errand, ..cursor.clone() }
            })
        })
    }
}
