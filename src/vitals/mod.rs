//! How the process is: the pipeline reports here, and readiness, liveness, metrics and progress are made from it.
//!
//! Reporting is cheap and never waits for anything but a short lock. Times are tokio's, so that tests can move them.
//! Messages come from API servers and receivers; whoever reports one sees to it that no object content or credential is in.

mod changes;
mod metrics;
mod readiness;
mod sink;
mod stream;
mod words;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::changelog::Size;
use metrics::{Exporter, Instruments};

pub use changes::StreamChanges;
pub use readiness::{Check, CheckState, Readiness};
pub use sink::SinkVitals;
pub use stream::{Asked, ListUnderWay, StreamVitals};
pub(crate) use words::{progress, thousands, time};

/// A committer that is alive has a turn many times in this.
const SILENCE: Duration = Duration::from_secs(60);

/// Where everything is reported. Clones are the same place.
#[derive(Clone)]
pub struct Vitals {
    shared: Arc<Shared>,
}

struct Shared {
    board: Arc<Board>,
    instruments: Instruments,
    exporter: Exporter,
}

/// What is known now; the gauges read it.
#[derive(Default)]
struct Board {
    whole: Mutex<Whole>,
    budget: AtomicU64,
}

#[derive(Default)]
struct Whole {
    streams: BTreeMap<Arc<str>, Arc<Mutex<stream::Condition>>>,
    sinks: BTreeMap<Arc<str>, Arc<Mutex<sink::Condition>>>,
    /// Whether it was ever told what there is to follow, all of it.
    known: bool,
    discovery_failing: Option<(Instant, String)>,
    unresolved: Vec<String>,
    blocked: Option<(Instant, String)>,
    log: Option<Size>,
    heartbeat: Option<Instant>,
}

impl Default for Vitals {
    fn default() -> Self {
        Self::new()
    }
}

impl Vitals {
    /// With nothing in it: not ready before it is known what there is to follow.
    pub fn new() -> Self {
        let board = Arc::new(Board::default());
        let (exporter, instruments) = Exporter::new(&board);
        Self { shared: Arc::new(Shared { board, instruments, exporter }) }
    }

    fn whole(&self) -> MutexGuard<'_, Whole> {
        lock(&self.shared.board.whole)
    }

    /// A stream that is followed from now on. The same name again replaces it: what the old one reports is only counted.
    pub fn stream(&self, name: &str, asked: Asked) -> StreamVitals {
        let condition = Arc::new(Mutex::new(stream::Condition::new(asked)));
        self.whole().streams.insert(name.into(), Arc::clone(&condition));
        StreamVitals::new(Arc::clone(&self.shared), name, condition)
    }

    /// The stream is not followed any more: it is out of readiness and of the gauges.
    pub fn forget_stream(&self, name: &str) {
        self.whole().streams.remove(name);
    }

    /// A sink that is delivered to from now on.
    pub fn sink(&self, name: &str) -> SinkVitals {
        let condition = Arc::default();
        self.whole().sinks.insert(name.into(), Arc::clone(&condition));
        SinkVitals::new(Arc::clone(&self.shared), name, condition)
    }

    /// What the cluster serves could not be read, or not all of it. What is followed already goes on.
    pub fn discovery_failed(&self, message: &str) {
        let mut whole = self.whole();
        let since = whole.discovery_failing.take().map_or_else(Instant::now, |(since, _)| since);
        whole.discovery_failing = Some((since, words::short(message)));
    }

    /// What the cluster serves is known.
    pub fn discovered(&self) {
        self.whole().discovery_failing = None;
    }

    /// The configured resources that the cluster does not serve now; none any more if empty. To be told after the streams of
    /// the others: until then nothing is ready.
    pub fn unresolved(&self, words: &[String]) {
        let mut whole = self.whole();
        whole.known = true;
        whole.unresolved = words.to_vec();
    }

    /// Appending to the log is blocked, and why. Whether that is news.
    pub fn block(&self, obstacle: &str) -> bool {
        let mut whole = self.whole();
        let since = whole.blocked.take().map(|(since, _)| since);
        whole.blocked = Some((since.unwrap_or_else(Instant::now), words::short(obstacle)));
        since.is_none()
    }

    /// Appending goes on. Whether that is news.
    pub fn unblock(&self) -> bool {
        self.whole().blocked.take().is_some()
    }

    /// How the log stands.
    pub fn log_size(&self, size: Size) {
        self.whole().log = Some(size);
    }

    /// The committer had a turn.
    pub fn heartbeat(&self) {
        self.whole().heartbeat = Some(Instant::now());
    }

    /// How much of the byte budget of the readers is in use.
    pub fn budget(&self, bytes_in_use: usize) {
        self.shared.board.budget.store(bytes_in_use as u64, Ordering::Relaxed);
    }

    /// Whether what was asked for is captured and delivered.
    pub fn readiness(&self) -> Readiness {
        let whole = self.whole();
        let mut checks = vec![whole.check_log(), whole.check_discovery(), whole.check_resources()];
        checks.extend(whole.sinks.iter().map(|(name, condition)| lock(condition).check(name)));
        checks.extend(whole.streams.iter().map(|(name, condition)| lock(condition).check(name)));
        checks.into()
    }

    /// Whether the committer still has its turns. True before its first one.
    pub fn live(&self) -> bool {
        self.whole().heartbeat.is_none_or(|last| last.elapsed() <= SILENCE)
    }

    /// The LISTs under way, by stream.
    pub fn lists_under_way(&self) -> Vec<ListUnderWay> {
        self.shared.board.lists_under_way()
    }

    /// All metrics as Prometheus text.
    pub fn render_metrics(&self) -> String {
        self.shared.exporter.render()
    }
}

impl Board {
    fn lists_under_way(&self) -> Vec<ListUnderWay> {
        let whole = lock(&self.whole);
        whole.streams.iter().filter_map(|(name, condition)| lock(condition).list_under_way(name)).collect()
    }

    fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }
}

impl Whole {
    fn check_log(&self) -> Check {
        match &self.blocked {
            None => Check::ok("log"),
            Some((since, obstacle)) => {
                let since = words::time(since.elapsed());
                let todo = "make room on the volume, raise log.max_bytes, or bring back the sink that is behind";
                Check::failed("log", format!("appending is blocked for {since}: {obstacle}; {todo}"))
            }
        }
    }

    fn check_discovery(&self) -> Check {
        match &self.discovery_failing {
            None => Check::ok("discovery"),
            Some((since, message)) => {
                Check::degraded("discovery", format!("{message} (for {})", words::time(since.elapsed())))
            }
        }
    }

    fn check_resources(&self) -> Check {
        if !self.known {
            return Check::failed("resources", "what the cluster serves is not known yet".into());
        }
        if self.unresolved.is_empty() {
            return Check::ok("resources");
        }
        let words = self.unresolved.join(", ");
        let todo = "install what defines them, or correct streams in the configuration";
        Check::failed("resources", format!("not served by the cluster: {words}; {todo}"))
    }
}

/// A panic elsewhere leaves every value here as good as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
