//! Which request meets which fault. A seed fixes the order of the faults; the requests come as they come.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use kubetide_simulator::{Fault, Hook, RequestInfo, Verb};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::sync::Notify;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Refused,
    Reset,
    Hang,
    Drip,
    /// Answered with this status code.
    Code(u16),
    Truncated,
    Garbage,
    LongLine,
    /// An ERROR event without a code; in a LIST, which has no events, an HTTP 200 with such a Status.
    Error,
    ClockJump,
    Duplicate,
    Shuffle,
    Replay,
}

pub const KINDS: [Kind; 19] = [
    Kind::Refused,
    Kind::Reset,
    Kind::Hang,
    Kind::Drip,
    Kind::Code(401),
    Kind::Code(403),
    Kind::Code(404),
    Kind::Code(429),
    Kind::Code(500),
    Kind::Code(503),
    Kind::Code(504),
    Kind::Truncated,
    Kind::Garbage,
    Kind::LongLine,
    Kind::Error,
    Kind::ClockJump,
    Kind::Duplicate,
    Kind::Shuffle,
    Kind::Replay,
];
pub const VERBS: [Verb; 4] = [Verb::List, Verb::Page, Verb::StreamingList, Verb::Watch];

/// Where a fault can hit.
pub type Cell = (Verb, Kind);

/// A LIST is one document: it has no events to repeat or to reorder. A WATCH from a version has no initial events to shuffle.
fn can_occur((verb, kind): Cell) -> bool {
    match kind {
        Kind::Duplicate | Kind::Replay => matches!(verb, Verb::StreamingList | Verb::Watch),
        Kind::Shuffle => verb == Verb::StreamingList,
        _ => true,
    }
}

/// Every cell of the matrix that can occur.
pub fn cells() -> BTreeSet<Cell> {
    let all = VERBS.iter().flat_map(|verb| KINDS.iter().map(|kind| (*verb, *kind)));
    all.filter(|cell| can_occur(*cell)).collect()
}

/// Faults in a row that one stream meets at most: pauses double with each.
const IN_A_ROW: u32 = 3;
/// Unreadable watches at one position that are no break yet.
const UNREADABLE: u32 = 2;
static LONG_LINE: LazyLock<Bytes> = LazyLock::new(|| vec![b'x'; 20 * 1024 * 1024].into());

/// The faults of one run.
pub struct Schedule {
    plan: Mutex<Plan>,
    paused: AtomicBool,
    /// Seconds that the wall clock is off.
    pub clock: Arc<AtomicI64>,
    /// The server is to refuse connections for a while.
    pub refuse: Notify,
}

struct Plan {
    random: StdRng,
    resources: BTreeSet<String>,
    ahead: BTreeMap<Verb, VecDeque<Kind>>,
    in_a_row: HashMap<String, u32>,
    /// The position of the last unreadable watch of each stream, and how many there were.
    unreadable: HashMap<String, (String, u32)>,
    met: BTreeMap<Cell, u32>,
}

impl Schedule {
    pub fn new(seed: u64, resources: impl IntoIterator<Item = String>, ahead: &[Cell]) -> Arc<Self> {
        let mut by_verb: BTreeMap<Verb, VecDeque<Kind>> = BTreeMap::new();
        for (verb, kind) in ahead {
            by_verb.entry(*verb).or_default().push_back(*kind);
        }
        let plan = Plan {
            random: StdRng::seed_from_u64(seed),
            resources: resources.into_iter().collect(),
            ahead: by_verb,
            in_a_row: HashMap::new(),
            unreadable: HashMap::new(),
            met: BTreeMap::new(),
        };
        Arc::new(Self {
            plan: Mutex::new(plan),
            paused: AtomicBool::new(false),
            clock: Arc::default(),
            refuse: Notify::new(),
        })
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While it is paused every request passes.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    /// Whether a fault for one of these verbs is still ahead.
    pub fn has_ahead(&self, verbs: &[Verb]) -> bool {
        verbs.iter().any(|verb| self.plan().ahead.get(verb).is_some_and(|kinds| !kinds.is_empty()))
    }

    /// The cells that were reached, and how often.
    pub fn met(&self) -> BTreeMap<Cell, u32> {
        self.plan().met.clone()
    }

    pub fn hook(self: &Arc<Self>) -> Hook {
        let schedule = self.clone();
        Arc::new(move |request| schedule.decide(request))
    }

    fn decide(&self, request: &RequestInfo) -> Fault {
        let mut plan = self.plan();
        if self.paused.load(Ordering::SeqCst) || !plan.resources.contains(&request.resource) {
            return Fault::Pass;
        }
        // Not the stream's own LIST: the look at the API server's version before a resume, or a verification.
        let beside = request.param("limit") == "1"
            || request.param("fieldSelector") == "metadata.name=-"
            || request.accept.contains("PartialObjectMetadataList");
        if beside {
            let fails = plan.random.random_bool(0.2);
            return if fails { Fault::Status { code: 500, retry_after: None } } else { Fault::Pass };
        }
        let stream = format!("{}@{}", request.resource, request.namespace);
        let in_a_row = plan.in_a_row.get(&stream).copied().unwrap_or(0);
        let due = in_a_row < IN_A_ROW && plan.random.random_bool(0.8);
        let Some(kind) = due.then(|| plan.next(&stream, request)).flatten() else {
            plan.in_a_row.insert(stream, 0);
            return Fault::Pass;
        };
        plan.in_a_row.insert(stream, in_a_row + 1);
        *plan.met.entry((request.verb, kind)).or_default() += 1;
        match kind {
            Kind::Refused => self.refuse.notify_one(),
            // Up to five days, to and fro.
            Kind::ClockJump => self.clock.store(plan.random.random_range(-432_000..432_000), Ordering::SeqCst),
            _ => {}
        }
        plan.fault(request.verb, kind)
    }
}

impl Plan {
    /// The next fault for this request. An unreadable watch is put off where one more would be a break in history.
    fn next(&mut self, stream: &str, request: &RequestInfo) -> Option<Kind> {
        let position = request.param("resourceVersion");
        let unreadable = match self.unreadable.get(stream) {
            Some((at, count)) if at == position => *count,
            // The last one may have come behind events that moved the position to this one.
            Some((_, count)) => (*count).min(1),
            None => 0,
        };
        let breaks = |kind: &Kind| {
            request.verb == Verb::Watch && matches!(kind, Kind::Garbage | Kind::LongLine) && unreadable >= UNREADABLE
        };
        let ahead = self.ahead.get_mut(&request.verb)?;
        let at = ahead.iter().position(|kind| !breaks(kind))?;
        let kind = ahead.remove(at)?;
        if request.verb == Verb::Watch {
            let now = unreadable + u32::from(matches!(kind, Kind::Garbage | Kind::LongLine));
            self.unreadable.insert(stream.into(), (position.into(), now));
        }
        Some(kind)
    }

    fn fault(&mut self, verb: Verb, kind: Kind) -> Fault {
        let random = &mut self.random;
        let document = matches!(verb, Verb::List | Verb::Page);
        let line = |random: &mut StdRng, line: Bytes| Fault::Line {
            after_lines: if document { 0 } else { random.random_range(0..4) },
            line,
        };
        match kind {
            Kind::Refused => Fault::Drop,
            Kind::Reset => Fault::Reset { after: random.random_range(0..4000) },
            // A WATCH without an answer is waited for longer than a run may take.
            Kind::Hang if verb != Verb::Watch && random.random_bool(0.5) => Fault::Hang,
            Kind::Hang => Fault::HangAfter(random.random_range(0..4000)),
            // Slow enough to notice, and now and then too slow for the timeout.
            Kind::Drip => Fault::Drip { bytes: random.random_range(50..1000), every: Duration::from_millis(10) },
            Kind::Code(code) => Fault::Status { code, retry_after: (code == 429).then_some(1) },
            Kind::Truncated => Fault::TruncateAfter(random.random_range(0..4000)),
            Kind::Garbage => line(random, Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"na")),
            Kind::LongLine => line(random, LONG_LINE.clone()),
            Kind::Error if document => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
                Fault::Body(status.to_string().into())
            }
            Kind::Error => Fault::error_event(None, "InternalError", "etcdserver: leader changed"),
            Kind::ClockJump => Fault::Pass,
            Kind::Duplicate => Fault::Duplicate,
            Kind::Shuffle => Fault::Shuffle { seed: random.random() },
            Kind::Replay => Fault::Replay { every: random.random_range(1..6) },
        }
    }
}
