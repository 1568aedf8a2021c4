//! Watches are opened one after the other, so that hundreds of them do not hit an API server in the same moment: at a start,
//! and when it comes back.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::clock::Clock;

/// Fifty a second: a wildcard over 300 resources is open after six seconds.
const INTERVAL: Duration = Duration::from_millis(20);

/// The order in which watches are opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    next: Arc<Mutex<Option<Instant>>>,
}

impl Pace {
    /// Waits for a turn.
    pub(super) async fn turn(&self, clock: &Clock) {
        let now = clock.now();
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = next.map_or(now, |next| next.max(now));
            *next = Some(at + INTERVAL);
            at
        };
        clock.sleep(at - now).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_come_one_after_the_other_and_the_first_at_once() {
        let (pace, clock, start) = (Pace::default(), Clock::system(), Instant::now());
        pace.turn(&clock).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..50 {
            pace.turn(&clock).await;
        }
        assert!(start.elapsed() >= INTERVAL * 50, "{:?}", start.elapsed());
        tokio::time::sleep(Duration::from_secs(9)).await;
        let later = Instant::now();
        pace.turn(&clock).await;
        assert_eq!(later.elapsed(), Duration::ZERO);
    }
}
