//! How long to wait before the next try: exponential with full jitter.

use std::time::Duration;

/// The pauses between tries of one thing.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses of at most `initial` after the first failure, doubling with each one that follows.
    pub const fn new(initial: Duration) -> Self {
        Self { initial, failures: 0 }
    }

    /// It worked: the next failure is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How often it has failed in a row.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause after another failure: at most `longest`, unless the other side's Retry-After is a `wish` for more.
    /// `chance` is between 0 and 1.
    pub fn next(&mut self, chance: f64, longest: Duration, wish: Option<Duration>) -> Duration {
        let ceiling = self.initial.saturating_mul(1 << self.failures.min(20)).min(longest);
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
        let mut backoff = Backoff::new(ms(500));
        assert_eq!(backoff.next(1.0, ms(3000), None), ms(500));
        assert_eq!(backoff.next(1.0, ms(3000), None), ms(1000));
        assert_eq!(backoff.next(0.5, ms(3000), None), ms(1000));
        assert_eq!(backoff.next(1.0, ms(3000), None), ms(3000));
        assert_eq!(backoff.next(0.0, ms(3000), Some(ms(9000))), ms(9000));
        for _ in 0..100 {
            assert!(backoff.next(1.0, ms(3000), None) <= ms(3000));
        }
        backoff.reset();
        assert_eq!(backoff.next(1.0, ms(3000), None), ms(500));
    }
}
