//! Limits the number of rows per second. The caller reads the clock.

use std::time::{Duration, Instant};

/// Unused time that may be caught up.
const SAVED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pace {
    distance: Duration,
    next: Instant,
}

impl Pace {
    pub(super) fn new(rows_per_second: u32, now: Instant) -> Self {
        Self { distance: Duration::from_secs(1) / rows_per_second.max(1), next: now }
    }

    /// True if a row may be sent now; it then counts as sent.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.next > now {
            return false;
        }
        let from = now.checked_sub(SAVED).map_or(self.next, |saved| self.next.max(saved));
        self.next = from + self.distance;
        true
    }

    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_rows_a_second_are_sent_whoever_asks_how_often() {
        let start = Instant::now() + Duration::from_secs(10);
        for step in [1, 7, 100, 250] {
            let mut pace = Pace::new(1_000, start);
            let mut sent = 0_u32;
            for at in (0..3_000).step_by(step) {
                while pace.take(start + Duration::from_millis(at)) {
                    sent += 1;
                }
            }
            let least = if step <= 100 { 2_900 } else { 1_100 };
            assert!((least..=3_101).contains(&sent), "{step}: {sent}");
        }
    }

    #[test]
    fn the_pause_ends_when_a_row_may_be_sent() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut pace = Pace::new(10, start);
        assert!(pace.pause(start).is_zero() && pace.take(start) && !pace.take(start));
        let pause = pace.pause(start);
        assert_eq!(pause, Duration::from_millis(100));
        assert!(pace.take(start + pause));
    }
}
