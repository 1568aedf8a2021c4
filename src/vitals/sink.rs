//! The vitals of one sink: what it took, and for how long it has been failing.

use std::{
    slice,
    sync::{Arc, Mutex},
    time::Duration,
};

use opentelemetry::KeyValue;
use tokio::time::Instant;

use super::{Shared, lock, readiness::Check, words};

/// A receiver that restarts is back within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the delivery to one sink reports to. Clones report to the same place.
#[derive(Clone)]
pub struct SinkVitals {
    shared: Arc<Shared>,
    condition: Arc<Mutex<Condition>>,
    /// The label of all its series.
    sink: KeyValue,
}

/// How one sink is.
#[derive(Default)]
pub(super) struct Condition {
    failing: Option<Failing>,
    /// Bytes of dead letters that wait; none if they are not in files.
    pub(super) letters: Option<u64>,
}

struct Failing {
    since: Instant,
    message: String,
}

impl Condition {
    pub(super) fn check(&self, sink: &str) -> Check {
        let name = format!("sink/{sink}");
        let Some(Failing { since, message }) = &self.failing else { return Check::ok(name) };
        let message = format!("{message} (for {}); nothing is lost, it is tried again", words::time(since.elapsed()));
        if since.elapsed() < PATIENCE { Check::degraded(name, message) } else { Check::failed(name, message) }
    }
}

impl SinkVitals {
    pub(super) fn new(shared: Arc<Shared>, name: &str, condition: Arc<Mutex<Condition>>) -> Self {
        Self { shared, condition, sink: KeyValue::new("sink", Arc::<str>::from(name)) }
    }

    /// A batch was acknowledged, this long after its oldest record was observed, if that says anything.
    pub fn delivered(&self, records: u64, bytes: u64, lag: Option<Duration>) {
        let (instruments, labels) = (&self.shared.instruments, slice::from_ref(&self.sink));
        instruments.sink_records.add(records, labels);
        instruments.sink_bytes.add(bytes, labels);
        if let Some(lag) = lag {
            instruments.sink_lag.record(lag.as_secs_f64(), labels);
        }
        lock(&self.condition).failing = None;
    }

    /// A batch was cut, for this reason.
    pub fn cut(&self, reason: &'static str) {
        self.shared.instruments.sink_batches.add(1, &[self.sink.clone(), KeyValue::new("cut", reason)]);
    }

    /// A record went to the dead letters.
    pub fn buried(&self) {
        self.shared.instruments.sink_dead_letters.add(1, slice::from_ref(&self.sink));
    }

    /// So many bytes of dead letters wait in files.
    pub fn letters(&self, bytes: u64) {
        lock(&self.condition).letters = Some(bytes);
    }

    /// A batch was not taken, and this is done about it.
    pub fn failed(&self, message: &str, decision: &'static str) {
        self.shared.instruments.sink_failures.add(1, &[self.sink.clone(), KeyValue::new("decision", decision)]);
        let mut condition = lock(&self.condition);
        let since = condition.failing.as_ref().map_or_else(Instant::now, |failing| failing.since);
        condition.failing = Some(Failing { since, message: words::short(message) });
    }
}
