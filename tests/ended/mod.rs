//! The built binary, run to its end, and what a refusal must look like.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
    time::Duration,
};

/// How long a command may take before a test calls it hung. Only ever reached by a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Marks of a failure that nobody has put into words: a panic, or what Rust prints for programmers.
const UGLY: [&str; 9] =
    ["panicked", "RUST_BACKTRACE", "Some(", "None", "Error {", "Os {", "Error(", "nonzero", "expected struct"];

/// `kubetide run --config FILE`, with nothing of this process's own environment that would lead it elsewhere.
pub fn kubetide(config: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
    command.args(["run", "--config"]).arg(config).env_remove("KUBECONFIG");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KUBETIDE__")) {
        command.env_remove(name);
    }
    command
}

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the command to its end; kills it if there is none.
pub async fn ended(command: Command) -> Ended {
    let mut command = tokio::process::Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the command ends by itself").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Ended {
    /// The one message, which must be the last thing said, name all of this, and be meant for people.
    pub fn assert_refused(&self, code: i32, names: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let message = self.stderr.lines().last().and_then(|line| line.strip_prefix("error: "));
        let message = message.unwrap_or_else(|| panic!("the last line is not the error: {self:#?}"));
        let told = |line: &&str| line.starts_with("error: ") || line.contains(" ERROR ");
        assert_eq!(self.stderr.lines().filter(told).count(), 1, "one message: {self:#?}");
        for name in names {
            assert!(message.contains(name), "{message:?} does not say {name:?}");
        }
        for ugly in UGLY {
            assert!(!self.stderr.contains(ugly), "{ugly:?} is not for people: {self:#?}");
        }
        assert_eq!(self.stdout, "");
    }
}
