//! Stage 1: LIST and WATCH. Follows streams and tells the log what it sees; knows nothing of sinks.
//!
//! ```text
//!  cluster ─▶ discovery ─▶ names: words → streams ─▶ roster: starts, restarts and ends followers as definitions change
//!                                                       │
//!                          machine: what next? ◀─▶ follow: LIST and WATCH through the port ─▶ the log
//!                                                       └─ verify: now and then, is it all true?
//! ```

pub mod answer;
pub mod api;
pub mod cluster;
pub mod definitions;
pub mod discovery;
pub mod follow;
pub mod lines;
pub mod machine;
pub mod names;
mod pace;
pub mod port;
mod pulse;
pub mod redact_key;
pub mod roster;
pub mod selection;
mod verify;

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

use crate::{
    change::{Cleaning, Ignored},
    changelog::{Appender, Known, StoreError, WriteError},
    clock::Clock,
    config,
};

/// Why streams can no longer be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The log is gone.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What is known cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another cluster answers under the same address.
    #[error("{0}; check cluster.context, or, if it replaces the old one, start again with --accept-new-cluster")]
    OtherCluster(String),
}

/// What the streams of a process work with.
#[derive(Clone)]
pub struct Means {
    /// The cluster.
    pub cluster: cluster::Cluster,
    /// The way into the log.
    pub log: Appender,
    /// What the log knows.
    pub known: Known,
    /// How to LIST.
    pub list: config::List,
    /// How to WATCH.
    pub watch: config::Watch,
    /// How to verify.
    pub verify: config::Verify,
    /// What is cleaned out of objects.
    pub cleaning: Arc<Cleaning>,
    /// Which differences do not count.
    pub ignored: Arc<Ignored>,
    /// The clock.
    pub clock: Clock,
    /// How many LISTs may run at once.
    lists: Arc<Semaphore>,
    /// The order in which watches are opened.
    pace: pace::Pace,
    /// Told when a resource answers 404.
    missing: Arc<Notify>,
}

impl Means {
    /// For the streams of `config`.
    pub fn new(
        config: &config::Config,
        cluster: cluster::Cluster,
        cleaning: Cleaning,
        log: Appender,
        known: Known,
        clock: Clock,
    ) -> Self {
        Self {
            cluster,
            log,
            known,
            list: config.list.clone(),
            watch: config.watch.clone(),
            verify: config.verify.clone(),
            cleaning: Arc::new(cleaning),
            ignored: Arc::new(Ignored(config.record.ignore.clone())),
            clock,
            lists: Arc::new(Semaphore::new(config.list.max_concurrent.get())),
            pace: pace::Pace::default(),
            missing: Arc::new(Notify::new()),
        }
    }
}
