//! Where the servers are. The rules live in the script `get-servers`, which also builds them; this asks it once per
//! process, and turns an absent server into an error that names the command to run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/get-servers");

struct Found {
    paths: HashMap<String, PathBuf>,
    /// What the script said, for the error about a server that it did not find.
    said: String,
}

/// The path of `name` as the script prints it: `kube-apiserver`, `kube-controller-manager`, `etcd`, `nats-server`, `java`,
/// or `kafka` for the directory of its jars.
pub(crate) fn locate(name: &str) -> Result<PathBuf> {
    static FOUND: OnceLock<Result<Found, String>> = OnceLock::new();
    let found = FOUND
        .get_or_init(|| ask().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow!("{error}"))?;
    found.paths.get(name).cloned().with_context(|| {
        format!(
            "{name} is not on this machine: run `make test`, or `tests/env/get-servers` to get the servers alone\n{}",
            found.said
        )
    })
}

fn ask() -> Result<Found> {
    let output = Command::new(SCRIPT).arg("--locate").output().with_context(|| format!("running {SCRIPT}"))?;
    let paths = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, path)| (name.to_owned(), PathBuf::from(path)))
        .collect();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Found { paths, said })
}
