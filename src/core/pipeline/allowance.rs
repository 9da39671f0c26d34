//! Limits the time spent on waits that hold up all other rows.
//!
//! In any span of time the grants total at most `most` plus one part in `share` of it.

use std::time::Duration;

/// A limit for one wait, and a share of all time.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    most: Duration,
    share: u32,
    left: Duration,
    at: Duration,
}

impl Allowance {
    /// Allows `most` at once, and one part in `share` of the passing time.
    ///
    /// # Panics
    ///
    /// If `share` is 0.
    pub const fn new(most: Duration, share: u32) -> Self {
        assert!(share > 0, "a share of time is a part of it");
        Self { most, share, left: most, at: Duration::ZERO }
    }

    /// Time that may be spent now.
    pub fn left(&mut self, now: Duration) -> Duration {
        let earned = now.saturating_sub(self.at) / self.share;
        self.at = self.at.max(now);
        self.left = self.left.saturating_add(earned).min(self.most);
        self.left
    }

    /// Books time that is spent.
    pub fn spend(&mut self, time: Duration, now: Duration) {
        self.left = self.left(now).saturating_sub(time);
    }

    /// Returns time that was not needed.
    pub fn give_back(&mut self, time: Duration, now: Duration) {
        self.left = self.left(now).saturating_add(time).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_spent_comes_back_as_a_share_of_time() {
        let mut allowance = Allowance::new(2 * SECOND, 10);
        assert_eq!(allowance.left(1_000 * SECOND), 2 * SECOND);
        allowance.spend(3 * SECOND, 1_000 * SECOND);
        assert_eq!(allowance.left(1_000 * SECOND), Duration::ZERO);
        assert_eq!(allowance.left(1_005 * SECOND), SECOND / 2);
        allowance.give_back(SECOND, 1_005 * SECOND);
        assert_eq!(allowance.left(1_005 * SECOND), SECOND * 3 / 2);
        assert_eq!(allowance.left(1_004 * SECOND), SECOND * 3 / 2, "a clock that stood still");
        assert_eq!(allowance.left(2_000 * SECOND), 2 * SECOND);
    }

    #[test]
    fn a_day_of_greed_gets_its_share() {
        let mut allowance = Allowance::new(2 * SECOND, 10);
        let (mut now, mut spent) = (Duration::ZERO, Duration::ZERO);
        while now < 86_400 * SECOND {
            let left = allowance.left(now);
            allowance.spend(left, now);
            spent += left;
            now += left + SECOND / 100;
        }
        assert!(spent <= 2 * SECOND + now / 10, "{spent:?}");
    }
}
