//! The clock that everything waits on and that records are stamped by: given to those who need it, so that tests can let
//! hours pass in a moment and let the wall clock jump.
//!
//! Waiting is on tokio's clock, which a test can pause. The wall clock is only ever written into records: nothing waits for
//! it and nothing is ordered by it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

/// The two clocks.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self::with_wall(Timestamp::now)
    }

    /// With another wall clock.
    pub fn with_wall(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall) }
    }

    /// The time of day.
    pub fn wall(&self) -> Timestamp {
        (self.wall)()
    }

    /// A time to measure from; unaffected by the wall clock.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Waits until then.
    pub async fn sleep_until(&self, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
    }

    /// Waits for `future`, but not longer than until `deadline`.
    pub async fn until<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(deadline, future).await.ok()
    }

    /// Waits for `future`, but not longer than this.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(limit, future).await.ok()
    }
}
