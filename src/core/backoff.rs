//! Exponential back-off with jitter.
//!
//! The wait is between half and all of a limit that doubles with each failure. The random part
//! keeps relays that failed together from retrying together.

use std::time::Duration;

/// Waits between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Longest wait after one failure.
    pub first: Duration,
    /// Longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    /// Five attempts take up to 1.5 s, so a database that returns is noticed soon.
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The wait after `failures` (at least 1); `draw` is random.
    pub fn wait(&self, failures: u32, draw: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let half = self.first.saturating_mul(1 << doublings).min(self.max) / 2;
        let per_mille = u32::try_from(draw % 1_001).unwrap_or(0);
        half + half / 1_000 * per_mille
    }

    /// Most failures whose wait never exceeds `limit`; `None` if even the first wait may exceed it.
    pub fn failures_within(&self, limit: Duration) -> Option<u32> {
        if limit >= self.max {
            return Some(u32::MAX);
        }
        let is_within = |doublings: &u32| self.first.saturating_mul(1 << *doublings) <= limit;
        (0..=31).take_while(is_within).last().map(|doublings| doublings + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_doubles_up_to_its_limit() {
        let backoff = Backoff::default();
        let longest = |failures| backoff.wait(failures, 1_000).as_millis();
        assert_eq!([1, 2, 3, 4].map(longest), [100, 200, 400, 800]);
        assert_eq!([12, 20, u32::MAX].map(longest), [10_000; 3]);
        assert_eq!(backoff.wait(1, 0), Duration::from_millis(50));
    }

    #[test]
    fn so_many_failures_are_within_a_limit() {
        let backoff = Backoff::default();
        let within = |ms| backoff.failures_within(Duration::from_millis(ms));
        assert_eq!([0, 99, 100, 399, 400].map(within), [None, None, Some(1), Some(2), Some(3)]);
        assert_eq!([9_999, 10_000].map(within), [Some(7), Some(u32::MAX)]);
    }

    proptest! {
        #[test]
        fn the_wait_after_failures_within_a_limit_is_no_longer(limit_ms in 0_u64..20_000, draw: u64) {
            let (backoff, limit) = (Backoff::default(), Duration::from_millis(limit_ms));
            if let Some(failures) = backoff.failures_within(limit) {
                prop_assert!(backoff.wait(failures, draw) <= limit);
            }
        }

        #[test]
        fn it_is_never_less_than_half_nor_more_than_the_longest(
            failures in 1_u32.., draw: u64, first_ms in 0_u64..100_000,
        ) {
            let backoff = Backoff { first: Duration::from_millis(first_ms), ..Backoff::default() };
            let wait = backoff.wait(failures, draw);
            prop_assert!(wait <= backoff.max && wait >= backoff.first.min(backoff.max) / 2);
        }
    }
}
