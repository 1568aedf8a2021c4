//! `kubetide demo`: what kubetide promises, shown in about 40 seconds without a cluster or a broker.
//!
//! ```text
//!  this process                                    child process                     this process
//!  ┌────────────────────────┐   HTTP on loopback   ┌───────────────────────┐  file   ┌────────────────────────┐
//!  │ churn → simulated      │ ───────────────────▶ │ kubetide run --config │ ──────▶ │ receiver → fold        │
//!  │         cluster        │                      │ the real pipeline     │         │ → verdict ◀ the cluster│
//!  └────────────────────────┘                      └───────────────────────┘         └────────────────────────┘
//! ```
//!
//! The pipeline is a process of its own so that it can be killed. Nothing outlives the demo: neither the child, which ends
//! with its standard input, nor the directory that both work in.

mod churn;
mod fold;
mod pipeline;
mod receiver;
mod sample;
mod screen;
mod stage;
mod story;
mod verdict;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    screen::Screen,
    stage::Stage,
    story::{Pace, Story},
    verdict::Verdict,
};
use super::Failure;

/// Show what kubetide does, on a simulated cluster
///
/// Runs the real pipeline against a simulated API server, with a file as the receiver, and lets things go wrong: the receiver
/// goes away, the API server forgets its history, the process is killed. Then it compares, object by object, what the receiver
/// has with what the cluster has. Needs no cluster and no broker, leaves nothing behind, and takes about 40 seconds.
#[derive(Args)]
#[command(after_help = "Exits with 0 if the verdict is clean, with 1 if it is not.")]
pub(super) struct Demo {
    /// After the story, go on with live changes until Ctrl-C; the verdict comes then
    #[arg(long)]
    forever: bool,
    /// Changes per second
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// The same seed and rate make the same changes
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// The story as text, or only its figures and the verdict as one JSON object
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// How the demo ended.
enum Ended {
    WithVerdict(Verdict),
    /// By a signal, with this exit code.
    Interrupted(i32),
}

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
        let ended = runtime.block_on(self.play()).map_err(|error| Failure::Failed(format!("{error:#}")))?;
        match ended {
            Ended::WithVerdict(verdict) if verdict.is_clean() => Ok(()),
            Ended::WithVerdict(_) => Err(Failure::Failed("the verdict is not clean".into())),
            Ended::Interrupted(code) => std::process::exit(code),
        }
    }

    async fn play(&self) -> anyhow::Result<Ended> {
        let (screen, pace) = match self.output {
            Output::Text => (Screen::for_people(), Pace::to_read()),
            Output::Json => (Screen::silent(), Pace::at_once()),
        };
        let stage = Stage::set(self.seed, self.rate).await?;
        let mut story = Story::new(stage, screen, pace);
        let ended = self.tell(&mut story).await;
        // Whatever the end: first the child, then the directory that it writes to.
        story.clear().await;
        let ended = ended?;
        if let (Ended::WithVerdict(verdict), Output::Json) = (&ended, self.output) {
            screen::print_json(&verdict.report(self.seed, self.rate))?;
        }
        Ok(ended)
    }

    async fn tell(&self, story: &mut Story) -> anyhow::Result<Ended> {
        let mut interrupted = std::pin::pin!(interrupted()?);
        tokio::select! {
            told = story.acts() => told?,
            code = &mut interrupted => return Ok(Ended::Interrupted(code)),
        }
        if self.forever && !story.is_over() {
            tokio::select! {
                failed = story.go_on() => failed?,
                _ = &mut interrupted => {}
            }
            // A second Ctrl-C does not wait for the verdict.
            interrupted.set(self::interrupted()?);
        }
        tokio::select! {
            verdict = story.verdict() => Ok(Ended::WithVerdict(verdict?)),
            code = &mut interrupted => Ok(Ended::Interrupted(code)),
        }
    }
}

/// Waits for a signal that asks for the end; gives the exit code that tells of it.
fn interrupted() -> anyhow::Result<impl Future<Output = i32>> {
    let listen = |kind: SignalKind| signal(kind).context("cannot wait for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(async move {
        let kind = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hang_up.recv() => SignalKind::hangup(),
        };
        128 + kind.as_raw_value()
    })
}
