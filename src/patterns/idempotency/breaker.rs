//! Passes over a Redis that just failed, so that a dead one costs no request any time.
//!
//! Enters: what became of calls, and the time. Leaves: whether to ask. What always holds: after a
//! failure nobody asks for the length of the pause; then one call tries, and only its success lets the
//! others ask again.

use std::time::{Duration, Instant};

/// Whether to ask, and what depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// As always.
    Usual,
    /// This call alone finds out whether Redis is back.
    Trial,
    /// It would only cost time.
    PassOver,
}

/// Closed while nothing is amiss.
#[derive(Debug)]
pub(super) struct Breaker {
    pause: Duration,
    /// Until when Redis is passed over; `None` while nothing is amiss.
    until: Option<Instant>,
}

impl Breaker {
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, until: None }
    }

    pub(super) fn ask(&mut self, now: Instant) -> Ask {
        match self.until {
            None => Ask::Usual,
            Some(until) if now < until => Ask::PassOver,
            Some(_) => {
                // Also should the trial be dropped half-way: then the next comes a pause later.
                self.until = Some(now + self.pause);
                Ask::Trial
            }
        }
    }

    /// A trial found Redis well.
    pub(super) fn recovered(&mut self) {
        self.until = None;
    }

    /// Returns whether this is the first failure of a row.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.until.replace(now + self.pause).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn a_failure_passes_over_redis_for_the_pause_and_lets_one_call_try() {
        let (mut breaker, start) = (Breaker::new(PAUSE), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([breaker.ask(at(0)), breaker.ask(at(1))], [Ask::Usual; 2]);
        assert!(breaker.failed(at(10)), "the first of a row");
        assert_eq!([breaker.ask(at(11)), breaker.ask(at(1_009))], [Ask::PassOver; 2]);
        assert_eq!(breaker.ask(at(1_010)), Ask::Trial);
        assert_eq!(breaker.ask(at(1_011)), Ask::PassOver, "one tries, the others go on without");
        breaker.recovered();
        assert_eq!(breaker.ask(at(1_012)), Ask::Usual);
        assert!(breaker.failed(at(1_013)), "the first of another row");
    }

    #[test]
    fn each_failed_trial_is_followed_by_a_whole_pause() {
        let (mut breaker, mut now) = (Breaker::new(PAUSE), Instant::now());
        breaker.failed(now);
        for _ in 0..5 {
            now += PAUSE;
            assert_eq!(breaker.ask(now), Ask::Trial);
            now += Duration::from_millis(100);
            assert!(!breaker.failed(now), "not the first");
            assert_eq!(breaker.ask(now + PAUSE / 2), Ask::PassOver);
        }
    }

    #[test]
    fn a_trial_that_nobody_finished_is_followed_by_another() {
        let (mut breaker, now) = (Breaker::new(PAUSE), Instant::now());
        breaker.failed(now);
        assert_eq!(breaker.ask(now + PAUSE), Ask::Trial);
        assert_eq!(breaker.ask(now + PAUSE * 2), Ask::Trial);
    }
}
