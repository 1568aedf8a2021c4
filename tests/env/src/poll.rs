//! Waiting for what a server does a moment after it has answered.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// What is waited for takes seconds at most on an idle machine; a busy one gets its time.
const WITHIN: Duration = Duration::from_secs(60);

/// Waits until `holds` says yes. Fails if it fails, or with `what` after a minute.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    while !holds().await? {
        if Instant::now() > deadline {
            bail!("not after {WITHIN:?}: {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
