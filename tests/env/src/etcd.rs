//! etcd, as the API server's store. It is not part of the public face: tests reach it through `Apiserver`, to make it
//! forget its history or go back to an older one.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::locate::locate;
use crate::port::{loopback, on_free_port, on_same_port};
use crate::process::Process;
use crate::scratch::Scratch;

pub(crate) struct Etcd {
    port: u16,
    process: Mutex<Option<Process>>,
}

impl Etcd {
    pub(crate) async fn start(scratch: &Scratch) -> Result<Etcd> {
        let (port, process) = on_free_port(async |port| Ok((port, launch(port, scratch).await?))).await?;
        Ok(Etcd { port, process: Mutex::new(Some(process)) })
    }

    /// Kills etcd with SIGKILL and waits for its end. What it has acknowledged is in its data directory.
    pub(crate) fn stop(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Starts the stopped etcd on the same port with what its data directory holds now.
    pub(crate) async fn start_again(&self, scratch: &Scratch) -> Result<()> {
        ensure!(self.process.lock().unwrap().is_none(), "etcd runs already");
        let process = on_same_port(async || launch(self.port, scratch).await).await?;
        *self.process.lock().unwrap() = Some(process);
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", loopback(self.port))
    }

    /// Makes etcd forget every revision before this moment, on disk too.
    ///
    /// It writes a key first: a version that a client holds is then surely older than what is kept, even if nothing has
    /// been written since.
    pub(crate) async fn compact(&self) -> Result<()> {
        // "kubetide", outside of the API server's prefix.
        let written = call(self.port, "kv/put", json!({ "key": "a3ViZXRpZGU=", "value": "" })).await?;
        let revision =
            written["header"]["revision"].as_str().with_context(|| format!("etcd gave no revision: {written}"))?;
        call(self.port, "kv/compaction", json!({ "revision": revision, "physical": true })).await?;
        Ok(())
    }
}

/// Where etcd keeps all that it knows.
pub(crate) fn directory(scratch: &Scratch) -> PathBuf {
    scratch.data().join("etcd")
}

async fn launch(port: u16, scratch: &Scratch) -> Result<Process> {
    let url = format!("http://{}", loopback(port));
    let mut process = Process::start(
        "etcd",
        scratch.new_log("etcd"),
        [
            locate("etcd")?.display().to_string(),
            format!("--data-dir={}", directory(scratch).display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            // Nobody joins: any port will do.
            "--listen-peer-urls=http://127.0.0.1:0".into(),
            // The tests kill processes, not machines: what the kernel has is safe enough.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ],
    )?;
    let ready = async || call(port, "kv/range", json!({ "key": "AA==" })).await.map(drop);
    process.until_ready(Duration::from_secs(30), ready).await?;
    Ok(process)
}

/// One call of etcd's JSON gateway. kube's client serves as the HTTP client.
async fn call(port: u16, method: &str, body: Value) -> Result<Value> {
    let mut config = kube::Config::new(format!("http://{}", loopback(port)).parse()?);
    config.default_retry = false;
    config.proxy_url = None;
    let request = http::Request::post(format!("/v3/{method}")).body(serde_json::to_vec(&body)?)?;
    kube::Client::try_from(config)?.request(request).await.with_context(|| format!("calling etcd's {method}"))
}
