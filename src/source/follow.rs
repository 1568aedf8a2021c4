//! Follows one stream for as long as it is asked to: does what the machine says and tells it what came of it.

mod list;
mod watch;

use std::{pin::Pin, sync::Arc, time::Duration};

use http::StatusCode;
use kubetide_sink::Stream;
use tokio::{
    sync::{OwnedSemaphorePermit, watch::Sender},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Means, SourceError,
    api::ApiError,
    lines::Lines,
    machine::{Machine, Outcome, Rules, State, Way},
    names::Follow,
    port::Port,
    pulse::Pulse,
    verify,
};
use crate::{
    backoff::Backoff,
    change::ResourceVersion,
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
/// How long the API server may take to tell its version.
const CHECK_WITHIN: Duration = Duration::from_secs(15);
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
    position: Sender<ResourceVersion>,
    verification: Option<Verification>,
}

struct ListUnderWay {
    generation: u64,
    since: Instant,
    objects: u64,
    /// It showed something that has no identity.
    is_partial: bool,
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
        let cleaner = means.cleaning.cleaner(&follow.stream, follow.selection.types(&follow.stream));
        Self {
            stream: follow.stream.clone(),
            fingerprint: follow.selection.fingerprint(&follow.stream, &cleaner),
            port: Port::new(means.cluster.clone(), follow.stream.clone(), follow.selection.clone(), cleaner),
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
            position: Sender::new(ResourceVersion::new("")),
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
}
