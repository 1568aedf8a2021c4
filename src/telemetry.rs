//! Logs: text for people, JSON for machines, always on standard error. Never object content.
//!
//! On a terminal a status line may stand below them. It makes way for each log line, and comes back under it.

use std::{
    io::{self, IsTerminal as _, Write},
    sync::{Mutex, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{LogFormat, Telemetry};

/// Back to the margin, and nothing to the right of it.
const CLEAR: &str = "\r\x1b[K";

/// The status line that stands on standard error now; empty = none. There is one standard error.
static STATUS: Mutex<String> = Mutex::new(String::new());

/// Starts logging. Called once; a second call changes nothing.
pub(crate) fn start(telemetry: &Telemetry) {
    // What fails in these comes back to us as a result, and is told once. `log_level` can turn them on again by name.
    let others = "fjall=off,lsm_tree=off,kube_client=off,async_nats=off,opentelemetry=warn";
    let filter = EnvFilter::builder().parse_lossy(format!("{others},{}", telemetry.log_level));
    let registry = tracing_subscriber::registry().with(filter);
    let started = match telemetry.log_format {
        LogFormat::Json => registry.with(fmt::layer().json().flatten_event(true).with_writer(|| LogLines)).try_init(),
        LogFormat::Text => {
            let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            registry.with(fmt::layer().with_ansi(ansi).with_target(false).with_writer(|| LogLines)).try_init()
        }
    };
    // Fails only where something logs already, as in tests.
    drop(started);
}

/// Whether a status line can be shown: on a terminal that can clear a line.
pub(crate) fn has_status_line() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|terminal| terminal != "dumb")
}

/// Shows this below the log lines, in place of what is there; empty = nothing.
pub(crate) fn set_status(line: &str) {
    let mut status = STATUS.lock().unwrap_or_else(PoisonError::into_inner);
    if *status != line {
        // Nobody may be there any more to see it.
        let _ = io::stderr().write_all(format!("{CLEAR}{line}").as_bytes());
        line.clone_into(&mut status);
    }
}

/// Where log lines go, each in one write.
struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let status = STATUS.lock().unwrap_or_else(PoisonError::into_inner);
        io::stderr().write_all(&above(&status, line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The log line in place of the status line, and the status line under it.
fn above(status: &str, line: &[u8]) -> Vec<u8> {
    if status.is_empty() { line.to_vec() } else { [CLEAR.as_bytes(), line, status.as_bytes()].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_takes_the_place_of_the_status_line_which_comes_back_under_it() {
        assert_eq!(above("listing", b"started\n"), b"\r\x1b[Kstarted\nlisting");
        assert_eq!(above("", b"started\n"), b"started\n", "nothing is added where there is none");
    }
}
