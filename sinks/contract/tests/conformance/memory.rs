//! A sink that writes to a receiver in memory, well or with a flaw.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{
    Batch, Decision, Record, Sink, SinkError,
    conformance::{Bench, Case, Kept, Promises, Repeats},
};
use tokio::time::Instant;

use crate::{
    broken::Flaw,
    receiver::{Connection, Receiver, State, written},
};

/// As many records fit into the window of a sink that loses what does not.
const WINDOW: usize = 400;

/// As long a sink waits that does not wait for a slow receiver.
const IMPATIENT: Duration = Duration::from_secs(1);

pub(crate) struct MemoryBench {
    receiver: Receiver,
    promises: Promises,
    flaw: Option<Flaw>,
    pub(crate) takes_anything: bool,
}

impl MemoryBench {
    pub(crate) fn new(promises: Promises, flaw: Option<Flaw>) -> Self {
        Self { receiver: Receiver::new(), promises, flaw, takes_anything: false }
    }
}

#[async_trait(?Send)]
impl Bench for MemoryBench {
    fn promises(&self) -> Promises {
        self.promises
    }

    fn cannot(&self, case: Case) -> Option<&'static str> {
        (case == Case::Poison && self.takes_anything).then_some("memory takes anything")
    }

    fn secrets(&self) -> Vec<String> {
        ["old-secret", "new-secret"].map(str::to_owned).into()
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        Box::new(MemorySink {
            receiver: self.receiver.clone(),
            promises: self.promises,
            flaw: self.flaw,
            connection: None,
            password: None,
            held_back: None,
            is_new: true,
        })
    }

    async fn kept(&mut self) -> Vec<Kept> {
        let state = self.receiver.lock();
        let all = state.durable.iter().chain(&state.volatile);
        all.map(|(_, record)| Kept { lane: 0, record: record.clone() }).collect()
    }

    async fn stop(&mut self) {
        let mut state = self.receiver.lock();
        state.is_down = true;
        state.kills += 1;
        state.volatile.clear();
    }

    async fn start(&mut self) {
        self.receiver.lock().is_down = false;
    }

    async fn slow(&mut self, is_slow: bool) {
        self.receiver.lock().is_slow = is_slow;
    }

    async fn poison(&mut self, record: Record) -> Record {
        self.receiver.lock().poison.insert(record.seq);
        record
    }

    async fn limit(&mut self, bytes: usize) {
        self.receiver.lock().limit = Some(bytes);
    }

    async fn shut(&mut self) {
        self.receiver.lock().is_shut = true;
    }

    async fn mend(&mut self) {
        self.receiver.lock().is_shut = false;
    }

    async fn rotate(&mut self) {
        let mut state = self.receiver.lock();
        state.password = "new-secret".into();
        state.kills += 1;
    }

    async fn hand_over(&mut self) {
        self.receiver.lock().file = "new-secret".into();
    }
}

struct MemorySink {
    receiver: Receiver,
    promises: Promises,
    flaw: Option<Flaw>,
    connection: Option<Connection>,
    password: Option<String>,
    held_back: Option<Record>,
    is_new: bool,
}

impl MemorySink {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The connection there is, or a new one with the password as it is in its file.
    fn connected(&mut self) -> Result<(), SinkError> {
        if self.connection.is_some() && self.is(Flaw::NeverReconnects) {
            return Ok(());
        }
        let read = self.receiver.lock().file.clone();
        let password = match &self.password {
            Some(kept) if self.is(Flaw::KeepsPassword) => kept.clone(),
            _ => read,
        };
        self.connection = Some(self.receiver.connect(&password).map_err(|error| match error.decision {
            Decision::Hold if self.is(Flaw::TellsPassword) => SinkError::hold(format!("{error} with {password}")),
            _ => error,
        })?);
        self.password = Some(password);
        Ok(())
    }

    /// Nobody else's business: how each flaw answers a failure.
    fn bent(&self, failed: SinkError, batch: &Batch) -> Result<(), SinkError> {
        let SinkError { decision, durable, .. } = failed;
        let record = batch.records.get(durable);
        match (self.flaw, decision) {
            (Some(Flaw::EndsWhenShut), Decision::Hold) => Err(SinkError::fatal("not let in")),
            (Some(Flaw::TakesWhenShut), Decision::Hold) => Ok(()),
            (Some(Flaw::EndsWhenAway), Decision::Retry { .. }) => Err(SinkError::fatal("nobody is there")),
            (Some(Flaw::TakesWhenAway), Decision::Retry { .. }) => Ok(()),
            (Some(Flaw::RetriesPoison), Decision::Poison) => Err(SinkError::retry("it will pass").behind(durable)),
            (Some(Flaw::RetriesPoison), Decision::Split) => Err(SinkError::retry("it will pass")),
            (Some(Flaw::BlamesFirst), Decision::Poison | Decision::Oversize) => Err(failed.behind(0)),
            (Some(Flaw::BuriesLarge), Decision::Oversize) => {
                Err(SinkError::new(Decision::Poison, "no").behind(durable))
            }
            (Some(Flaw::TellsContent), Decision::Poison) => {
                let bytes = record.map(written).unwrap_or_default();
                Err(SinkError { message: format!("no {}", String::from_utf8_lossy(&bytes)), ..failed })
            }
            (Some(Flaw::CountsWhatWasOnItsWay), Decision::Retry { .. }) if durable > 0 => {
                Err(failed.behind(batch.records.len() - 1))
            }
            _ => Err(failed),
        }
    }

    /// What is to be written for these, in this order.
    fn lines(&mut self, batch: &Batch) -> Lines {
        let mut records = batch.records.clone();
        if self.is(Flaw::Reorders) {
            records.rotate_right(1);
        }
        if self.is(Flaw::LosesBehindWindow) {
            records.truncate(WINDOW);
        }
        if self.is(Flaw::RepeatsHalf) && self.receiver.lock().known.contains(&batch.to) {
            records.truncate(records.len() / 2);
        }
        if self.is(Flaw::HoldsBack) {
            let last = records.pop();
            records.splice(0..0, std::mem::replace(&mut self.held_back, last));
        }
        let mut lines: Vec<_> = records.into_iter().map(|record| (record.clone(), self.bytes(&record))).collect();
        if self.is(Flaw::Glues) && lines.len() > 1 {
            let (_, second) = lines.remove(1);
            lines[0].1.extend(second);
        }
        if self.is(Flaw::RepeatsAll) && std::mem::take(&mut self.is_new) {
            let history = self.receiver.lock().durable.clone();
            let again = |(seq, bytes)| (kubetide_sink::sample::record(seq, "{}"), bytes);
            lines.splice(0..0, history.into_iter().map(again));
        }
        lines
    }

    fn bytes(&self, record: &Record) -> Vec<u8> {
        let mut bytes = written(record);
        match self.flaw {
            Some(Flaw::Rewrites) => {
                let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                bytes = value.to_string().into_bytes();
            }
            Some(Flaw::Sanitises) => bytes = String::from_utf8(bytes).unwrap().replace(r"\u0000", "").into_bytes(),
            Some(Flaw::CutsLarge) => bytes.truncate(1 << 20),
            _ => {}
        }
        bytes
    }

    async fn at_least_once(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.connected()?;
        if self.is(Flaw::NotesFirst) {
            let mut state = self.receiver.lock();
            if state.notes.contains(&batch.id) {
                return Ok(());
            }
            state.notes.push(batch.id);
        }
        let lines = self.lines(batch);
        let Some(connection) = &self.connection else { return Err(SinkError::retry("no connection")) };
        let late = Late(self.is(Flaw::WritesLate).then(|| (self.receiver.clone(), lines.clone())));
        let began = Instant::now();
        for (at, (record, bytes)) in lines.into_iter().enumerate() {
            let mut state = connection.travel().await.map_err(|failed| failed.behind(at))?;
            if began.elapsed() > IMPATIENT && state.is_slow {
                match self.flaw {
                    Some(Flaw::GivesUpWaiting) => return Ok(()),
                    Some(Flaw::CallsForHelpWhenSlow) => return Err(SinkError::hold("too slow").behind(at)),
                    _ => {}
                }
            }
            if let Some(refusal) = state.refusal(&record, bytes.len()) {
                let is_swallowed = match refusal.decision {
                    Decision::Poison => self.is(Flaw::SwallowsPoison),
                    _ => self.is(Flaw::SwallowsLarge),
                };
                if is_swallowed {
                    continue;
                }
                return Err(refusal.behind(at));
            }
            self.store(&mut state, record.seq, bytes);
        }
        late.forget();
        Ok(())
    }

    fn store(&self, state: &mut State, seq: u64, bytes: Vec<u8>) {
        let knows = self.promises.repeats == Repeats::Nothing && !self.is(Flaw::RepeatsBatch);
        let is_new = state.known.insert(seq);
        if knows && !is_new {
            return;
        }
        if self.is(Flaw::AcksEarly) { state.volatile.push((seq, bytes)) } else { state.durable.push((seq, bytes)) }
    }

    async fn exactly_once(&mut self, batch: &Batch, cursor: &Bytes) -> Result<(), SinkError> {
        self.connected()?;
        let Some(connection) = &self.connection else { return Err(SinkError::retry("no connection")) };
        if self.is(Flaw::CursorFirst) {
            connection.travel().await?.cursor = Some(cursor.clone());
        }
        let mut staged = Vec::new();
        for (at, record) in batch.records.iter().enumerate() {
            let state = connection.travel().await?;
            let bytes = written(record);
            if let Some(refusal) = state.refusal(record, bytes.len()) {
                return Err(match at {
                    0 => refusal,
                    _ => SinkError::new(Decision::Split, refusal.message),
                });
            }
            staged.push((record.seq, bytes));
        }
        let mut state = connection.travel().await?;
        staged.into_iter().for_each(|(seq, bytes)| self.store(&mut state, seq, bytes));
        if !(self.is(Flaw::PassesEmpty) && batch.records.is_empty()) {
            state.cursor = Some(cursor.clone());
        }
        Ok(())
    }
}

#[async_trait]
impl Sink for MemorySink {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        if batch.records.is_empty() && self.is(Flaw::FailsOnEmpty) {
            return Err(SinkError::new(Decision::Poison, "nothing to write"));
        }
        let came = match cursor {
            Some(cursor) => self.exactly_once(batch, cursor).await,
            None => self.at_least_once(batch).await,
        };
        came.or_else(|failed| self.bent(failed, batch))
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.connected()?;
        let Some(connection) = &self.connection else { return Err(SinkError::retry("no connection")) };
        Ok(connection.travel().await?.cursor.clone())
    }
}

/// Writes what a call that was dropped has begun, when the next process has written it already.
struct Late(Option<(Receiver, Lines)>);

/// Records, and as what they are written.
type Lines = Vec<(Record, Vec<u8>)>;

impl Late {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let Some((receiver, lines)) = self.0.take() else { return };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let first = lines.into_iter().next();
            receiver.lock().durable.extend(first.map(|(record, bytes)| (record.seq, bytes)));
        });
    }
}
