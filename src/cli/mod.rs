//! The commands, one file each, and what their exit codes mean.

mod demo;
pub mod progress;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{bridge::RunError, config::ConfigError, source::cluster::ConnectError};

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
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
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
        Command::Demo(demo) => demo.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            anstream::eprintln!("error: {failure}");
            ExitCode::from(match failure {
                Failure::Failed(_) => 1,
                Failure::Usage(_) => 2,
                Failure::Unavailable(_) => 69,
            })
        }
    }
}
