//! How long to wait before the next try: exponential with full jitter.

use std::time::Duration;

/// The pauses between tries of one thing.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses of at most `initial` after the first failure, doubling up to `max`.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// It worked: the next failure is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How often it has failed in a row.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause after another failure. `chance` is between 0 and 1; `wish` is the other side's Retry-After.
    pub fn next(&mut self, chance: f64, wish: Option<Duration>) -> Duration {
        let ceiling = self.initial.saturating_mul(1 << self.failures.min(20)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        let jittered = ceiling.mul_f64(chance.clamp(0.0, 1.0));
        wish.map_or(jittered, |wish| jittered.max(wish))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_respect_the_other_sides_wish() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(500), ms(3000));
        assert_eq!(backoff.next(1.0, None), ms(500));
        assert_eq!(backoff.next(1.0, None), ms(1000));
        assert_eq!(backoff.next(0.5, None), ms(1000));
        assert_eq!(backoff.next(1.0, None), ms(3000));
        assert_eq!(backoff.next(0.0, Some(ms(9000))), ms(9000));
        for _ in 0..100 {
            assert!(backoff.next(1.0, None) <= ms(3000));
        }
        backoff.reset();
        assert_eq!(backoff.next(1.0, None), ms(500));
    }
}
