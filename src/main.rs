//! kubetide: change-data-capture for Kubernetes.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubetide::cli::main()
}
