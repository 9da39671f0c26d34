//! A circuit breaker for Redis, so that an outage does not slow down requests. Invariant: after a
//! failure the circuit is open (no calls) for the pause. It is then half-open: one call probes, and
//! only its success closes the circuit.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallMode {
    /// Closed.
    Normal,
    /// Half-open: this call probes whether Redis is back.
    Probe,
    /// Open.
    Bypass,
}

#[derive(Debug)]
pub(super) struct CircuitBreaker {
    pause: Duration,
    until: Option<Instant>,
}

impl CircuitBreaker {
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, until: None }
    }

    pub(super) fn mode(&mut self, now: Instant) -> CallMode {
        match self.until {
            None => CallMode::Normal,
            Some(until) if now < until => CallMode::Bypass,
            Some(_) => {
                // If the probe is cancelled, the next one follows after a pause.
                self.until = Some(now + self.pause);
                CallMode::Probe
            }
        }
    }

    pub(super) fn recovered(&mut self) {
        self.until = None;
    }

    /// Returns whether this failure opened the circuit.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.until.replace(now + self.pause).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn a_failure_bypasses_redis_for_the_pause_and_then_lets_one_call_probe() {
        let (mut breaker, start) = (CircuitBreaker::new(PAUSE), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([breaker.mode(at(0)), breaker.mode(at(1))], [CallMode::Normal; 2]);
        assert!(breaker.failed(at(10)), "it opens");
        assert_eq!([breaker.mode(at(11)), breaker.mode(at(1_009))], [CallMode::Bypass; 2]);
        assert_eq!(breaker.mode(at(1_010)), CallMode::Probe);
        assert_eq!(breaker.mode(at(1_011)), CallMode::Bypass, "one probes, the others do without");
        breaker.recovered();
        assert_eq!(breaker.mode(at(1_012)), CallMode::Normal);
        assert!(breaker.failed(at(1_013)), "it opens again");
    }

    #[test]
    fn each_failed_probe_is_followed_by_a_whole_pause() {
        let (mut breaker, mut now) = (CircuitBreaker::new(PAUSE), Instant::now());
        breaker.failed(now);
        for _ in 0..5 {
            now += PAUSE;
            assert_eq!(breaker.mode(now), CallMode::Probe);
            now += Duration::from_millis(100);
            assert!(!breaker.failed(now), "not the first");
            assert_eq!(breaker.mode(now + PAUSE / 2), CallMode::Bypass);
        }
    }

    #[test]
    fn a_cancelled_probe_is_followed_by_another() {
        let (mut breaker, now) = (CircuitBreaker::new(PAUSE), Instant::now());
        breaker.failed(now);
        assert_eq!(breaker.mode(now + PAUSE), CallMode::Probe);
        assert_eq!(breaker.mode(now + PAUSE * 2), CallMode::Probe);
    }
}
