//! A real kube-controller-manager for an [`Apiserver`]: Deployments become ReplicaSets become Pods, owners take their
//! dependents along, namespaces empty themselves. There is no scheduler and no kubelet: Pods stay Pending.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::Apiserver;
use crate::locate::locate;
use crate::port::{loopback, on_free_port};
use crate::process::Process;

/// There within a second on an idle machine; a busy one gets its time.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// The ones that act on what a test creates. Those that write on their own, into each new namespace or on a timer, are
/// left out, so that a test can still say where a change comes from.
const CONTROLLERS: &str = "cronjob-controller,daemonset-controller,deployment-controller,disruption-controller,\
    endpointslice-controller,garbage-collector-controller,job-controller,namespace-controller,replicaset-controller,\
    resourcequota-controller,statefulset-controller,ttl-after-finished-controller";

/// A kube-controller-manager, which ends when this is dropped.
pub struct ControllerManager {
    /// Held for its drop, which kills the server.
    _process: Process,
}

impl Apiserver {
    /// Starts the controllers and waits until they run. They have all rights, and find the API server again after a
    /// restart. After a [`restore`](Self::restore) start new ones, as an operator does: theirs wait in silence for versions
    /// after the ones they have seen.
    pub async fn controller_manager(&self) -> Result<ControllerManager> {
        on_free_port(async |port| {
            let mut process = Process::start(
                "kube-controller-manager",
                self.scratch.new_log("kube-controller-manager"),
                [
                    locate("kube-controller-manager")?.display().to_string(),
                    format!("--kubeconfig={}", self.kubeconfig().display()),
                    format!("--controllers={CONTROLLERS}"),
                    "--leader-elect=false".into(),
                    "--bind-address=127.0.0.1".into(),
                    format!("--secure-port={port}"),
                    // As many requests as a test provokes; the default, 20 per second, makes it wait.
                    "--kube-api-qps=1000".into(),
                    "--kube-api-burst=1000".into(),
                ],
            )?;
            process.until_ready(READY_WITHIN, async || healthy(port).await).await?;
            Ok(ControllerManager { _process: process })
        })
        .await
    }
}

async fn healthy(port: u16) -> Result<()> {
    let mut config = kube::Config::new(format!("https://{}", loopback(port)).parse()?);
    // It makes a certificate for itself at each start, which nobody else has.
    config.accept_invalid_certs = true;
    config.default_retry = false;
    config.proxy_url = None;
    let request = http::Request::get("/healthz").body(Vec::new())?;
    let answer = kube::Client::try_from(config)?.request_text(request).await?;
    ensure!(answer == "ok", "/healthz says {answer}");
    Ok(())
}
