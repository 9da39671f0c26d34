//! How long to wait before the next attempt.
//!
//! Enters: how many attempts failed. Leaves: a time that doubles up to a limit, shortened by chance
//! so that consumers that failed together do not come back together. Called by `consumer`.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Waits between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// The longest wait of all.
    pub max: Duration,
}

impl Default for Backoff {
    /// 100 ms, doubled up to 10 s: five attempts take up to 1.5 s, and a database that comes back
    /// is noticed soon.
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The wait after so many failures in a row, at least 1: between half of the longest and all.
    pub(super) fn wait(&self, failures: u32) -> Duration {
        self.wait_drawn(failures, RandomState::new().hash_one(failures))
    }

    fn wait_drawn(&self, failures: u32, draw: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let longest = self.first.saturating_mul(1 << doublings).min(self.max);
        let share = u32::try_from(draw % 1_000).unwrap_or(0);
        longest / 2 + longest / 2 * share / 1_000
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_doubles_up_to_its_limit() {
        let backoff = Backoff::default();
        let longest = |failures| backoff.wait_drawn(failures, 999).as_millis();
        assert_eq!([1, 2, 3].map(longest), [99, 199, 399]);
        assert_eq!([20, u32::MAX].map(longest), [9_995, 9_995]);
        assert_eq!(backoff.wait_drawn(1, 0), Duration::from_millis(50));
    }

    proptest! {
        #[test]
        fn it_is_never_less_than_half_nor_more_than_the_longest(
            failures in 1_u32.., draw: u64, first_ms in 0_u64..100_000,
        ) {
            let backoff = Backoff { first: Duration::from_millis(first_ms), ..Backoff::default() };
            let wait = backoff.wait_drawn(failures, draw);
            prop_assert!(wait <= backoff.max && wait >= backoff.first.min(backoff.max) / 2);
        }
    }
}
