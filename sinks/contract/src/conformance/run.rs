//! One case at work: a sink that is opened again and again, and what was delivered through it.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{
    Bench, Finding, Promises,
    courier::{Courier, OnHold, Parcel, Pushed, place},
    load::Load,
};
use crate::{Decision, Record, Sink};

/// Between two questions for the cursor.
const PAUSE: Duration = Duration::from_millis(50);

/// So long a sink is given to say that its receiver is away.
const WAITS: Duration = Duration::from_secs(2);

pub(super) struct Run<'b> {
    pub(super) bench: &'b mut dyn Bench,
    /// None between two processes.
    sink: Option<Box<dyn Sink>>,
    pub(super) courier: Courier,
    pub(super) load: Load,
}

impl<'b> Run<'b> {
    /// With a sink that is open, and has said how far it is.
    pub(super) async fn begin(bench: &'b mut dyn Bench) -> Result<Self, Finding> {
        let mut run = Self::open(bench).await;
        run.restore().await?;
        Ok(run)
    }

    /// With a sink that was asked nothing yet.
    pub(super) async fn open(bench: &'b mut dyn Bench) -> Self {
        let courier = Courier::new(bench.promises(), bench.patience(), bench.secrets());
        let sink = bench.open().await;
        Self { bench, sink: Some(sink), courier, load: Load::default() }
    }

    pub(super) const fn promises(&self) -> Promises {
        self.courier.promises
    }

    /// Ends the process, in the middle of whatever it does.
    pub(super) fn end(&mut self) {
        self.sink = None;
    }

    /// Ends the process, and starts another one, which learns how far it is.
    pub(super) async fn restart(&mut self) -> Result<(), Finding> {
        self.end();
        self.sink = Some(self.bench.open().await);
        self.restore().await
    }

    /// The sink, what speaks to it, and what stands behind it.
    fn parts(&mut self) -> (&mut dyn Sink, &mut Courier, &mut dyn Bench) {
        #[allow(clippy::expect_used, reason = "a case ends a process only to start another one")]
        let sink = self.sink.as_mut().expect("a process runs");
        (sink.as_mut(), &mut self.courier, self.bench)
    }

    /// Asks the receiver how far the sink is, where it is the one who knows: no further than what was tried, and not before what was
    /// acknowledged.
    pub(super) async fn restore(&mut self) -> Result<(), Finding> {
        if !self.promises().exactly_once {
            return Ok(());
        }
        let began = Instant::now();
        let found = loop {
            let (sink, courier, bench) = self.parts();
            let failed = match sink.restore().await {
                Ok(found) => break found,
                Err(failed) => failed,
            };
            courier.overhear(&failed)?;
            if began.elapsed() > bench.patience() || failed.decision == Decision::Hold {
                return Err(Finding::new(format!("the receiver does not say how far the sink is: {failed}")));
            }
            sleep(PAUSE).await;
        };
        let there = match &found {
            None => 0,
            Some(cursor) => place(cursor).ok_or_else(|| Finding::new("the cursor is not one that was committed"))?,
        };
        let acknowledged = self.courier.acknowledged;
        if there < acknowledged {
            return Err(Finding::new(format!("acknowledged up to {acknowledged}, and the cursor is {there}")));
        }
        self.courier.acknowledged = there;
        self.courier.ledger.committed(there);
        Ok(())
    }

    /// These as one batch.
    pub(super) fn parcel(&self, records: Vec<Record>) -> Parcel {
        let last = records.last().map_or(self.courier.acknowledged, |record| record.seq);
        let from = records.first().map_or(last, |record| record.seq);
        Parcel::new(from, last, records, self.promises().exactly_once)
    }

    /// Delivers these, to the end.
    pub(super) async fn deliver(&mut self, records: Vec<Record>) -> Result<(), Finding> {
        let mut parcel = self.parcel(records);
        self.finish(&mut parcel, OnHold::Tell).await
    }

    /// Delivers the next so many records.
    pub(super) async fn deliver_next(&mut self, count: usize) -> Result<(), Finding> {
        let records = self.load.take(count);
        self.deliver(records).await
    }

    /// Delivers what is left of a parcel, to the end.
    pub(super) async fn finish(&mut self, parcel: &mut Parcel, on_hold: OnHold) -> Result<(), Finding> {
        match self.push(parcel, on_hold).await? {
            Pushed::Taken => Ok(()),
            Pushed::Held => Err(Finding::new("the sink waits for an operator, and the receiver lacks nothing")),
        }
    }

    pub(super) async fn push(&mut self, parcel: &mut Parcel, on_hold: OnHold) -> Result<Pushed, Finding> {
        let (sink, courier, _) = self.parts();
        courier.push(sink, parcel, on_hold).await
    }

    /// The same, while the receiver is killed after so long, and started again.
    pub(super) async fn push_through_a_kill(&mut self, parcel: &mut Parcel, after: Duration) -> Result<(), Finding> {
        let (sink, courier, bench) = self.parts();
        let killed = async {
            sleep(after).await;
            bench.stop().await;
            bench.start().await;
        };
        let (pushed, ()) = tokio::join!(courier.push(sink, parcel, OnHold::Tell), killed);
        if pushed? == Pushed::Held {
            return Err(Finding::new("the sink waits for an operator, and the receiver only starts again"));
        }
        Ok(())
    }

    /// The same, until the receiver is killed after so long, and the process with it.
    pub(super) async fn push_until_killed(&mut self, parcel: &mut Parcel, after: Duration) -> Result<(), Finding> {
        let (sink, courier, bench) = self.parts();
        let killed = async {
            sleep(after).await;
            bench.stop().await;
        };
        tokio::select! {
            pushed = courier.push(sink, parcel, OnHold::TryAgain) => {
                pushed?;
            }
            () = killed => {}
        }
        bench.stop().await;
        self.end();
        Ok(())
    }

    /// The receiver is away when this is delivered for the first time, or when it is asked how far the sink is; then it comes.
    /// Until then the sink may wait, or say that it is to be tried again.
    pub(super) async fn first_contact(&mut self, parcel: &mut Parcel) -> Result<(), Finding> {
        let (sink, courier, bench) = self.parts();
        let asked = if courier.promises.exactly_once { None } else { parcel.next() };
        courier.ledger.handed(asked.as_ref().map_or(&[], |batch| &batch.records));
        let mut attempt = pin!(async {
            match &asked {
                Some(batch) => sink.deliver(batch, None).await,
                None => sink.restore().await.map(drop),
            }
        });
        let early = timeout(WAITS, &mut attempt).await;
        if let Ok(Ok(())) = early {
            return Err(Finding::new("the receiver is away, and the sink says that all is well"));
        }
        bench.start().await;
        let came = match early {
            Ok(came) => came,
            Err(_) => attempt.await,
        };
        match came {
            Ok(()) => {
                if let Some(batch) = &asked {
                    courier.ledger.acknowledged(&batch.records);
                    parcel.taken();
                }
                Ok(())
            }
            Err(failed) => {
                courier.overhear(&failed)?;
                match failed.decision {
                    Decision::Retry { .. } => Ok(()),
                    _ => Err(Finding::new(format!("the receiver is away, and it is not to be tried again: {failed}"))),
                }
            }
        }
    }

    /// Delivers these again, as after a kill: unless the receiver says that it has them.
    pub(super) async fn deliver_again(&mut self, records: &[Record]) -> Result<(), Finding> {
        if self.is_committed(records) { Ok(()) } else { self.deliver(records.to_vec()).await }
    }

    /// Whether the receiver itself has said that it has these.
    pub(super) fn is_committed(&self, records: &[Record]) -> bool {
        let last = records.last().map_or(0, |record| record.seq);
        self.promises().exactly_once && last <= self.courier.acknowledged
    }

    /// Holds what is there against what was delivered.
    pub(super) async fn judge(&mut self) -> Result<(), Finding> {
        let kept = self.bench.kept().await;
        self.courier.ledger.judge(&kept)
    }
}
