//! How long to wait before the next session.
//!
//! Enters: "this session failed" and "this session made progress". Leaves: a wait that doubles from
//! `initial` up to `max`, with jitter so that a fleet does not return in step. Pure: the caller
//! brings the randomness and does the waiting.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A number in `0.0..1.0` to spread retries; need not be unpredictable.
pub(super) fn chance() -> f64 {
    let bits = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(bits).unwrap_or(0)) / f64::from(u32::MAX)
}

/// Capped exponential back-off with full jitter on the upper half of each step.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Waits start near `initial` and never exceed `max`.
    pub(super) const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// The wait after one more failure. `chance` lies in `0.0..=1.0`; the wait lies between half
    /// of the current step and the whole of it.
    pub(super) fn after_failure(&mut self, chance: f64) -> Duration {
        let step = self.initial.saturating_mul(1 << self.failures.min(20)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        step.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Failures since the last progress.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// The session did useful work: the next failure starts from the beginning again.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_over_after_progress() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let waits: Vec<_> = (0..12).map(|_| backoff.after_failure(1.0).as_millis()).collect();
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!(waits[11], 30_000);
        backoff.reset();
        assert_eq!(backoff.after_failure(1.0).as_millis(), 100);
    }

    #[test]
    fn jitter_stays_within_the_step() {
        for chance in [0.0, 0.3, 1.0, 7.0, f64::MIN] {
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
            let wait = backoff.after_failure(chance).as_millis();
            assert!((50..=100).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn any_number_of_failures_is_fine() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.after_failure(1.0), Duration::from_secs(30));
    }
}
