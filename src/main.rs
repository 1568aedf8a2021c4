//! kubetide: change-data-capture for Kubernetes.

use std::process::ExitCode;

// How it is set up is in .cargo/config.toml.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    kubetide::cli::main()
}
