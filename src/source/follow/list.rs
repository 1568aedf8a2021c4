//! How a stream is listed: streaming or in pages, and what follows from what a complete LIST lacks.

use std::time::Duration;

use http::StatusCode;
use kubetide_sink::Reason;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, info, warn};

use super::{Asked, Follower, ListUnderWay, Memory, OpenWatch};
use crate::{
    change::{Observed, ResourceVersion},
    changelog::{Entry, Purpose},
    source::{SourceError, answer::WatchEvent, api::ApiError, machine::Outcome},
};

/// How long a streaming LIST may bring nothing before it is done in pages: the bookmark at its end may never come.
const STREAMING_SILENCE: Duration = Duration::from_secs(30);
/// More deletes than this, and more than half of what is known, are not inferred from one LIST.
const MANY_DELETES: u64 = 100;

impl Follower {
    /// The first part of a LIST. What an attempt before it has shown counts for nothing.
    pub(super) async fn begin_list(&self, memory: &mut Memory, streaming: bool) -> Result<(), SourceError> {
        memory.open = None;
        if let Some(given_up) = memory.list.take() {
            self.means.log.flush().await?;
            self.means.known.forget_listed(&self.stream, given_up.generation).await?;
        }
        let turn = self.turn_at_lists().await;
        let (generation, since) = (self.means.known.new_generation(), self.means.clock.now());
        memory.list = Some(ListUnderWay { generation, since, objects: 0, is_partial: false, turn });
        self.vitals.list_started(streaming);
        self.append(Entry::ListStarted(generation)).await
    }

    /// Waits until this is one of the LISTs that may run.
    pub(super) async fn turn_at_lists(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.means.lists.clone().acquire_owned().await.ok()
    }

    /// One page, with every object in it found and cleaned before the first is logged.
    pub(super) async fn list_page(
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
        let mut observed = Vec::new();
        let mut is_partial = false;
        for item in page.items() {
            match self.port.observe(item) {
                Ok(object) => observed.push(object),
                // It would be the same for ever: the LIST goes on without it, and proves nothing about what is absent.
                Err(error) => {
                    is_partial = true;
                    self.vitals.undecodable();
                    warn!(stream = %self.stream, %error, "a listed object is left out, nothing is inferred to be deleted");
                }
            }
        }
        memory.backoff.reset();
        debug!(stream = %self.stream, objects = observed.len(), version = %page.version, "page");
        let objects = observed.len() as u64;
        for observed in observed {
            self.note_problem(&observed);
            self.append(Entry::Listed(observed)).await?;
        }
        if let Some(list) = &mut memory.list {
            list.objects += objects;
            list.is_partial |= is_partial;
            self.vitals.list_progress(list.objects, page.remaining.map(|remaining| list.objects + remaining));
        }
        Ok(Ok(Outcome::Page { version: page.version, next: page.next }))
    }

    /// A whole LIST as the beginning of a watch, which stays open.
    pub(super) async fn list_by_streaming(&self, memory: &mut Memory) -> Asked<Outcome> {
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
            let entry = match WatchEvent::parse(self.port.cleaner(), &line) {
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

    pub(super) fn note_problem(&self, observed: &Observed) {
        if let Err(problem) = &observed.object {
            self.vitals.undecodable();
            warn!(stream = %self.stream, %problem, "an object cannot be read; it is logged without its content");
        }
    }

    /// The LIST is complete: what it lacks has vanished. If that is very much, a second LIST must agree. If it showed something
    /// that nobody knows, that may be what it seems to lack: then nothing has vanished.
    pub(super) async fn conclude(
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
        if !confirmed && !list.is_partial {
            let (vanished, rows) = self.means.known.vanished(&self.stream, list.generation).await?;
            if vanished > MANY_DELETES && vanished * 2 > rows {
                warn!(stream = %self.stream, vanished, known = rows, "a LIST lacks most of what is known, listing again in 30 s before it is believed");
                (memory.open, memory.list) = (None, Some(ListUnderWay { turn: None, ..list }));
                return Ok(Outcome::Suspicious);
            }
        }
        if list.is_partial {
            self.means.known.forget_listed(&self.stream, list.generation).await?;
        } else {
            self.means.log.append_vanished(&self.stream, list.generation).await?;
        }
        self.append(Entry::ListFinished(position.clone())).await?;
        let took = self.means.clock.now() - list.since;
        self.vitals.list_finished(list.objects, took);
        info!(stream = %self.stream, %position, objects = list.objects, "listed");
        Ok(Outcome::Concluded)
    }
}
