//! The pipeline: `kubetide run` as a child process, with a configuration of its own.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, ChildStdin, Command};

use super::churn::STREAMS;

/// Lines of the pipeline's log in the message when it has died.
const TAIL: usize = 12;
/// More than `shutdown_grace_secs` in the configuration.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The child process and its files.
pub(super) struct Pipeline {
    config: PathBuf,
    log: PathBuf,
    child: Option<Running>,
}

struct Running {
    process: Child,
    /// The pipe that the process ends with: it must stay open for as long as the process is wanted.
    _lifeline: Option<ChildStdin>,
}

impl Pipeline {
    /// Writes the configuration; nothing runs yet.
    pub(super) fn prepare(directory: &Path, kubeconfig: &Path, receiver: &Path) -> anyhow::Result<Self> {
        let config = json!({
            "cluster": {"kubeconfig": kubeconfig},
            "data_dir": directory.join("data"),
            "streams": STREAMS.iter().map(|(resource, _)| json!({"resource": resource})).collect::<Vec<_>>(),
            // Smaller than a stream, so that its LIST has pages.
            "list": {"page_size": 100},
            "sinks": [{
                "name": "receiver",
                "type": "file",
                "path": receiver,
                // Sooner than by default: somebody is watching.
                "batch": {"max_records": 100, "max_wait_ms": 150},
                "retry": {"initial_ms": 100, "max_ms": 500},
            }],
            "admin": {"listen": null},
            // A line per batch, for the figures.
            "telemetry": {"log_format": "json", "log_level": "info,kubetide::delivery=debug"},
            "shutdown_grace_secs": 10,
        });
        let path = directory.join("config.json");
        std::fs::write(&path, config.to_string()).context("cannot write the configuration")?;
        Ok(Self { config: path, log: directory.join("pipeline.log"), child: None })
    }

    /// Starts the process.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let log =
            File::options().append(true).create(true).open(&self.log).context("cannot write the pipeline's log")?;
        let mut process = Command::new(program)
            .args(["run", "--until-stdin-ends", "--config"])
            .arg(&self.config)
            // A pipe that closes with this process, however it ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Neither a proxy nor a KUBETIDE__ key that is set for something else.
            .env_clear()
            // Ctrl-C is for the demo, which decides what becomes of the pipeline.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the pipeline")?;
        // Waiting for a child closes its standard input, unless it is taken out.
        let _lifeline = process.stdin.take();
        self.child = Some(Running { process, _lifeline });
        Ok(())
    }

    /// An error if the process has ended, though nobody asked it to.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.process.try_wait().context("cannot look after the pipeline")? {
            None => Ok(()),
            Some(status) => {
                self.child = None;
                bail!("the pipeline ended unexpectedly ({status}); the end of its log:\n{}", self.tail())
            }
        }
    }

    /// SIGKILL; returns when the process is gone.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        match self.child.take() {
            Some(mut child) => child.process.kill().await.context("cannot kill the pipeline"),
            None => Ok(()),
        }
    }

    /// SIGTERM; returns how the process ended.
    pub(super) async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { bail!("the pipeline does not run") };
        let pid =
            child.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).context("the pipeline has ended")?;
        kill_process(pid, Signal::TERM).context("cannot stop the pipeline")?;
        match tokio::time::timeout(STOP_WITHIN, child.process.wait()).await {
            Ok(status) => status.context("cannot wait for the pipeline"),
            Err(_) => {
                let _ = child.process.kill().await;
                bail!(
                    "the pipeline did not stop within {} s; the end of its log:\n{}",
                    STOP_WITHIN.as_secs(),
                    self.tail()
                )
            }
        }
    }

    /// The batches that were sent, as places in the log. One that came again is one.
    pub(super) fn batches(&self) -> BTreeSet<(u64, u64)> {
        let lines = self.log_lines("batch");
        lines.iter().filter_map(|line| Some((line["from"].as_u64()?, line["to"].as_u64()?))).collect()
    }

    /// How often the receiver has refused a batch.
    pub(super) fn refusals(&self) -> usize {
        self.log_lines("delivery failed, trying again").len()
    }

    fn log_lines(&self, message: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}
