//! Follows one stream for as long as it is asked to: does what the machine says and tells it what came of it.

use std::{pin::Pin, sync::Arc, time::Duration};

use http::StatusCode;
use kubetide_sink::{Reason, Stream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Means, SourceError,
    api::{ApiError, Port, WatchEvent},
    lines::Lines,
    machine::{Machine, Outcome, Rules, State, Way},
    names::Follow,
    pulse::Pulse,
    verify,
};
use crate::{
    backoff::Backoff,
    change::{Observed, ResourceVersion},
    changelog::{Entry, Fingerprint, Phase, Purpose, StreamState},
    config,
    vitals::StreamVitals,
};

/// The first pause after a failure, at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest while the API server is away: when it is back, its history is not forgotten before it is asked.
const LONGEST_PAUSE_AWAY: Duration = Duration::from_secs(30);
/// The longest while it refuses (401, 403, 404): somebody has to change something first.
const LONGEST_PAUSE_REFUSED: Duration = Duration::from_secs(300);
/// A watch that ends sooner than this without an event counts as a failure, or a broken server would be asked in a loop.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that ends this much before its time was not ended by its timeout.
const EARLY: Duration = Duration::from_secs(2);
/// How long a streaming LIST may bring nothing before it is done in pages: the bookmark at its end may never come.
const STREAMING_SILENCE: Duration = Duration::from_secs(30);
/// How long the API server may take to tell its version.
const CHECK_WITHIN: Duration = Duration::from_secs(15);
/// A position without bookmarks that has not moved for this long is moved by other means, before its history is compacted:
/// etcd keeps about five minutes.
const OLD_POSITION: Duration = Duration::from_secs(120);
/// How long a watch lasts that is to move such a position…
const SHORT_LASTS: std::ops::Range<u64> = 60..90;
/// …and how long at least, so that everything that was there when it was opened has surely come.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
/// More deletes than this, and more than half of what is known, are not inferred from one LIST.
const MANY_DELETES: u64 = 100;
/// When the second LIST comes, which must agree.
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(30);

/// One stream's loop.
pub struct Follower {
    stream: Arc<Stream>,
    means: Means,
    port: Port,
    fingerprint: Fingerprint,
    asked_as: String,
    poll: Option<Duration>,
    vitals: StreamVitals,
    stop: CancellationToken,
}

/// What the loop carries from one state to the next.
struct Memory {
    backoff: Backoff,
    /// What the LIST under way was announced for.
    purpose: Option<Purpose>,
    /// When the API server was last lost sight of: who answers after that may be another.
    lost: Option<Instant>,
    pulse: Pulse,
    /// The LIST under way.
    list: Option<ListUnderWay>,
    /// An open watch: a streaming LIST goes on as one.
    open: Option<OpenWatch>,
    /// How far the watch has come, for verification.
    position: watch::Sender<ResourceVersion>,
    verification: Option<Verification>,
}

struct ListUnderWay {
    generation: u64,
    since: Instant,
    objects: u64,
    /// One of the LISTs that may run at once. Given back while the LIST waits.
    turn: Option<OwnedSemaphorePermit>,
}

struct OpenWatch {
    lines: Lines,
    opened: Instant,
    /// When the server is to end it.
    lasts: Duration,
    /// A version that the API server had reached when the watch was opened. When the server ends the watch in good order, the
    /// watch has passed it.
    passes: Option<ResourceVersion>,
}

type Verification = Pin<Box<dyn Future<Output = Result<verify::Diverged, SourceError>> + Send>>;

/// What an API call gave, inside of what ends the loop.
type Asked<T> = Result<Result<T, ApiError>, SourceError>;

impl Follower {
    /// A loop for this stream, until `stop`.
    pub fn new(follow: &Follow, means: Means, vitals: StreamVitals, stop: CancellationToken) -> Self {
        Self {
            stream: follow.stream.clone(),
            port: Port::new(means.cluster.clone(), follow.stream.clone(), follow.selection.clone()),
            fingerprint: follow.selection.fingerprint(&follow.stream),
            asked_as: follow.asked_as.clone(),
            poll: follow.poll,
            means,
            vitals,
            stop,
        }
    }

    /// Runs until it is asked to stop.
    pub async fn run(self, durable: StreamState) -> Result<(), SourceError> {
        let stop = self.stop.clone();
        tokio::select! {
            // Wherever that falls: what is in the log is whole, and the position is in it.
            () = stop.cancelled() => Ok(()),
            ended = self.follow(durable) => ended,
        }
    }

    async fn follow(self, durable: StreamState) -> Result<(), SourceError> {
        let streaming = self.means.list.streaming == config::Streaming::Auto;
        let rules = Rules { poll: self.poll.is_some(), streaming };
        let mut machine = Machine::resume(&durable, self.fingerprint, rules);
        let stall = Duration::from_secs(self.means.watch.stall_timeout_secs.get());
        let mut memory = Memory {
            backoff: Backoff::new(FIRST_PAUSE),
            purpose: durable.purpose(),
            lost: None,
            pulse: Pulse::new(stall, self.position_since(&durable)),
            list: None,
            open: None,
            position: watch::Sender::new(ResourceVersion::new("")),
            verification: None,
        };
        loop {
            let outcome = match self.act(&mut machine, &mut memory).await? {
                Ok(outcome) => outcome,
                Err(ApiError::OtherCluster(problem)) => return Err(SourceError::OtherCluster(problem)),
                Err(error) => self.recover(&machine, &mut memory, &error).await,
            };
            machine.step(outcome);
        }
    }

    /// Since when the position has stood, by the wall clock of the time before.
    fn position_since(&self, durable: &StreamState) -> Instant {
        let now = self.means.clock.now();
        let Phase::Watching { at, .. } = &durable.phase else { return now };
        let age = Duration::try_from(self.means.clock.wall().duration_since(*at)).unwrap_or_default();
        now.checked_sub(age).unwrap_or(now)
    }

    /// Does what the state asks for.
    async fn act(&self, machine: &mut Machine, memory: &mut Memory) -> Asked<Outcome> {
        match machine.state().clone() {
            State::Announcing(reason) => {
                (memory.open, memory.verification) = (None, None);
                memory.purpose = reason.map(Purpose::Resync);
                self.vitals.list_needed(reason.map(|reason| reason.as_str()));
                match reason {
                    Some(reason) => {
                        warn!(stream = %self.stream, reason = reason.as_str(), "history is broken, listing again")
                    }
                    None => info!(stream = %self.stream, "first snapshot"),
                }
                let (fingerprint, asked_as) = (self.fingerprint, self.asked_as.clone());
                self.append(Entry::ListNeeded { reason, fingerprint, asked_as }).await?;
                Ok(Ok(Outcome::Announced))
            }
            State::Listing(way) => {
                if way.is_start() {
                    if let Err(error) = self.confirm(memory.lost).await {
                        return Ok(Err(error));
                    }
                    self.begin_list(memory, way == Way::Streaming).await?;
                } else if let Some(list) = &mut memory.list
                    && list.turn.is_none()
                {
                    list.turn = self.turn_at_lists().await;
                }
                match way {
                    Way::Streaming => self.list_by_streaming(memory).await,
                    Way::Paged { version, token } => self.list_page(memory, version, token).await,
                }
            }
            State::Concluding(position) => Ok(Ok(self.conclude(memory, position, machine.is_confirming()).await?)),
            State::Confirming => {
                self.means.clock.sleep(CONFIRMATION_PAUSE).await;
                Ok(Ok(Outcome::Waited))
            }
            State::Resting => {
                self.vitals.synced();
                let interval = self.poll.unwrap_or_default();
                // Not all streams at once.
                self.means.clock.sleep(interval.mul_f64(rand::random_range(0.9..1.1))).await;
                Ok(Ok(Outcome::Waited))
            }
            State::Resuming(position) => Ok(self.check_version(memory.lost, &position).await),
            State::Watching(from) => {
                let mut position = from;
                let ended = self.watch(memory, &mut position).await?;
                if matches!(&ended, Ok(Outcome::Away)) {
                    memory.lost = Some(self.means.clock.now());
                }
                machine.step(Outcome::Moved(position));
                Ok(ended)
            }
        }
    }

    async fn append(&self, entry: Entry) -> Result<(), SourceError> {
        Ok(self.means.log.append(&self.stream, entry).await?)
    }

    /// After a failure: says so, waits, and tells the machine what it was.
    async fn recover(&self, machine: &Machine, memory: &mut Memory, error: &ApiError) -> Outcome {
        if let Some(list) = &mut memory.list {
            list.turn = None;
        }
        if error.is_absence() {
            memory.lost = Some(self.means.clock.now());
        }
        let watching = matches!(machine.state(), State::Watching(_));
        let outcome = match error {
            ApiError::Expired => Outcome::Expired,
            ApiError::Undecodable(_) => Outcome::Undecodable,
            error if watching && error.is_absence() => Outcome::Away,
            _ => Outcome::Interrupted,
        };
        if watching && matches!(error, ApiError::Expired) {
            return outcome;
        }
        if error.status() == Some(StatusCode::NOT_FOUND) {
            self.means.missing.notify_one();
        }
        let longest = if error.is_refusal() { LONGEST_PAUSE_REFUSED } else { LONGEST_PAUSE_AWAY };
        let pause = memory.backoff.next(rand::random(), longest, error.retry_after());
        let (attempt, pause_ms) = (memory.backoff.failures(), pause.as_millis() as u64);
        if !matches!(error, ApiError::Cut(_) | ApiError::Stalled) {
            self.vitals.failed(&error.to_string(), error.is_refusal(), attempt);
        }
        warn!(stream = %self.stream, attempt, pause_ms, %error, "API server failed, trying again");
        self.means.clock.sleep(pause).await;
        outcome
    }

    /// The first part of a LIST. What an attempt before it has shown counts for nothing.
    async fn begin_list(&self, memory: &mut Memory, streaming: bool) -> Result<(), SourceError> {
        memory.open = None;
        if let Some(given_up) = memory.list.take() {
            self.means.log.flush().await?;
            self.means.known.forget_listed(&self.stream, given_up.generation).await?;
        }
        let turn = self.turn_at_lists().await;
        let (generation, since) = (self.means.known.new_generation(), self.means.clock.now());
        memory.list = Some(ListUnderWay { generation, since, objects: 0, turn });
        self.vitals.list_started(streaming);
        self.append(Entry::ListStarted(generation)).await
    }

    /// Waits until this is one of the LISTs that may run.
    async fn turn_at_lists(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.means.lists.clone().acquire_owned().await.ok()
    }

    /// One page, with every object in it found and cleaned before the first is logged.
    async fn list_page(
        &self,
        memory: &mut Memory,
        version: Option<ResourceVersion>,
        token: Option<String>,
    ) -> Asked<Outcome> {
        let timeout = Duration::from_secs(self.means.list.timeout_secs.get());
        let page = match self.port.page(self.means.list.page_size.get(), token.as_deref(), timeout).await {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        if version.is_some_and(|version| version != page.version) {
            // All pages of a LIST are of one version, or they prove nothing.
            return Ok(Err(ApiError::Expired));
        }
        let observed = match page.items().map(|item| self.port.observe(item)).collect::<Result<Vec<_>, _>>() {
            Ok(observed) => observed,
            Err(error) => return Ok(Err(error)),
        };
        memory.backoff.reset();
        debug!(stream = %self.stream, objects = observed.len(), version = %page.version, "page");
        let objects = observed.len() as u64;
        for observed in observed {
            self.note_problem(&observed);
            self.append(Entry::Listed(observed)).await?;
        }
        if let Some(list) = &mut memory.list {
            list.objects += objects;
            self.vitals.list_progress(list.objects, page.remaining.map(|remaining| list.objects + remaining));
        }
        Ok(Ok(Outcome::Page { version: page.version, next: page.next }))
    }

    /// A whole LIST as the beginning of a watch, which stays open.
    async fn list_by_streaming(&self, memory: &mut Memory) -> Asked<Outcome> {
        let lasts = self.watch_lasts();
        self.means.pace.turn(&self.means.clock).await;
        let silence = Duration::from_secs(self.means.list.timeout_secs.get()).min(STREAMING_SILENCE);
        let no_end = || {
            debug!(stream = %self.stream, "the streaming LIST does not come to its end, using pages");
            Ok(Ok(Outcome::StreamingRefused))
        };
        let mut lines = match self.means.clock.within(silence, self.port.streaming_list(lasts)).await {
            Some(Ok(lines)) => lines,
            Some(Err(error)) if error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) => {
                debug!(stream = %self.stream, %error, "no streaming LIST, using pages");
                return Ok(Ok(Outcome::NoStreaming));
            }
            Some(Err(error)) => return Ok(Err(error)),
            None => return no_end(),
        };
        let opened = self.means.clock.now();
        loop {
            let line = match self.means.clock.within(silence, lines.next()).await {
                Some(Ok(Some(line))) => line,
                Some(Ok(None)) => return Ok(Err(ApiError::cut("the streaming LIST ended before its end"))),
                Some(Err(error)) => return Ok(Err(error)),
                None => return no_end(),
            };
            let entry = match WatchEvent::parse(self.port.types(), &line) {
                Ok(WatchEvent::Present(observed)) => {
                    self.note_problem(&observed);
                    if let Some(list) = &mut memory.list {
                        list.objects += 1;
                        self.vitals.list_progress(list.objects, None);
                    }
                    Entry::Listed(observed)
                }
                // Deleted while it was being listed.
                Ok(WatchEvent::Deleted(observed)) => Entry::Unlisted(observed.key),
                Ok(WatchEvent::Bookmark { version, ends_list: true }) => {
                    memory.backoff.reset();
                    // Where bookmarks are not wanted, the watch is opened anew without them.
                    if self.means.watch.bookmarks {
                        memory.pulse.opened(opened, lasts);
                        memory.pulse.listed(self.means.clock.now());
                        memory.open = Some(OpenWatch { lines, opened, lasts, passes: None });
                    }
                    return Ok(Ok(Outcome::Streamed(version)));
                }
                Ok(WatchEvent::Bookmark { ends_list: false, .. }) => continue,
                // An ERROR event: it has begun and gives up.
                Err(error @ (ApiError::Failed { .. } | ApiError::Expired)) => {
                    debug!(stream = %self.stream, %error, "the streaming LIST was given up, using pages");
                    return Ok(Ok(Outcome::StreamingRefused));
                }
                Err(error) => return Ok(Err(error)),
            };
            self.append(entry).await?;
        }
    }

    fn note_problem(&self, observed: &Observed) {
        if let Err(problem) = &observed.object {
            self.vitals.undecodable();
            warn!(stream = %self.stream, %problem, "an object cannot be read; it is logged without its content");
        }
    }

    /// The LIST is complete: what it lacks has vanished. If that is very much, a second LIST must agree.
    async fn conclude(
        &self,
        memory: &mut Memory,
        position: ResourceVersion,
        confirmed: bool,
    ) -> Result<Outcome, SourceError> {
        let Some(list) = memory.list.take() else { return Ok(Outcome::Concluded) };
        self.means.log.flush().await?;
        let rewritten = Purpose::Resync(Reason::VersionRegressed);
        if memory.purpose != Some(rewritten) && self.means.known.state(&self.stream)?.purpose() == Some(rewritten) {
            warn!(stream = %self.stream, "a LIST shows the cluster before what was logged, comparing by content");
            (memory.open, memory.list) = (None, Some(list));
            return Ok(Outcome::Regressed);
        }
        if !confirmed {
            let (vanished, rows) = self.means.known.vanished(&self.stream, list.generation).await?;
            if vanished > MANY_DELETES && vanished * 2 > rows {
                warn!(stream = %self.stream, vanished, known = rows, "a LIST lacks most of what is known, listing again in 30 s before it is believed");
                (memory.open, memory.list) = (None, Some(ListUnderWay { turn: None, ..list }));
                return Ok(Outcome::Suspicious);
            }
        }
        self.means.log.append_vanished(&self.stream, list.generation).await?;
        self.append(Entry::ListFinished(position.clone())).await?;
        let took = self.means.clock.now() - list.since;
        self.vitals.list_finished(list.objects, took);
        info!(stream = %self.stream, %position, objects = list.objects, "listed");
        Ok(Outcome::Concluded)
    }

    /// That it is still the same cluster, if it was lost sight of since.
    async fn confirm(&self, lost: Option<Instant>) -> Result<(), ApiError> {
        match lost {
            Some(lost) => self.port.cluster().confirm(lost).await,
            None => Ok(()),
        }
    }

    /// Before a watch from a stored position: a watch from a version that the API server has not reached would be silent.
    async fn check_version(&self, lost: Option<Instant>, position: &ResourceVersion) -> Result<Outcome, ApiError> {
        self.confirm(lost).await?;
        self.means.pace.turn(&self.means.clock).await;
        let limit = Duration::from_secs(self.means.list.timeout_secs.get()).min(CHECK_WITHIN);
        match self.port.current_version(limit).await {
            Ok(current) if current.is_covered_by(position) && current != *position => {
                warn!(stream = %self.stream, %current, %position, "the API server is at an older version than before");
                Ok(Outcome::Regressed)
            }
            Ok(_) => Ok(Outcome::Checked),
            // A watch may be allowed where a LIST is not; it will say so if it is not.
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => Ok(Outcome::Checked),
            Err(error) => Err(error),
        }
    }

    fn watch_lasts(&self) -> Duration {
        let config::Watch { timeout_min_secs, timeout_max_secs, .. } = self.means.watch;
        // Not all at once, or an API server that restarts would see every watch renewed in the same second for ever.
        Duration::from_secs(rand::random_range(timeout_min_secs.get()..=timeout_max_secs.get()).into())
    }

    /// Follows one watch to its end. `position` is how far it came.
    async fn watch(&self, memory: &mut Memory, position: &mut ResourceVersion) -> Asked<Outcome> {
        let OpenWatch { mut lines, opened, lasts, passes } = match memory.open.take() {
            Some(open) => open,
            None => match self.open_watch(memory, position).await {
                Ok(open) => open,
                Err(error) => return Ok(Err(error)),
            },
        };
        self.vitals.watch_opened();
        self.vitals.synced();
        debug!(stream = %self.stream, from = %position, "watching");
        memory.position.send_replace(position.clone());
        let verification = memory.verification.get_or_insert_with(|| self.verification(&memory.position));
        let mut quiet = true;
        let (why, ended) = loop {
            let line = tokio::select! {
                biased;
                diverged = verification.as_mut() => {
                    let verify::Diverged = diverged?;
                    break ("diverged", Ok(Outcome::Diverged));
                }
                line = self.means.clock.until(memory.pulse.deadline(), lines.next()) => line,
                () = self.means.clock.sleep_until(memory.pulse.old_at(OLD_POSITION)), if passes.is_none() => {
                    break ("renewed", Ok(Outcome::Interrupted));
                }
            };
            let line = match line {
                Some(Ok(Some(line))) => line,
                Some(Ok(None)) if quiet && opened.elapsed() < SHORT_WATCH => {
                    break ("cut", Err(ApiError::failed("the watch ended as soon as it was open")));
                }
                // Before its time: a server that shuts down, or something in between.
                Some(Ok(None)) if opened.elapsed() + EARLY < lasts => break ("cut", Ok(Outcome::Away)),
                Some(Ok(None)) => {
                    if let Some(version) = passes
                        && opened.elapsed() >= LONG_ENOUGH
                    {
                        memory.pulse.moved(self.means.clock.now());
                        self.append(Entry::Bookmark(version.clone())).await?;
                        if !version.is_covered_by(position) {
                            *position = version;
                        }
                    }
                    break ("timeout", Ok(Outcome::Interrupted));
                }
                Some(Err(error)) => break ("cut", Err(error)),
                None => {
                    memory.pulse.stalled();
                    self.vitals.stalled();
                    break ("stalled", Err(ApiError::Stalled));
                }
            };
            let (entry, reached) = match WatchEvent::parse(self.port.types(), &line) {
                Ok(WatchEvent::Bookmark { version, .. }) => {
                    memory.pulse.bookmark(self.means.clock.now());
                    self.vitals.bookmark();
                    (Entry::Bookmark(version.clone()), version)
                }
                Ok(WatchEvent::Present(observed)) => {
                    self.note_event(&mut memory.pulse, &observed);
                    let version = observed.version.clone();
                    (Entry::Present(observed), version)
                }
                Ok(WatchEvent::Deleted(observed)) => {
                    self.note_event(&mut memory.pulse, &observed);
                    let version = observed.version.clone();
                    (Entry::Deleted(observed), version)
                }
                Err(ApiError::Expired) => break ("expired", Err(ApiError::Expired)),
                Err(error) => break ("error", Err(error)),
            };
            quiet = false;
            memory.backoff.reset();
            let before = self.means.clock.now();
            self.append(entry).await?;
            memory.pulse.busy(self.means.clock.now() - before);
            // An event that comes again, older than what was seen, does not move it back.
            if !reached.is_covered_by(position) {
                *position = reached;
                memory.position.send_replace(position.clone());
            }
        };
        self.vitals.watch_ended(why);
        Ok(ended)
    }

    fn note_event(&self, pulse: &mut Pulse, observed: &Observed) {
        pulse.event(self.means.clock.now());
        self.vitals.event(self.means.clock.wall());
        self.note_problem(observed);
    }

    async fn open_watch(&self, memory: &mut Memory, position: &ResourceVersion) -> Result<OpenWatch, ApiError> {
        self.means.pace.turn(&self.means.clock).await;
        let mut lasts = self.watch_lasts();
        let mut passes = None;
        if memory.pulse.is_old(self.means.clock.now(), OLD_POSITION) {
            lasts = lasts.min(Duration::from_secs(rand::random_range(SHORT_LASTS)));
            passes = Some(self.port.current_version(CHECK_WITHIN).await?);
        }
        let lines = self.port.watch(position, self.means.watch.bookmarks, lasts).await?;
        let opened = self.means.clock.now();
        memory.pulse.opened(opened, lasts);
        Ok(OpenWatch { lines, opened, lasts, passes })
    }

    /// Verification, which goes on over the watches of the stream until it finds something.
    fn verification(&self, position: &watch::Sender<ResourceVersion>) -> Verification {
        let verifier = verify::Verifier {
            stream: self.stream.clone(),
            means: self.means.clone(),
            port: self.port.clone(),
            vitals: self.vitals.clone(),
            position: position.subscribe(),
        };
        Box::pin(verifier.run())
    }
}
