//! Follows what defines the resources of the cluster: CustomResourceDefinitions and APIServices. Tells when something changed,
//! and proves that a resource is gone.

use std::time::Duration;

use http::StatusCode;
use kubetide_sink::Stream;
use serde::Deserialize;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::{
    answer::WatchEvent,
    api::{self, ApiError},
    cluster::Cluster,
};
use crate::{
    backoff::Backoff,
    change::{Cleaner, ResourceVersion},
    clock::Clock,
};

const CUSTOM: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// How long one watch lasts at most.
const WATCH_SECONDS: std::ops::Range<u32> = 300..600;
/// A watch that is silent for this long beyond its time is not coming back.
const SLACK: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How soon a watch that was refused is tried again: somebody has to grant something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// What a definition watch has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A custom resource is defined since before the watch: its full name, `widgets.example.com`.
    Known(String),
    /// The definition of a custom resource has changed, or is gone.
    Custom(String),
    /// Something else about what is served has changed.
    Changed,
    /// The definitions may not be watched: discovery must be polled instead.
    Refused,
}

/// Follows CustomResourceDefinitions for as long as it is polled.
pub async fn follow_custom(cluster: Cluster, clock: Clock, news: mpsc::Sender<News>) {
    let tell = |name, known| Some(if known { News::Known(name) } else { News::Custom(name) });
    follow(&cluster, &clock, CUSTOM, &news, tell).await;
}

/// Follows APIServices for as long as it is polled.
pub async fn follow_services(cluster: Cluster, clock: Clock, news: mpsc::Sender<News>) {
    follow(&cluster, &clock, SERVICES, &news, |_, known| (!known).then_some(News::Changed)).await;
}

async fn follow(
    cluster: &Cluster,
    clock: &Clock,
    path: &str,
    news: &mpsc::Sender<News>,
    tell: impl Fn(String, bool) -> Option<News>,
) {
    let mut from = None;
    let mut backoff = Backoff::new(FIRST_PAUSE);
    loop {
        let error = match watch(cluster, clock, path, &mut from, news, &tell).await {
            Ok(()) => {
                backoff.reset();
                continue;
            }
            Err(error) => error,
        };
        let pause = match &error {
            ApiError::Expired => {
                from = None;
                // What was missed may be anything.
                if news.send(News::Changed).await.is_err() {
                    return;
                }
                backoff.next(rand::random(), LONGEST_PAUSE, None)
            }
            error if error.is_refusal() => {
                warn!(%path, %error, "may not follow definitions, reading what is served every 30 s instead");
                if news.send(News::Refused).await.is_err() {
                    return;
                }
                REFUSED_PAUSE
            }
            error => {
                debug!(%path, %error, "definition watch ended");
                backoff.next(rand::random(), LONGEST_PAUSE, error.retry_after())
            }
        };
        clock.sleep(pause).await;
    }
}

/// One watch to its end. The first one begins with everything there is; a server without streaming LISTs refuses that, and its
/// watch begins in the same way without saying where the beginning ends.
async fn watch(
    cluster: &Cluster,
    clock: &Clock,
    path: &str,
    from: &mut Option<ResourceVersion>,
    news: &mpsc::Sender<News>,
    tell: &impl Fn(String, bool) -> Option<News>,
) -> Result<(), ApiError> {
    let cleaner = Cleaner::of_nothing();
    let seconds = rand::random_range(WATCH_SECONDS);
    let silence = Duration::from_secs(seconds.into()) + SLACK;
    let mut known = from.is_none();
    let mut lines = match api::watch_metadata(cluster, path, from.as_ref(), seconds).await {
        Err(error) if known && error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) => {
            known = false;
            api::watch_metadata(cluster, path, Some(&ResourceVersion::new("")), seconds).await?
        }
        opened => opened?,
    };
    loop {
        let line = clock.within(silence, lines.next()).await.unwrap_or(Err(ApiError::Stalled))?;
        let Some(line) = line else { return Ok(()) };
        let version = match WatchEvent::parse(&cleaner, &line)? {
            WatchEvent::Bookmark { version, ends_list } => {
                known &= !ends_list;
                version
            }
            WatchEvent::Present(observed) | WatchEvent::Deleted(observed) => {
                if let Some(tidings) = tell(observed.key.name, known)
                    && news.send(tidings).await.is_err()
                {
                    return Ok(());
                }
                observed.version
            }
        };
        // What begins a watch comes in the order of names, not of versions.
        if !known {
            *from = Some(version);
        }
    }
}

/// What is known of a resource that discovery does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Its definition is not there: the resource is gone, and its objects with it.
    Gone,
    /// Its definition is there: it is only out of reach.
    There,
    /// Nothing speaks for it, but nothing that would certainly speak for it is known either: look again later.
    Unlikely,
}

/// Looks for the definition of a resource that discovery does not show. `custom`: a CustomResourceDefinition has been seen
/// for it.
pub async fn prove(cluster: &Cluster, stream: &Stream, custom: bool) -> Result<Proof, ApiError> {
    #[derive(Deserialize)]
    struct Service {
        spec: ServiceSpec,
    }
    #[derive(Deserialize)]
    struct ServiceSpec {
        service: Option<serde::de::IgnoredAny>,
    }
    if stream.group.is_empty() {
        return Ok(Proof::Unlikely);
    }
    let definition = format!("{CUSTOM}/{}.{}", stream.resource, stream.group);
    match api::get::<serde::de::IgnoredAny>(cluster, &definition, api::JSON).await {
        Ok(_) => return Ok(Proof::There),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) && custom => return Ok(Proof::Gone),
        Err(error) if error.is_refusal() => {}
        Err(error) => return Err(error),
    }
    let service = format!("{SERVICES}/{}.{}", stream.version, stream.group);
    match api::get::<Service>(cluster, &service, api::JSON).await {
        // An API server of its own stands behind it, and does not answer.
        Ok(Service { spec: ServiceSpec { service: Some(_) } }) => Ok(Proof::There),
        Ok(_) => Ok(Proof::Unlikely),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(Proof::Gone),
        Err(error) if error.is_refusal() => Ok(Proof::Unlikely),
        Err(error) => Err(error),
    }
}
