//! How a stream is watched: one watch after the other, each from where the last one came to.

use std::time::Duration;

use tokio::sync::watch;
use tracing::debug;

use super::{Asked, CHECK_WITHIN, Follower, Memory, OpenWatch, Verification};
use crate::{
    change::{Observed, ResourceVersion},
    changelog::Entry,
    config,
    source::{answer::WatchEvent, api::ApiError, machine::Outcome, pulse::Pulse, verify},
};

/// A watch that ends sooner than this without an event counts as a failure, or a broken server would be asked in a loop.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that ends this much before its time was not ended by its timeout.
const EARLY: Duration = Duration::from_secs(2);
/// A position without bookmarks that has not moved for this long is moved by other means, before its history is compacted:
/// etcd keeps about five minutes.
const OLD_POSITION: Duration = Duration::from_secs(120);
/// How long a watch lasts that is to move such a position…
const SHORT_LASTS: std::ops::Range<u64> = 60..90;
/// …and how long at least, so that everything that was there when it was opened has surely come.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

impl Follower {
    pub(super) fn watch_lasts(&self) -> Duration {
        let config::Watch { timeout_min_secs, timeout_max_secs, .. } = self.means.watch;
        // Not all at once, or an API server that restarts would see every watch renewed in the same second for ever.
        Duration::from_secs(rand::random_range(timeout_min_secs.get()..=timeout_max_secs.get()).into())
    }

    /// Follows one watch to its end. `position` is how far it came.
    pub(super) async fn watch(&self, memory: &mut Memory, position: &mut ResourceVersion) -> Asked<Outcome> {
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
            let (entry, reached) = match WatchEvent::parse(self.port.cleaner(), &line) {
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

    pub(super) async fn open_watch(
        &self,
        memory: &mut Memory,
        position: &ResourceVersion,
    ) -> Result<OpenWatch, ApiError> {
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
