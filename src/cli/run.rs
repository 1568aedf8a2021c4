//! `kubetide run`: the pipeline, until SIGTERM or Ctrl-C.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Failure, broken_store};
use crate::{
    bridge::{self, Terms},
    config::{self, Flags},
    telemetry,
};

/// Capture changes and push them to the sinks
///
/// Runs until SIGTERM or Ctrl-C, then stops the watches, delivers the batches under way, and exits with 0. The next start
/// resumes where this one stopped. A second signal exits at once.
#[derive(Args)]
#[command(
    after_help = "Example:\n  kubetide run --config kubetide.yaml\n\nEvery key but the lists (streams, sinks) can be set by the environment too: KUBETIDE__LIST__PAGE_SIZE=100.\n\nExit codes: 0 fine, 1 failed, 2 usage or configuration, 69 a service that is needed is not there."
)]
pub(super) struct Run {
    /// The configuration file (YAML; JSON or TOML by its ending)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where the change log and the checkpoints are kept, instead of data_dir
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Go on with another cluster than the one that the data directory belongs to: every stream is compared with it
    #[arg(long)]
    accept_new_cluster: bool,
    /// End at once when standard input ends: with a pipe from its parent, the process cannot outlive it
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Run {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = config::load(&self.config, &Flags { data_dir: self.data_dir })?;
        telemetry::start(&config.telemetry);
        broken_store::ends_the_process(&config.data_dir);
        if self.until_stdin_ends {
            std::thread::spawn(exit_when_stdin_ends);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let signals = tokio::spawn(stop_on_signal(stop.clone()));
            let terms = Terms { accept_new_cluster: self.accept_new_cluster, ..Terms::default() };
            let ended = bridge::run(&config, terms, stop).await;
            signals.abort();
            Ok(ended?)
        })
    }
}

/// As hard an end as SIGKILL, which the next start resumes from.
fn exit_when_stdin_ends() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(1);
}

/// `timeout` and some supervisors signal both the process and its group: within this time it is the same request.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// The first signal asks for an orderly end, the second one does not ask.
async fn stop_on_signal(stop: CancellationToken) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    let mut asked: Option<Instant> = None;
    loop {
        let kind = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
        };
        match asked {
            None => {
                asked = Some(Instant::now());
                stop.cancel();
            }
            Some(first) if first.elapsed() < SAME_REQUEST => {}
            Some(_) => std::process::exit(128 + kind.as_raw_value()),
        }
    }
}
