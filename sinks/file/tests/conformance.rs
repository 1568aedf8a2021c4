//! The two sinks that write lines pass the suite of all sinks. Each sink is in a process of its own, which is killed as the suite
//! asks for it: this program, started again. So it has no harness, which would write to standard output too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and say what they have seen")]

#[path = "conformance/lines.rs"]
mod lines;
#[path = "conformance/process.rs"]
mod process;

use std::{env, process::ExitCode};

use kubetide_sink::conformance;
use lines::{FileBench, StdoutBench};

fn main() -> ExitCode {
    if let Ok(place) = env::var(process::PLACE) {
        process::serve(&place);
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (file, stdout) = runtime.block_on(async {
        let file = conformance::run_all(async |_| FileBench::new());
        let stdout = conformance::run_all(async |_| StdoutBench::new());
        tokio::join!(file, stdout)
    });
    println!("file\n{file}\nstandard output\n{stdout}");
    ExitCode::from(u8::from(file.findings().chain(stdout.findings()).count() > 0))
}
