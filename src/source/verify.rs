//! Verification: now and then, is what is known of a stream what the cluster has?
//!
//! A metadata-only LIST raises suspects. Between it and the watch there is always something under way, so that a suspect means
//! nothing yet: each is read again, and must still differ when the watch has passed the version of that reading, twice with
//! the same answer. So under any churn nothing is found that is not so.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use kubetide_sink::Stream;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{Means, SourceError, api::ApiError, port::Port};
use crate::{
    change::{ObjectKey, Observed, ResourceVersion, Row},
    changelog::Glimpse,
    vitals::StreamVitals,
};

/// Suspects that are read again. One that is confirmed is enough: everything is compared then.
const SUSPECTS: usize = 100;

/// A difference between the stream and the cluster was confirmed.
pub(super) struct Diverged;

/// The verification of one stream.
pub(super) struct Verifier {
    pub(super) stream: Arc<Stream>,
    pub(super) means: Means,
    pub(super) port: Port,
    pub(super) vitals: StreamVitals,
    /// How far the watch has come. What it has passed is in the queue of the log.
    pub(super) position: watch::Receiver<ResourceVersion>,
}

/// An object that looked different, and what it looked like; absent if the LIST did not have it.
struct Suspect {
    key: ObjectKey,
    seen: Option<Glimpse>,
}

/// Why a verification gave no answer.
enum Inconclusive {
    Source(SourceError),
    Api(ApiError),
}

impl<E: Into<SourceError>> From<E> for Inconclusive {
    fn from(error: E) -> Self {
        Self::Source(error.into())
    }
}

impl Verifier {
    /// Verifies again and again, and returns when something was found.
    pub(super) async fn run(mut self) -> Result<Diverged, SourceError> {
        let interval = Duration::from_secs(self.means.verify.interval_secs);
        if interval.is_zero() {
            return std::future::pending().await;
        }
        loop {
            self.means.clock.sleep(interval.mul_f64(rand::random_range(0.8..1.2))).await;
            match self.verify().await {
                Ok(true) => return Ok(Diverged),
                Ok(false) => {}
                Err(Inconclusive::Source(error)) => return Err(error),
                Err(Inconclusive::Api(error)) if error.status() == Some(StatusCode::NOT_ACCEPTABLE) => {
                    debug!(stream = %self.stream, "no metadata-only LIST: not verified");
                    return std::future::pending().await;
                }
                Err(Inconclusive::Api(error)) => debug!(stream = %self.stream, %error, "verification gave no answer"),
            }
        }
    }

    async fn verify(&mut self) -> Result<bool, Inconclusive> {
        let before = self.position.borrow().clone();
        let (mut suspects, version) = self.suspects().await?;
        if version.is_covered_by(&before) && version != before {
            warn!(stream = %self.stream, %version, position = %before, "the API server is at an older version than before");
            self.vitals.verified(0, 1);
            return Ok(true);
        }
        let raised = suspects.len() as u64;
        if !suspects.is_empty() {
            self.reach(&version).await;
            suspects = self.still_unexplained(suspects, &version).await?;
        }
        for suspect in suspects {
            if self.is_confirmed(&suspect.key).await? {
                warn!(stream = %self.stream, "verification found the stream to differ from the cluster");
                self.vitals.verified(raised, 1);
                return Ok(true);
            }
        }
        debug!(stream = %self.stream, suspects = raised, "verified");
        self.vitals.verified(raised, 0);
        Ok(false)
    }

    /// What a metadata-only LIST shows otherwise than it is known, and the version of that LIST.
    async fn suspects(&self) -> Result<(Vec<Suspect>, ResourceVersion), Inconclusive> {
        let _turn = self.means.lists.clone().acquire_owned().await;
        let timeout = Duration::from_secs(self.means.list.timeout_secs.get());
        let generation = self.means.known.new_generation();
        let mut suspects = Vec::new();
        let mut token: Option<String> = None;
        let version = loop {
            let limit = self.means.list.page_size.get();
            let page = self.port.metadata_page(limit, token.as_deref(), timeout).await;
            let read = page.and_then(|page| {
                let glimpses = page.items().map(|item| self.glimpse(item)).collect::<Result<Vec<_>, _>>()?;
                Ok((page, glimpses))
            });
            let (page, glimpses) = match read {
                Ok(read) => read,
                Err(error) => {
                    self.means.known.forget_listed(&self.stream, generation).await?;
                    return Err(Inconclusive::Api(error));
                }
            };
            let differing = self.means.known.differing(&self.stream, generation, glimpses).await?;
            let room = SUSPECTS.saturating_sub(suspects.len());
            let of = |glimpse: Glimpse| Suspect { key: glimpse.key.clone(), seen: Some(glimpse) };
            suspects.extend(differing.into_iter().take(room).map(of));
            match page.next {
                Some(next) => token = Some(next),
                None => break page.version,
            }
        };
        let missing = self.means.known.missing(&self.stream, generation, SUSPECTS).await?;
        suspects.extend(missing.into_iter().map(|key| Suspect { key, seen: None }));
        Ok((suspects, version))
    }

    fn glimpse(&self, item: &[u8]) -> Result<Glimpse, ApiError> {
        let Observed { key, uid, version, managed, .. } = self.port.observe(item)?;
        Ok(Glimpse { key, uid, version, managed })
    }

    /// Waits until the watch has passed `version`, and what it brought is in the rows.
    async fn reach(&mut self, version: &ResourceVersion) {
        let start = self.position.borrow().clone();
        let passed = |position: &ResourceVersion| match version.order(position) {
            Some(order) => order.is_le(),
            // Versions that cannot be compared: the next sign of life has to do.
            None => *position != start,
        };
        // The sender lives as long as the stream is followed, and this is dropped with it.
        let _ = self.position.wait_for(|position| passed(position)).await;
    }

    /// The suspects less those that the watch has explained meanwhile.
    async fn still_unexplained(
        &self,
        suspects: Vec<Suspect>,
        version: &ResourceVersion,
    ) -> Result<Vec<Suspect>, Inconclusive> {
        self.means.log.flush().await?;
        let mut unexplained = Vec::new();
        for suspect in suspects {
            let row = self.means.known.row(&self.stream, suspect.key.clone()).await?;
            let explained = match (&row, &suspect.seen) {
                (Some(row), Some(seen)) => row.agrees_with(seen) || is_after(row, version),
                (Some(row), None) => is_after(row, version),
                (None, None) => true,
                (None, Some(_)) => false,
            };
            if !explained {
                unexplained.push(suspect);
            }
        }
        Ok(unexplained)
    }

    /// Whether the object, read twice with the same answer, is otherwise than it is known though the watch has passed the
    /// first reading.
    async fn is_confirmed(&mut self, key: &ObjectKey) -> Result<bool, Inconclusive> {
        let (first, version) = self.read(key).await?;
        self.reach(&version).await;
        self.means.log.flush().await?;
        let row = self.means.known.row(&self.stream, key.clone()).await?;
        match (&row, &first) {
            (None, None) => return Ok(false),
            (Some(row), Some(observed)) if row.is(observed, &self.means.ignored) => return Ok(false),
            (Some(row), _) if is_after(row, &version) => return Ok(false),
            _ => {}
        }
        let (second, _) = self.read(key).await?;
        let same = match (&first, &second) {
            (None, None) => true,
            (Some(first), Some(second)) => first.uid == second.uid && first.version == second.version,
            _ => false,
        };
        Ok(same)
    }

    async fn read(&self, key: &ObjectKey) -> Result<(Option<Observed>, ResourceVersion), Inconclusive> {
        self.port.read(key, Duration::from_secs(30)).await.map_err(Inconclusive::Api)
    }
}

/// Whether the object was changed after this version: then it is no wonder that it looks different.
fn is_after(row: &Row, version: &ResourceVersion) -> bool {
    version.is_covered_by(&row.seen) && row.seen != *version
}
