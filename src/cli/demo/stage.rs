//! The stage: cluster, server, pipeline and receiver, and the beat in which all of them move on.

use std::time::Duration;

use anyhow::Context as _;
use kubetide_simulator::{Cluster, ClusterOptions, Fault, Server, Verb};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{
    churn::Churn,
    fold::Fold,
    pipeline::Pipeline,
    receiver::{Received, Receiver},
};

/// Short enough to look alive.
const BEAT: Duration = Duration::from_millis(20);
/// Everything that is waited for takes a second or two; on a machine that is busy with other things, more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that takes part.
pub(super) struct Stage {
    pub(super) server: Server,
    pub(super) churn: Churn,
    pub(super) pipeline: Pipeline,
    pub(super) receiver: Receiver,
    pub(super) fold: Fold,
    directory: TempDir,
}

impl Stage {
    /// Fills a cluster and serves it; the pipeline is ready but does not run yet.
    pub(super) async fn set(seed: u64, rate: u32) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("kubetide-demo-").tempdir();
        let directory = directory.context("cannot make a temporary directory")?;
        let cluster = Cluster::new(ClusterOptions { seed, ..ClusterOptions::default() });
        let churn = Churn::settle(cluster.clone(), seed, rate)?;
        let server = Server::start(cluster).await.context("cannot start the simulated API server")?;
        let kubeconfig = server.kubeconfig(directory.path()).context("cannot write the kubeconfig")?;
        let receiver = Receiver::open(directory.path())?;
        let pipeline = Pipeline::prepare(directory.path(), &kubeconfig, &receiver.path())?;
        Ok(Self { server, churn, pipeline, receiver, fold: Fold::default(), directory })
    }

    /// A moment passes: the changes that are due are made, and what the receiver has got is folded. Gives the new records.
    pub(super) async fn beat(&mut self) -> anyhow::Result<Vec<Received>> {
        tokio::time::sleep(BEAT).await;
        self.churn.go_on()?;
        self.pipeline.check()?;
        self.read()
    }

    /// Folds what the receiver has got; gives what is new.
    pub(super) fn read(&mut self) -> anyhow::Result<Vec<Received>> {
        let records = self.receiver.read()?;
        for record in &records {
            if let Some(state) = self.fold.take(record) {
                self.churn.arrived(&state);
            }
        }
        Ok(records)
    }

    /// Whether the receiver has everything: each change on the way, and the objects as they are now.
    pub(super) fn is_level(&self) -> bool {
        self.churn.is_done() && self.churn.owed() == 0 && self.fold.is_at(self.churn.current())
    }

    /// The API server goes silent: watches break off, and new ones get no answer.
    pub(super) fn silence(&self) {
        self.server.set_hook(Some(std::sync::Arc::new(|request| match request.verb {
            Verb::Watch | Verb::List => Fault::Hang,
            _ => Fault::Pass,
        })));
        self.server.cut_all_watches();
    }

    /// The API server is started again, and has forgotten its history.
    pub(super) async fn restart_without_history(&self) {
        self.server.cluster().forget_history();
        self.server.refuse(true).await;
        self.server.set_hook(None);
        self.server.refuse(false).await;
    }

    /// LIST requests so far, in any form.
    pub(super) fn lists(&self) -> u64 {
        let requests = self.server.requests();
        [Verb::List, Verb::Page, Verb::StreamingList].into_iter().map(|verb| requests.of(verb)).sum()
    }

    /// Ends the child and removes the directory, in this order.
    pub(super) async fn clear(mut self) {
        // It has ended already, or the system is about to end it.
        let _ = self.pipeline.kill().await;
        let _ = self.directory.close();
    }
}

/// How long to wait for something.
pub(super) struct Deadline {
    until: Instant,
    what: &'static str,
}

/// What was waited for did not happen. The verdict can tell why.
#[derive(Debug, thiserror::Error)]
#[error("{what} did not happen within {} s", PATIENCE.as_secs())]
pub(super) struct Late {
    what: &'static str,
}

impl Deadline {
    /// Begins to wait for `what`.
    pub(super) fn of(what: &'static str) -> Self {
        Self { until: Instant::now() + PATIENCE, what }
    }

    /// An error when it is too late.
    pub(super) fn check(&self) -> Result<(), Late> {
        if Instant::now() < self.until { Ok(()) } else { Err(Late { what: self.what }) }
    }
}
