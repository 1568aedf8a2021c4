//! The way that records really go, from the log to the acknowledgement that is durable beside it: the same loop, cursors and syncs
//! as in the program.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide::{
    backoff::Backoff,
    changelog::Changelog,
    clock::Clock,
    config::{Oversize, Start, WhenBehind},
    delivery::{DeadLetters, Limits, Orders, Policy, Pump, Refusals},
    vitals::Vitals,
};
use kubetide_sink::{Batch, Sink, SinkError, Terms, sample};
use tokio_util::sync::CancellationToken;

use crate::{full_log::FullLog, rounds::Lap};

/// What a sink is opened with. Its name is its identity: another one for each turn.
pub(crate) fn terms(name: &str, exactly_once: bool) -> Terms {
    Terms { exactly_once, ..sample::terms(name) }
}

/// A sink, and when it said what.
struct Timed {
    sink: Box<dyn Sink>,
    /// The last record of the log.
    last: u64,
    times: Arc<Mutex<Times>>,
    drain: CancellationToken,
}

#[derive(Default)]
struct Times {
    /// When the first batch was acknowledged, and how many records it had.
    first: Option<(Instant, usize)>,
    /// The same of the last batch that was full, with all records up to there. What is left of the log waits for `max_wait_ms`,
    /// which says nothing about speed.
    end: Option<(Instant, usize)>,
    /// How long the sink had the batches between; the rest is reading the log and writing the cursor.
    in_sink: Duration,
}

#[async_trait]
impl Sink for Timed {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let begun = Instant::now();
        if let Err(error) = self.sink.deliver(batch, cursor).await {
            panic!("a figure with failures in it says nothing: {error}");
        }
        if batch.to == self.last {
            self.drain.cancel();
            return Ok(());
        }
        let mut times = self.times.lock().unwrap();
        let records = times.end.map_or(0, |(_, records)| records) + batch.records.len();
        times.end = Some((Instant::now(), records));
        match times.first {
            None => times.first = times.end,
            Some(_) => times.in_sink += begun.elapsed(),
        }
        Ok(())
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.sink.restore().await
    }
}

/// The whole log into this sink.
pub(crate) async fn deliver(log: &FullLog, sink: Box<dyn Sink>, terms: &Terms, limits: Limits) -> Lap {
    let (times, drain) = (Arc::new(Mutex::new(Times::default())), CancellationToken::new());
    let sink = Timed { sink, last: log.last(), times: times.clone(), drain: drain.clone() };
    tokio::spawn(pump(&log.log, Box::new(sink), terms, limits, drain).run()).await.unwrap().unwrap();
    let times = times.lock().unwrap();
    let ((begun, before), (end, records)) = (times.first.unwrap(), times.end.unwrap());
    Lap { records: records - before, took: end - begun, in_sink: Some(times.in_sink) }
}

/// One sink's loop as the program makes it.
pub(crate) fn pump(
    log: &Changelog,
    sink: Box<dyn Sink>,
    terms: &Terms,
    limits: Limits,
    drain: CancellationToken,
) -> Pump {
    let clock = Clock::system();
    Pump {
        name: terms.name.clone(),
        vitals: Vitals::new().sink(&terms.name),
        sink,
        cluster: terms.cluster.clone(),
        view: log.view(),
        cursor: log.attach(&terms.name, Start::Earliest, WhenBehind::Resync).unwrap(),
        limits,
        backoff: Backoff::new(Duration::from_millis(500)),
        longest_pause: Duration::from_secs(60),
        streams: Vec::new(),
        policy: Policy {
            filter: None,
            oversize: Oversize::Truncate,
            letters: DeadLetters::new("unused".into(), &terms.name),
            exactly_once: terms.exactly_once,
        },
        refusals: Refusals::default(),
        orders: Orders::new().1,
        clock,
        drain,
    }
}
