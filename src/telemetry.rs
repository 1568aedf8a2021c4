//! Logs: text for people, JSON for machines, always on standard error. Never object content.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{LogFormat, Telemetry};

/// Starts logging. Called once; a second call changes nothing.
pub(crate) fn start(telemetry: &Telemetry) {
    // What fails in these comes back to us as a result, and is told once. `log_level` can turn them on again by name.
    let others = "fjall=off,lsm_tree=off,kube_client=off";
    let filter = EnvFilter::builder().parse_lossy(format!("{others},{}", telemetry.log_level));
    let registry = tracing_subscriber::registry().with(filter);
    let started = match telemetry.log_format {
        LogFormat::Json => {
            registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Text => {
            let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            registry.with(fmt::layer().with_ansi(ansi).with_target(false).with_writer(std::io::stderr)).try_init()
        }
    };
    // Fails only where something logs already, as in tests.
    drop(started);
}
