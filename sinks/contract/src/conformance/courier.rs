//! Delivery in small: the same batch again for as long as the sink asks for it, less what it calls durable; halved, cut short or set
//! aside where it says so. The cursor moves behind its `Ok`, and with exactly once it goes along with the records.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::{Finding, Promises, ledger::Ledger, load::CANARY};
use crate::{Batch, Body, Decision, Id, Record, Sink, SinkError, truncated};

/// The first pause between two tries. Receivers on loopback need no more.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest one, also where the receiver wishes for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What is left of a batch.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    from: u64,
    to: u64,
    records: VecDeque<Record>,
    /// How many records each part has; the next part is the last one here.
    parts: Vec<usize>,
    /// Whether a batch has carried the cursor up to the end, where one must.
    is_committed: bool,
}

/// What came of a parcel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// All of it is taken, or set aside.
    Taken,
    /// The sink waits for an operator.
    Held,
}

/// What to do when the sink waits for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHold {
    Tell,
    /// The operator has acted: try again.
    TryAgain,
}

impl Parcel {
    pub(super) fn new(from: u64, to: u64, records: Vec<Record>, exactly_once: bool) -> Self {
        let is_empty = records.is_empty();
        let parts = if is_empty { Vec::new() } else { vec![records.len()] };
        Self { from, to, records: records.into(), parts, is_committed: !exactly_once && !is_empty }
    }

    /// It stands for places of the log up to here, of which the last ones have nothing for the sink.
    pub(super) fn reaches(mut self, to: u64) -> Self {
        self.to = to;
        self
    }

    /// What is next: a part, or a batch without records where nothing else would carry the cursor.
    pub(super) fn next(&self) -> Option<Batch> {
        let records: Vec<Record> = match self.parts.last() {
            Some(len) => self.records.iter().take(*len).cloned().collect(),
            None if !self.is_committed => Vec::new(),
            None => return None,
        };
        let to = if self.is_last() { self.to } else { records.last().map_or(self.to, |record| record.seq) };
        Some(Batch { id: id_of(&records), from: self.from, to, records })
    }

    fn is_last(&self) -> bool {
        self.parts.len() <= 1
    }

    /// The next part is.
    pub(super) fn taken(&mut self) {
        self.is_committed |= self.is_last();
        if let Some(len) = self.parts.pop() {
            self.pass(len);
        }
    }

    /// The first so many are done with; there is more in the next part.
    fn shorten(&mut self, by: usize) {
        self.pass(by);
        if let Some(len) = self.parts.last_mut() {
            *len -= by;
            if *len == 0 {
                self.parts.pop();
            }
        }
    }

    fn pass(&mut self, records: usize) {
        if let Some(last) = self.records.drain(..records).next_back() {
            self.from = (last.seq + 1).min(self.to);
        }
    }

    fn split(&mut self) -> Result<(), Finding> {
        match self.parts.pop() {
            Some(len) if len > 1 => self.parts.extend([len / 2, len - len / 2]),
            _ => return Err(Finding::new("a batch of one record is to be split")),
        }
        Ok(())
    }
}

/// Another one for any other records, as with delivery.
fn id_of(records: &[Record]) -> Id {
    let mut hash = Sha256::new();
    for record in records {
        let is_cut = matches!(&record.body, Body::Change(change) if change.truncated.is_some());
        hash.update(record.id.0);
        hash.update([u8::from(is_cut)]);
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    Id(id)
}

/// The cursor behind this place.
pub(super) fn cursor(to: u64) -> Bytes {
    format!("cursor {to}").into()
}

/// The place that a cursor is behind.
pub(super) fn place(cursor: &Bytes) -> Option<u64> {
    std::str::from_utf8(cursor).ok()?.strip_prefix("cursor ")?.parse().ok()
}

/// What the sink asks for, and how long that has been going on.
pub(super) struct Courier {
    pub(super) promises: Promises,
    pub(super) ledger: Ledger,
    /// As far as the sink has acknowledged.
    pub(super) acknowledged: u64,
    patience: Duration,
    secrets: Vec<String>,
}

impl Courier {
    pub(super) fn new(promises: Promises, patience: Duration, secrets: Vec<String>) -> Self {
        Self { promises, ledger: Ledger::new(promises), acknowledged: 0, patience, secrets }
    }

    /// Delivers a parcel, however often that takes, within its patience. What is dropped in the middle counts as not delivered.
    pub(super) async fn push(
        &mut self,
        sink: &mut dyn Sink,
        parcel: &mut Parcel,
        on_hold: OnHold,
    ) -> Result<Pushed, Finding> {
        let (mut tries, mut last_step, mut pause) = (0, Instant::now(), PAUSE);
        while let Some(batch) = parcel.next() {
            let commit = self.promises.exactly_once.then(|| cursor(batch.to));
            self.ledger.handed(&batch.records);
            let failed = match sink.deliver(&batch, commit.as_ref()).await {
                Ok(()) => {
                    self.ledger.acknowledged(&batch.records);
                    if self.promises.exactly_once || parcel.is_last() {
                        self.acknowledged = batch.to;
                    }
                    parcel.taken();
                    (tries, last_step, pause) = (0, Instant::now(), PAUSE);
                    continue;
                }
                Err(failed) => failed,
            };
            self.overhear(&failed)?;
            let decision = failed.decision;
            if decision == Decision::Hold && on_hold == OnHold::Tell {
                return Ok(Pushed::Held);
            }
            tries += 1;
            if self.obey(&failed, &batch, parcel)? {
                (tries, last_step, pause) = (0, Instant::now(), PAUSE);
            } else if last_step.elapsed() > self.patience {
                let what = format!("nothing is taken, after {tries} tries in {:?}: {failed}", last_step.elapsed());
                return Err(Finding::new(what));
            }
            let wish = match decision {
                Decision::Retry { after } => after,
                Decision::Hold => None,
                _ => continue,
            };
            sleep(wish.unwrap_or(pause).min(LONGEST_PAUSE)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(Pushed::Taken)
    }

    /// Does with the batch what the sink has decided; whether that is a step ahead.
    fn obey(&mut self, failed: &SinkError, batch: &Batch, parcel: &mut Parcel) -> Result<bool, Finding> {
        let SinkError { durable, decision, .. } = *failed;
        if durable > 0 {
            if durable >= batch.records.len() {
                let all = batch.records.len();
                return Err(Finding::new(format!(
                    "{durable} of {all} are durable, and there is a failure behind: {failed}"
                )));
            }
            self.ledger.acknowledged(&batch.records[..durable]);
            parcel.shorten(durable);
        }
        match (decision, parcel.records.front()) {
            (Decision::Retry { .. } | Decision::Hold, _) => return Ok(durable > 0),
            (Decision::Fatal, _) => return Err(Finding::new(format!("the process is to end: {failed}"))),
            (_, None) => return Err(Finding::new(format!("{}, of no record: {failed}", decision.as_str()))),
            (Decision::Split, _) => parcel.split()?,
            (Decision::Poison, Some(record)) => {
                self.ledger.buried(record)?;
                parcel.shorten(1);
            }
            (Decision::Oversize, Some(record)) => {
                self.ledger.cut_short(record)?;
                match truncated(record) {
                    Some(small) => parcel.records[0] = small,
                    None => return Err(Finding::new(format!("a record without content is too large: {failed}"))),
                }
            }
        }
        Ok(true)
    }

    /// Nothing of an object, and no credential, is in what the sink says.
    pub(super) fn overhear(&self, failed: &SinkError) -> Result<(), Finding> {
        let said = format!("{failed} {failed:?}");
        if failed.message.is_empty() {
            return Err(Finding::new("a failure has no message"));
        }
        if said.contains(CANARY) {
            return Err(Finding::new("the content of an object is in the message of a failure"));
        }
        if self.secrets.iter().any(|secret| said.contains(secret)) {
            return Err(Finding::new("a credential is in the message of a failure"));
        }
        Ok(())
    }
}
