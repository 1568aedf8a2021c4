//! etcd, as the API server's store. It is not part of the public face: tests reach it through `Apiserver`, to make it
//! forget its history.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::locate::locate;
use crate::port::{loopback, on_free_port};
use crate::process::Process;
use crate::scratch::Scratch;

pub(crate) struct Etcd {
    port: u16,
    /// Held for its drop, which kills the server.
    _process: Process,
}

impl Etcd {
    pub(crate) async fn start(scratch: &Scratch) -> Result<Etcd> {
        on_free_port(async |port| {
            let url = format!("http://{}", loopback(port));
            let data = scratch.data().join("etcd");
            let mut process = Process::start(
                "etcd",
                scratch.new_log("etcd"),
                [
                    locate("etcd")?.display().to_string(),
                    format!("--data-dir={}", data.display()),
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
            Ok(Etcd { port, _process: process })
        })
        .await
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

/// One call of etcd's JSON gateway. kube's client serves as the HTTP client.
async fn call(port: u16, method: &str, body: Value) -> Result<Value> {
    let mut config = kube::Config::new(format!("http://{}", loopback(port)).parse()?);
    config.default_retry = false;
    config.proxy_url = None;
    let request = http::Request::post(format!("/v3/{method}")).body(serde_json::to_vec(&body)?)?;
    kube::Client::try_from(config)?.request(request).await.with_context(|| format!("calling etcd's {method}"))
}
