//! The vitals of one stream: what its follower reports, and what that means for readiness.
//!
//! Three things are kept apart because they heal apart: how far the stream is (its phase), whether its attempts fail, and
//! whether it stalled.

use std::{
    slice,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use opentelemetry::KeyValue;
use tokio::time::Instant;

use super::{
    Shared, lock,
    readiness::{Check, CheckState},
    words,
};

/// How a stream came to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// By name: without it the process is not ready.
    Named,
    /// By a `*`: without it the process is degraded.
    Wildcard,
}

/// A LIST under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListUnderWay {
    /// The stream's name.
    pub stream: Arc<str>,
    /// How many objects have been listed.
    pub listed: u64,
    /// About how many there are, if the API server says.
    pub about: Option<u64>,
}

/// Where the follower of one stream reports to. Clones report to the same place.
#[derive(Clone)]
pub struct StreamVitals {
    shared: Arc<Shared>,
    condition: Arc<Mutex<Condition>>,
    /// The label of all its series.
    stream: KeyValue,
}

/// How one stream is.
pub(super) struct Condition {
    asked: Asked,
    phase: Phase,
    since: Instant,
    synced_once: bool,
    failing: Option<Failing>,
    stalled: Option<Instant>,
    last_event: Option<Timestamp>,
}

enum Phase {
    /// Nothing is known yet.
    Starting,
    /// A LIST is needed, because history broke if there is a gap; `listed` from when it is under way.
    Listing { gap: Option<&'static str>, listed: Option<Listed> },
    /// Up to date, as far as anyone can know.
    Following,
}

#[derive(Clone, Copy)]
enum Listed {
    Partly {
        listed: u64,
        about: Option<u64>,
    },
    /// All objects were read; what they mean is not in the log yet, or the watch is not open yet.
    Wholly,
}

struct Failing {
    since: Instant,
    message: String,
    refused: bool,
    failures: u32,
}

impl Failing {
    /// One failure that is no refusal is a hiccup.
    fn counts(&self) -> bool {
        self.refused || self.failures >= 2
    }
}

impl Condition {
    pub(super) fn new(asked: Asked) -> Self {
        Self {
            asked,
            phase: Phase::Starting,
            since: Instant::now(),
            synced_once: false,
            failing: None,
            stalled: None,
            last_event: None,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }

    fn follow(&mut self) {
        self.synced_once = true;
        self.failing = None;
        if !matches!(self.phase, Phase::Following) {
            self.enter(Phase::Following);
        }
    }

    /// The watch brought something.
    fn alive(&mut self) {
        self.stalled = None;
        match self.phase {
            // A LIST that comes as a watch ends when it is told to have ended.
            Phase::Listing { listed: Some(Listed::Partly { .. }) | None, .. } => self.failing = None,
            _ => self.follow(),
        }
    }

    fn list(&mut self, progress: Listed) {
        match &mut self.phase {
            Phase::Listing { listed, .. } => *listed = Some(progress),
            // Polled: there is no gap between two LISTs.
            _ => self.enter(Phase::Listing { gap: None, listed: Some(progress) }),
        }
    }

    /// The word for `kubetide.stream.state`.
    pub(super) fn state(&self) -> &'static str {
        match (&self.failing, &self.stalled, &self.phase) {
            (Some(Failing { refused: true, .. }), ..) => "refused",
            (Some(failing), ..) if failing.counts() => "failing",
            (_, Some(_), _) => "stalled",
            (_, _, Phase::Starting) => "starting",
            (_, _, Phase::Listing { .. }) => "listing",
            (_, _, Phase::Following) => "following",
        }
    }

    /// Seconds since 1970.
    pub(super) fn last_event(&self) -> Option<f64> {
        self.last_event.map(|at| at.as_duration().as_secs_f64())
    }

    pub(super) fn list_under_way(&self, stream: &Arc<str>) -> Option<ListUnderWay> {
        match self.phase {
            Phase::Listing { listed: Some(Listed::Partly { listed, about }), .. } => {
                Some(ListUnderWay { stream: Arc::clone(stream), listed, about })
            }
            _ => None,
        }
    }

    pub(super) fn check(&self, stream: &str) -> Check {
        let (state, message) = self.verdict();
        let state = match self.asked {
            Asked::Wildcard if state == CheckState::Failed => CheckState::Degraded,
            _ => state,
        };
        Check { name: format!("stream/{stream}"), state, message }
    }

    /// As if it were asked for by name.
    fn verdict(&self) -> (CheckState, String) {
        let progress = self.progress();
        let told = |message: String| match &progress {
            Some(progress) => format!("{message}; {progress}"),
            None => message,
        };
        if let Some(Failing { since, message, .. }) = self.failing.as_ref().filter(|failing| failing.counts()) {
            return (CheckState::Failed, told(format!("{message} (for {})", words::time(since.elapsed()))));
        }
        if let Some(since) = self.stalled {
            let since = words::time(since.elapsed());
            return (
                CheckState::Failed,
                told(format!("stalled for {since}: its watch brought nothing, and is rebuilt")),
            );
        }
        let hiccup = self.failing.as_ref().map(|failing| format!("; {}", failing.message)).unwrap_or_default();
        let since = words::time(self.since.elapsed());
        match (&self.phase, progress) {
            (Phase::Starting, _) => (CheckState::Failed, format!("starting for {since}{hiccup}")),
            (Phase::Listing { gap, .. }, Some(progress)) if !self.synced_once || gap.is_some() => {
                let state = if self.synced_once { CheckState::Degraded } else { CheckState::Failed };
                (state, format!("{progress} (for {since}){hiccup}"))
            }
            _ => (CheckState::Ok, String::new()),
        }
    }

    /// `listing again: expired, 12,500 of about 40,000`
    fn progress(&self) -> Option<String> {
        let Phase::Listing { gap, listed } = &self.phase else { return None };
        let why = match gap {
            Some(reason) => format!("listing again: {reason}, "),
            None if self.synced_once => "polling: ".to_owned(),
            None => "first snapshot: ".to_owned(),
        };
        let how_far = match listed {
            None => "not begun".to_owned(),
            Some(Listed::Partly { listed, about }) => words::progress(*listed, *about),
            Some(Listed::Wholly) => "all listed, not followed yet".to_owned(),
        };
        Some(why + &how_far)
    }
}

impl StreamVitals {
    pub(super) fn new(shared: Arc<Shared>, name: &str, condition: Arc<Mutex<Condition>>) -> Self {
        Self { shared, condition, stream: KeyValue::new("stream", Arc::<str>::from(name)) }
    }

    fn update(&self, update: impl FnOnce(&mut Condition)) {
        update(&mut lock(&self.condition));
    }

    fn labels(&self) -> &[KeyValue] {
        slice::from_ref(&self.stream)
    }

    fn labels_and(&self, key: &'static str, value: &'static str) -> [KeyValue; 2] {
        [self.stream.clone(), KeyValue::new(key, value)]
    }

    /// The stream must be listed: for its first snapshot, or because history broke, which is a gap.
    pub fn list_needed(&self, gap: Option<&'static str>) {
        if let Some(reason) = gap {
            self.shared.instruments.gaps.add(1, &self.labels_and("reason", reason));
        }
        self.update(|condition| condition.enter(Phase::Listing { gap, listed: None }));
    }

    /// A LIST has begun, as a watch (`streaming`) or in pages.
    pub fn list_started(&self, streaming: bool) {
        let kind = if streaming { "streaming" } else { "paged" };
        self.shared.instruments.lists.add(1, &self.labels_and("kind", kind));
        self.list_progress(0, None);
    }

    /// So many objects of about so many.
    pub fn list_progress(&self, listed: u64, about: Option<u64>) {
        self.update(|condition| condition.list(Listed::Partly { listed, about }));
    }

    /// The LIST was complete. It is proof that the API server answers, so that it heals a stall too.
    pub fn list_finished(&self, objects: u64, took: Duration) {
        let Shared { instruments, .. } = &*self.shared;
        instruments.list_duration.record(took.as_secs_f64(), self.labels());
        instruments.listed_objects.add(objects, self.labels());
        self.update(|condition| {
            (condition.failing, condition.stalled) = (None, None);
            condition.list(Listed::Wholly);
        });
    }

    /// Watching or polled, and up to date: healthy again, unless it stalled and has brought nothing since.
    pub fn synced(&self) {
        self.update(Condition::follow);
    }

    /// The API server has accepted the watch. That ends failures, but not a stall.
    pub fn watch_opened(&self) {
        self.shared.instruments.watch_opened.add(1, self.labels());
        self.update(|condition| condition.failing = None);
    }

    /// An event was read at this time.
    pub fn event(&self, at: Timestamp) {
        self.shared.instruments.events.add(1, self.labels());
        self.update(|condition| {
            condition.last_event = Some(at);
            condition.alive();
        });
    }

    /// A bookmark was read.
    pub fn bookmark(&self) {
        self.shared.instruments.bookmarks.add(1, self.labels());
        self.update(Condition::alive);
    }

    /// The watch is over: `timeout`, `cut`, `error`, `stalled`, `expired`, `renewed`. By itself no reason to worry.
    pub fn watch_ended(&self, why: &'static str) {
        self.shared.instruments.watch_ended.add(1, &self.labels_and("reason", why));
        if why == "timeout" {
            // The API server ended it when it said it would: a sign of life, and the only one of a stream that is quiet and
            // has no bookmarks.
            self.update(|condition| condition.stalled = None);
        }
    }

    /// The watch brings nothing, not even bookmarks. Heals with the next sign of life, not with an opened watch.
    pub fn stalled(&self) {
        self.shared.instruments.stalls.add(1, self.labels());
        self.update(|condition| _ = condition.stalled.get_or_insert_with(Instant::now));
    }

    /// An attempt failed, the `failures`th in a row. A refusal (401, 403, 404) counts at once, anything else from the second.
    pub fn failed(&self, message: &str, refused: bool, failures: u32) {
        self.shared.instruments.stream_failures.add(1, self.labels());
        self.update(|condition| {
            let since = condition.failing.as_ref().map_or_else(Instant::now, |failing| failing.since);
            condition.failing = Some(Failing { since, message: words::short(message), refused, failures });
            if let Phase::Listing { listed, .. } = &mut condition.phase {
                *listed = None;
            }
        });
    }

    /// A verification came to its end.
    pub fn verified(&self, suspects: u64, confirmed: u64) {
        let result = if confirmed == 0 { "clean" } else { "diverged" };
        self.shared.instruments.verifications.add(1, &self.labels_and("result", result));
        self.shared.instruments.verification_suspects.add(suspects, self.labels());
    }

    /// An object could not be read.
    pub fn undecodable(&self) {
        self.shared.instruments.undecodable.add(1, self.labels());
    }
}
