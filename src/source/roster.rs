//! Which streams are followed: starts, restarts and ends followers as the cluster's definitions change, and settles what
//! became of streams that the configuration no longer asks for.
//!
//! A stream that discovery no longer shows is followed on: an API server of its own may be down. Only where its definition is
//! proven to be gone, its objects are deleted with it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kubetide_sink::Stream;
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Means, SourceError,
    definitions::{self, News, Proof},
    discovery::{self, Discovered, Served},
    follow::Follower,
    names::{self, Follow, Plan, Unresolved},
};
use crate::{
    backoff::Backoff,
    changelog::{Entry, Phase},
    config,
    vitals::Vitals,
};

/// Discovery is polled no faster than this.
const POLL: Duration = Duration::from_secs(30);
/// How often it is read where definitions are watched and nothing is missing: only in case a watch was blind.
const SAFETY: Duration = Duration::from_secs(600);
/// A definition is served a moment after it is written: when to look, after it was seen to change.
const AFTER_NEWS: [Duration; 3] = [Duration::from_secs(12), Duration::from_secs(4), Duration::from_secs(1)];
/// What nothing speaks for is gone if it is still absent this much later.
const ABSENT_TWICE: Duration = Duration::from_secs(30);
/// How long the rows of a stream are kept that was taken out of the configuration.
const KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);

/// The streams of a process.
pub struct Roster {
    means: Means,
    wanted: Vec<config::Stream>,
    vitals: Vitals,
    stop: CancellationToken,
    followed: BTreeMap<String, Followed>,
    tasks: JoinSet<Result<(), SourceError>>,
    /// Custom resources whose definitions have been seen.
    custom: HashSet<String>,
    /// What discovery showed last, by full name.
    served: HashSet<String>,
    /// Definitions may not be watched.
    refused: bool,
    /// Words of the configuration stand for nothing now, and may come to stand for something.
    unresolved: bool,
    next: Option<Instant>,
    last: Instant,
    looks_left: usize,
    backoff: Backoff,
}

struct Followed {
    follow: Follow,
    stop: CancellationToken,
    task: Id,
    /// Since when discovery does not show it, without anything that speaks for it.
    absent: Option<Instant>,
}

impl Roster {
    /// For what the configuration asks for.
    pub fn new(means: Means, wanted: Vec<config::Stream>, vitals: Vitals, stop: CancellationToken) -> Self {
        let now = means.clock.now();
        Self {
            means,
            wanted,
            vitals,
            stop,
            followed: BTreeMap::new(),
            tasks: JoinSet::new(),
            custom: HashSet::new(),
            served: HashSet::new(),
            refused: false,
            unresolved: false,
            next: None,
            last: now,
            looks_left: 0,
            backoff: Backoff::new(Duration::from_secs(1)),
        }
    }

    /// Follows what is planned, and whatever comes to be planned, until it is asked to stop.
    pub async fn run(mut self, discovered: Discovered, plan: Plan) -> Result<(), SourceError> {
        self.note_served(&discovered);
        let ended = self.follow(plan).await;
        self.stop.cancel();
        while let Some(task) = self.tasks.join_next().await {
            finished(task)?;
        }
        ended
    }

    async fn follow(&mut self, plan: Plan) -> Result<(), SourceError> {
        self.settle(&plan).await?;
        for follow in plan.follow {
            self.start(follow).await?;
        }
        self.tell_unresolved(&plan.unresolved);
        let (news_sender, mut news) = mpsc::channel(64);
        let mut definitions = JoinSet::new();
        if self.follows_definitions() {
            let Means { cluster, clock, .. } = &self.means;
            definitions.spawn(definitions::follow_custom(cluster.clone(), clock.clone(), news_sender.clone()));
            definitions.spawn(definitions::follow_services(cluster.clone(), clock.clone(), news_sender.clone()));
        }
        self.schedule();
        let (missing, clock) = (self.means.missing.clone(), self.means.clock.clone());
        loop {
            let due = self.next.unwrap_or_else(|| self.means.clock.now() + SAFETY);
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                Some(task) = self.tasks.join_next() => finished(task)?,
                Some(news) = news.recv() => self.hear(news),
                () = missing.notified() => self.look_by(self.last + POLL),
                () = clock.sleep_until(due) => self.look().await?,
            }
        }
    }

    fn note_served(&mut self, discovered: &Discovered) {
        self.served = discovered.served.iter().map(Served::full_name).collect();
    }

    /// Whether something other than the streams there are now could come to be followed.
    fn follows_definitions(&self) -> bool {
        let custom = self.followed.values().any(|followed| !is_built_in(&followed.follow.stream.group));
        custom || self.unresolved || names::has_wildcard(&self.wanted)
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Refused => {
                self.refused = true;
                self.schedule();
                return;
            }
            News::Changed => {}
            News::Custom(name) => {
                self.custom.insert(name);
            }
            News::Known(name) => {
                let served = self.served.contains(&name);
                self.custom.insert(name);
                // Else it came between the discovery and the watch.
                if served {
                    return;
                }
            }
        }
        self.looks_left = AFTER_NEWS.len();
        // Not later than it was due already: news that never cease must not put it off for ever.
        self.look_by(self.means.clock.now() + AFTER_NEWS[AFTER_NEWS.len() - 1]);
    }

    fn look_by(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// When discovery is read next.
    fn schedule(&mut self) {
        let now = self.means.clock.now();
        let unsettled = self.unresolved || self.followed.values().any(|followed| followed.absent.is_some());
        let pause = match self.looks_left.checked_sub(1) {
            Some(at) => AFTER_NEWS[at],
            None if self.refused || unsettled => POLL.mul_f64(rand::random_range(1.0..1.2)),
            None => SAFETY,
        };
        if self.looks_left > 0 || self.follows_definitions() || unsettled {
            self.next = None;
            self.look_by(now + pause);
        }
    }

    /// Reads discovery and follows what it shows.
    async fn look(&mut self) -> Result<(), SourceError> {
        (self.next, self.last) = (None, self.means.clock.now());
        self.looks_left = self.looks_left.saturating_sub(1);
        let discovered = match discovery::discover(&self.means.cluster).await {
            Ok(discovered) => discovered,
            Err(error) => {
                self.vitals.discovery_failed(&error.to_string());
                let pause = self.backoff.next(rand::random(), POLL * 10, error.retry_after()).max(POLL);
                warn!(%error, pause_secs = pause.as_secs(), "cannot read what the cluster serves, trying again");
                self.look_by(self.last + pause);
                return Ok(());
            }
        };
        self.backoff.reset();
        self.note_served(&discovered);
        match names::plan(&self.wanted, &discovered, &self.means.cluster.identity) {
            Ok(plan) => {
                tell_discovered(&self.vitals, &discovered);
                self.reconcile(plan, &discovered).await?;
            }
            // A definition that has come makes a word ambiguous: what is followed is followed on.
            Err(problem) => {
                warn!(%problem, "the configuration does not fit what the cluster serves now; going on as before");
                self.vitals.discovery_failed(&problem);
            }
        }
        self.schedule();
        Ok(())
    }

    async fn reconcile(&mut self, plan: Plan, discovered: &Discovered) -> Result<(), SourceError> {
        let Plan { follow: planned_follows, unresolved } = plan;
        let planned: HashSet<String> = planned_follows.iter().map(|follow| follow.stream.to_string()).collect();
        for follow in planned_follows {
            let name = follow.stream.to_string();
            match self.followed.get_mut(&name) {
                Some(followed) if followed.follow == follow => followed.absent = None,
                Some(_) => {
                    info!(stream = %name, version = follow.stream.version, "served in another way now, following that");
                    self.end(&name).await?;
                    self.start(follow).await?;
                }
                None => {
                    info!(stream = %name, "served now, following it");
                    self.start(follow).await?;
                }
            }
        }
        let absent: Vec<String> = self.followed.keys().filter(|name| !planned.contains(*name)).cloned().collect();
        for name in absent {
            self.consider_absent(&name, discovered).await?;
        }
        // Last: a stream that was just found to be gone leaves its word without a resource.
        self.tell_unresolved(&unresolved);
        Ok(())
    }

    /// A stream that discovery does not show: is it gone, or only out of reach?
    async fn consider_absent(&mut self, name: &str, discovered: &Discovered) -> Result<(), SourceError> {
        let Some(followed) = self.followed.get_mut(name) else { return Ok(()) };
        let stream = followed.follow.stream.clone();
        if discovered.has(&stream.group, &stream.resource) || !discovered.is_complete(&stream.group) {
            return Ok(());
        }
        let custom = self.custom.contains(&format!("{}.{}", stream.resource, stream.group));
        let now = self.means.clock.now();
        match definitions::prove(&self.means.cluster, &stream, custom).await {
            Ok(Proof::Gone) => self.remove(name, &stream).await,
            Ok(Proof::Unlikely) if followed.absent.is_some_and(|since| now - since >= ABSENT_TWICE) => {
                self.remove(name, &stream).await
            }
            Ok(Proof::Unlikely) => {
                followed.absent.get_or_insert(now);
                Ok(())
            }
            Ok(Proof::There) => {
                followed.absent = None;
                Ok(())
            }
            Err(error) => {
                debug!(stream = %name, %error, "cannot tell whether the resource is gone");
                Ok(())
            }
        }
    }

    /// The resource is gone: its objects are deleted with it.
    async fn remove(&mut self, name: &str, stream: &Arc<Stream>) -> Result<(), SourceError> {
        info!(stream = %name, "the resource is gone from the cluster");
        self.end(name).await?;
        self.vitals.forget_stream(name);
        let nothing_listed = self.means.known.new_generation();
        self.means.log.append_vanished(stream, nothing_listed).await?;
        Ok(self.means.log.append(stream, Entry::Gone).await?)
    }

    async fn start(&mut self, follow: Follow) -> Result<(), SourceError> {
        self.means.log.flush().await?;
        let durable = self.means.known.state(&follow.stream)?;
        if durable.phase != Phase::New && durable.asked_as != follow.asked_as {
            self.means.log.append(&follow.stream, Entry::AskedAs(follow.asked_as.clone())).await?;
        }
        let name = follow.stream.to_string();
        let vitals = self.vitals.stream(&name, follow.asked);
        let stop = self.stop.child_token();
        let follower = Follower::new(&follow, self.means.clone(), vitals, stop.clone());
        let task = self.tasks.spawn(follower.run(durable)).id();
        self.followed.insert(name, Followed { follow, stop, task, absent: None });
        Ok(())
    }

    async fn end(&mut self, name: &str) -> Result<(), SourceError> {
        let Some(followed) = self.followed.remove(name) else { return Ok(()) };
        followed.stop.cancel();
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
            finished(ended.map(|(_, result)| result))?;
            if id == followed.task {
                break;
            }
        }
        Ok(())
    }

    /// At the start: what became of the streams that were followed before and are not in the plan.
    async fn settle(&mut self, plan: &Plan) -> Result<(), SourceError> {
        let planned: HashSet<String> = plan.follow.iter().map(|follow| follow.stream.to_string()).collect();
        for (stream, state) in self.means.known.streams()? {
            if planned.contains(&stream.to_string()) {
                continue;
            }
            let identity = &self.means.cluster.identity;
            let wanted = names::follow_known(&self.wanted, &stream, &state.asked_as, identity);
            let stream = Arc::new(stream);
            match (&state.phase, wanted) {
                (Phase::New, _) => {}
                (Phase::Removed { .. }, Some(follow))
                | (Phase::Listing { .. } | Phase::Watching { .. }, Some(follow)) => {
                    let name = stream.to_string();
                    self.start(follow).await?;
                    if let Some(followed) = self.followed.get_mut(&name) {
                        followed.absent = Some(self.means.clock.now());
                    }
                }
                (Phase::Listing { .. } | Phase::Watching { .. }, None) => {
                    info!(%stream, "no longer asked for");
                    self.means.log.append(&stream, Entry::Unfollowed).await?;
                }
                (Phase::Removed { at, .. }, None) => {
                    if self.means.clock.wall().duration_since(*at) > KEPT {
                        self.means.log.append(&stream, Entry::Forgotten).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Words that stand for nothing now, save those whose stream is still followed.
    fn tell_unresolved(&mut self, unresolved: &[Unresolved]) {
        let followed = |word: &str| self.followed.values().any(|followed| followed.follow.asked_as == word);
        let words: Vec<String> =
            unresolved.iter().map(|unresolved| unresolved.word.clone()).filter(|word| !followed(word)).collect();
        self.unresolved = !words.is_empty();
        self.vitals.unresolved(&words);
    }
}

/// Whether a group is Kubernetes' own: what it serves changes with an upgrade only. Custom resources may be in groups of
/// k8s.io too, such as gateway.networking.k8s.io.
fn is_built_in(group: &str) -> bool {
    const OWN: [&str; 18] = [
        "admissionregistration",
        "apiextensions",
        "apiregistration",
        "authentication",
        "authorization",
        "certificates",
        "coordination",
        "discovery",
        "events",
        "flowcontrol.apiserver",
        "internal.apiserver",
        "networking",
        "node",
        "rbac.authorization",
        "resource",
        "scheduling",
        "storage",
        "storagemigration",
    ];
    // Custom resources must have a dot in their group.
    !group.contains('.') || group.strip_suffix(".k8s.io").is_some_and(|name| OWN.contains(&name))
}

/// Says what discovery lacks.
pub fn tell_discovered(vitals: &Vitals, discovered: &Discovered) {
    if discovered.incomplete.is_empty() {
        vitals.discovered();
    } else {
        let groups = discovered.incomplete.join(", ");
        vitals.discovery_failed(&format!("incomplete: the API servers of these groups do not answer: {groups}"));
    }
}

/// A task's own result; its panic is ours.
fn finished<E>(ended: Result<Result<(), E>, JoinError>) -> Result<(), E> {
    match ended {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Ok(()),
        },
    }
}
