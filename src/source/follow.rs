//! Follows one stream for as long as the process lives: does what the machine says and tells it what came of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kube::Client;
use kubetide_sink::Stream;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    api::{self, ApiError, Page, WatchEvent},
    machine::{Outcome, State},
};
use crate::{
    backoff::Backoff,
    change::{Observed, ResourceVersion, scan},
    changelog::{Appender, Entry, StreamState, WriteError},
    config,
};

/// The first pause after a failure, at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest while the API server is away: when it is back, its history is not forgotten before it is asked.
const LONGEST_PAUSE_AWAY: Duration = Duration::from_secs(30);
/// The longest while it refuses (401, 403, 404): somebody has to change something first.
const LONGEST_PAUSE_REFUSED: Duration = Duration::from_secs(300);
/// A watch without bookmarks may be quiet until the server ends it; this much later it is not coming back.
const WATCH_END_SLACK: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this without an event counts as a failure, or a broken server would be asked in a loop.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Everything one stream's loop works with.
pub struct Follower {
    /// The stream.
    pub stream: Arc<Stream>,
    /// The API server.
    pub client: Client,
    /// The way into the log.
    pub log: Appender,
    /// How to LIST.
    pub list: config::List,
    /// How to WATCH.
    pub watch: config::Watch,
    /// How many LISTs may run at once, over all streams.
    pub lists: Arc<Semaphore>,
    /// Asks the loop to end.
    pub stop: CancellationToken,
}

impl Follower {
    /// Runs until it is asked to stop. An error means that the log is gone.
    pub async fn run(self, durable: StreamState) -> Result<(), WriteError> {
        let stop = self.stop.clone();
        tokio::select! {
            // Wherever that falls: what is in the log is whole, and the position is in it.
            () = stop.cancelled() => Ok(()),
            ended = self.follow(durable) => ended,
        }
    }

    async fn follow(self, durable: StreamState) -> Result<(), WriteError> {
        let mut state = State::resume(&durable);
        let mut backoff = Backoff::new(FIRST_PAUSE);
        let mut generation = 0;
        let mut turn_at_lists = None;
        loop {
            let ended = match &state {
                State::Announcing(reason) => {
                    match reason {
                        Some(reason) => {
                            warn!(stream = %self.stream, reason = reason.as_str(), "history is broken, listing again")
                        }
                        None => info!(stream = %self.stream, "first snapshot"),
                    }
                    self.log.append(&self.stream, Entry::ListNeeded(*reason)).await?;
                    Ok(Outcome::Announced)
                }
                State::Listing { version, token } => {
                    if turn_at_lists.is_none() {
                        turn_at_lists = self.lists.clone().acquire_owned().await.ok();
                    }
                    if token.is_none() {
                        generation += 1;
                        self.log.append(&self.stream, Entry::ListStarted(generation)).await?;
                    }
                    match self.list_page(version.as_ref(), token.as_deref()).await {
                        Ok(page) => {
                            backoff.reset();
                            Ok(self.log_page(page).await?)
                        }
                        Err(error) => Err(error),
                    }
                }
                State::Concluding(position) => {
                    self.log.append_vanished(&self.stream, generation).await?;
                    self.log.append(&self.stream, Entry::ListFinished(position.clone())).await?;
                    turn_at_lists = None;
                    info!(stream = %self.stream, %position, "listed, watching");
                    Ok(Outcome::Concluded)
                }
                State::Watching(from) => {
                    let mut position = from.clone();
                    let ended = self.watch(&mut position, &mut backoff).await?;
                    state = state.step(Outcome::Moved(position));
                    ended.map(|()| Outcome::Interrupted)
                }
            };
            let outcome = match ended {
                Ok(outcome) => outcome,
                // A token that expires again and again is a server under pressure: not without a pause.
                Err(ApiError::Expired) if matches!(state, State::Watching(_)) => Outcome::Expired,
                Err(error) => {
                    turn_at_lists = None;
                    let longest = if error.is_refusal() { LONGEST_PAUSE_REFUSED } else { LONGEST_PAUSE_AWAY };
                    let pause = backoff.next(rand::random(), longest, error.retry_after());
                    let (attempt, pause_ms) = (backoff.failures(), pause.as_millis() as u64);
                    warn!(stream = %self.stream, attempt, pause_ms, %error, "API server failed, trying again");
                    tokio::time::sleep(pause).await;
                    if matches!(error, ApiError::Expired) { Outcome::Expired } else { Outcome::Interrupted }
                }
            };
            state = state.step(outcome);
        }
    }

    /// Gets one page, with every object in it found and cleaned. All pages of a LIST are of one version.
    async fn list_page(
        &self,
        version: Option<&ResourceVersion>,
        token: Option<&str>,
    ) -> Result<(Page, Vec<Observed>), ApiError> {
        let timeout = Duration::from_secs(self.list.timeout_secs.get());
        let page = api::list_page(&self.client, &self.stream, self.list.page_size.get(), token, timeout).await?;
        if version.is_some_and(|version| *version != page.version) {
            return Err(ApiError::Expired);
        }
        let observed = page.items().map(|item| self.observe(item)).collect::<Result<_, _>>()?;
        Ok((page, observed))
    }

    async fn log_page(&self, (page, observed): (Page, Vec<Observed>)) -> Result<Outcome, WriteError> {
        debug!(stream = %self.stream, objects = observed.len(), version = %page.version, "page");
        let Page { version, next, .. } = page;
        for observed in observed {
            self.log.append(&self.stream, Entry::Listed(observed)).await?;
        }
        Ok(Outcome::Page { version, next })
    }

    /// Follows one watch to its end. The inner result is how it ended; `position` is how far it came.
    async fn watch(
        &self,
        position: &mut ResourceVersion,
        backoff: &mut Backoff,
    ) -> Result<Result<(), ApiError>, WriteError> {
        let config::Watch { bookmarks, timeout_min_secs, timeout_max_secs, stall_timeout_secs } = self.watch;
        // Not all at once, or an API server that restarts would see every watch renewed in the same second for ever.
        let seconds = rand::random_range(timeout_min_secs.get()..=timeout_max_secs.get());
        let timeout = Duration::from_secs(seconds.into());
        let stall = Duration::from_secs(stall_timeout_secs.get());
        let opened = Instant::now();
        let mut lines = match api::watch(&self.client, &self.stream, position, bookmarks, timeout).await {
            Ok(lines) => lines,
            Err(error) => return Ok(Err(error)),
        };
        debug!(stream = %self.stream, from = %position, "watching");
        let mut last_bookmark = None;
        let mut quiet = true;
        loop {
            let deadline = last_bookmark.map_or(Instant::now() + timeout + WATCH_END_SLACK, |at| at + stall);
            let line = match tokio::time::timeout_at(deadline, lines.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) if quiet && opened.elapsed() < SHORT_WATCH => {
                    return Ok(Err(ApiError::failed("the watch ended as soon as it was open")));
                }
                Ok(Ok(None)) => return Ok(Ok(())),
                Ok(Err(error)) => return Ok(Err(error)),
                Err(_) => return Ok(Err(ApiError::failed("the watch has stalled: neither events nor bookmarks"))),
            };
            let entry = match self.entry(&line) {
                Ok(entry) => entry,
                Err(error) => return Ok(Err(error)),
            };
            quiet = false;
            backoff.reset();
            let reached = match &entry {
                Entry::Bookmark(version) => {
                    last_bookmark = Some(Instant::now());
                    version.clone()
                }
                Entry::Present(observed) | Entry::Deleted(observed) => observed.version.clone(),
                _ => position.clone(),
            };
            self.log.append(&self.stream, entry).await?;
            *position = reached;
        }
    }

    /// What one line of a watch tells the log.
    fn entry(&self, line: &Bytes) -> Result<Entry, ApiError> {
        Ok(match WatchEvent::parse(line)? {
            WatchEvent::Present(object) => Entry::Present(self.observe(object)?),
            WatchEvent::Deleted(object) => Entry::Deleted(self.observe(object)?),
            WatchEvent::Bookmark(version) => Entry::Bookmark(version),
        })
    }

    fn observe(&self, object: &[u8]) -> Result<Observed, ApiError> {
        scan::observe(&self.stream, object).map_err(|error| ApiError::failed(error.to_string()))
    }
}
