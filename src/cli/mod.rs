//! The commands, one file each, and what their exit codes mean.

mod broken_store;
mod counter;
mod demo;
mod log;
mod objects;
pub mod progress;
mod receipt;
mod run;
mod sink;
mod table;
mod tail;
mod when;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{api::Refusal, bridge::RunError, config::ConfigError, source::cluster::ConnectError};

/// Change-data-capture for Kubernetes.
///
/// Watches the resources of a cluster, keeps every change in a durable log, and pushes the log in batches to sinks.
#[derive(Parser)]
#[command(name = "kubetide", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Tail(Box<tail::Tail>),
    Log(log::Log),
    Objects(objects::Objects),
    Sink(sink::Sink),
    Demo(demo::Demo),
}

/// Why a command failed, by exit code.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// 1
    #[error("{0}")]
    Failed(String),
    /// 2
    #[error("{0}")]
    Usage(String),
    /// 69
    #[error("{0}")]
    Unavailable(String),
    /// 0: whoever read the output has had enough, as in `kubetide tail | head`.
    #[error("standard output was closed by its reader")]
    OutputClosed,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Usage(message) => Self::Usage(message),
            Refusal::Absent(message) | Refusal::Failed(message) => Self::Failed(message),
            Refusal::Unavailable(message) => Self::Unavailable(message),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let message = error.to_string();
        match error {
            RunError::Connect(ConnectError::Config(_)) => Self::Usage(message),
            RunError::Connect(ConnectError::Unreachable(_)) => Self::Unavailable(message),
            _ => Self::Failed(message),
        }
    }
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    // One TLS provider for everything in the process; it fails only if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let done = match Cli::parse().command {
        Command::Run(run) => run.run(),
        Command::Tail(tail) => tail.run(),
        Command::Log(log) => log.run(),
        Command::Objects(objects) => objects.run(),
        Command::Sink(sink) => sink.run(),
        Command::Demo(demo) => demo.run(),
    };
    match done {
        Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            anstream::eprintln!("error: {failure}");
            ExitCode::from(match failure {
                Failure::OutputClosed => 0,
                Failure::Failed(_) => 1,
                Failure::Usage(_) => 2,
                Failure::Unavailable(_) => 69,
            })
        }
    }
}
