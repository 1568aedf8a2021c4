//! The stage: cluster, server, pipeline and receiver, and the beat in which all of them move on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use kubetide_simulator::{Cluster, ClusterOptions, Fault, RequestInfo, Server, Verb};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{
    churn::{Churn, STREAMS},
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
    lists: Arc<AtomicU64>,
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
        let lists = Arc::default();
        let stage = Self { server, churn, pipeline, receiver, fold: Fold::default(), lists, directory };
        stage.answer(|_| Fault::Pass);
        Ok(stage)
    }

    /// From now on requests meet what `fault` says. LISTs are counted.
    fn answer(&self, fault: fn(&RequestInfo) -> Fault) {
        let lists = self.lists.clone();
        self.server.set_hook(Some(Arc::new(move |request| {
            if is_list(request) {
                lists.fetch_add(1, Ordering::Relaxed);
            }
            fault(request)
        })));
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
        self.answer(|request| match request.verb {
            Verb::Watch | Verb::List | Verb::StreamingList => Fault::Hang,
            _ => Fault::Pass,
        });
        self.server.cut_all_watches();
    }

    /// The API server is started again, and has forgotten its history.
    pub(super) async fn restart_without_history(&self) {
        self.server.cluster().forget_history();
        self.server.refuse(true).await;
        self.answer(|_| Fault::Pass);
        self.server.refuse(false).await;
    }

    /// LIST requests so far, in any form.
    pub(super) fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// Ends the child and removes the directory, in this order.
    pub(super) async fn clear(mut self) {
        // It has ended already, or the system is about to end it.
        let _ = self.pipeline.kill().await;
        let _ = self.directory.close();
    }
}

/// Whether a request is for the objects of a captured stream. A streaming LIST of an impossible name only asks for the version.
fn is_list(request: &RequestInfo) -> bool {
    let captured = STREAMS.iter().any(|(resource, _)| *resource == request.resource);
    let by_name = request.query.get("fieldSelector").is_some_and(|fields| fields.starts_with("metadata.name="));
    matches!(request.verb, Verb::List | Verb::Page | Verb::StreamingList) && captured && !by_name
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
