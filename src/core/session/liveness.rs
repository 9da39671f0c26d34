//! Detects that the Postgres server no longer answers.
//!
//! `TimeoutEscalation` doubles the timeout after silence without progress, because a large decoding
//! may be the reason. Time without reads does not count. A server that sends, however slowly, is
//! never given up.

use std::time::Duration;

use crate::lsn::Lsn;
use crate::time::Instant;

/// Unanswered heartbeats until the server counts as gone. A live walsender answers within a round
/// trip, unless it decodes something large that it does not publish.
const HEARTBEATS: u32 = 3;
/// Minimum timeout: a busy server or its disk may stall for seconds.
const SILENCE_MIN: Duration = Duration::from_secs(5);
/// 2^6 is more than half an hour with the usual heartbeat.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Debug)]
pub(super) struct Liveness {
    timeout: Duration,
    /// Oldest unanswered request.
    asked: Option<Instant>,
}

impl Liveness {
    pub(super) const fn new(timeout: Duration) -> Self {
        Self { timeout, asked: None }
    }

    pub(super) fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Restarts the measurement: bytes arrived, or the session did not read.
    pub(super) const fn rest(&mut self) {
        self.asked = None;
    }

    pub(super) fn heard(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
        if bytes > 0 {
            self.rest();
        }
        self.lost(now)
    }

    /// Ask only after a read, which may contain the answer.
    fn lost(&self, now: Instant) -> Option<Duration> {
        let silence = now - self.asked?;
        (silence >= self.timeout).then_some(silence)
    }
}

/// Timeout after sessions that ended in silence.
#[derive(Debug, Default)]
pub struct TimeoutEscalation {
    settled: Lsn,
    doublings: u32,
}

impl TimeoutEscalation {
    /// Handles an end in silence. Without progress the server's work is slow, not the network.
    pub fn silent(&mut self, settled: Lsn) {
        if settled > self.settled {
            *self = Self { settled, doublings: 0 };
        } else {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// The next session's timeout.
    pub fn timeout(&self, heartbeat: Duration) -> Duration {
        (heartbeat * HEARTBEATS).max(SILENCE_MIN) * (1 << self.doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const ALMOST: Duration = Duration::from_secs(29);
    const HEARTBEAT: Duration = Duration::from_secs(10);

    #[test]
    fn silence_counts_from_the_first_unanswered_question() {
        let start = Instant::START;
        let mut liveness = Liveness::new(TIMEOUT);
        assert_eq!(liveness.lost(start + 9 * TIMEOUT), None, "nobody asked");
        liveness.ask(start);
        liveness.ask(start + ALMOST);
        assert_eq!(liveness.lost(start + ALMOST), None);
        assert_eq!(liveness.lost(start + TIMEOUT), Some(TIMEOUT));
    }

    #[test]
    fn an_answer_and_time_without_reading_begin_anew() {
        let start = Instant::START;
        let mut liveness = Liveness::new(TIMEOUT);
        liveness.ask(start);
        liveness.rest();
        assert_eq!(liveness.lost(start + 2 * TIMEOUT), None);
        liveness.ask(start + 2 * TIMEOUT);
        assert_eq!(liveness.lost(start + 2 * TIMEOUT + ALMOST), None);
        assert!(liveness.lost(start + 3 * TIMEOUT).is_some());
    }

    #[test]
    fn a_server_that_is_silent_over_the_same_work_again_gets_more_time() {
        let mut escalation = TimeoutEscalation::default();
        assert_eq!(escalation.timeout(HEARTBEAT), TIMEOUT);
        escalation.silent(Lsn::new(7));
        assert_eq!(escalation.timeout(HEARTBEAT), TIMEOUT);
        escalation.silent(Lsn::new(7));
        escalation.silent(Lsn::new(0));
        assert_eq!(escalation.timeout(HEARTBEAT), 4 * TIMEOUT);
        escalation.silent(Lsn::new(8));
        assert_eq!(escalation.timeout(HEARTBEAT), TIMEOUT);
    }

    #[test]
    fn timeout_has_bounds() {
        let mut escalation = TimeoutEscalation::default();
        assert_eq!(escalation.timeout(Duration::from_millis(300)), SILENCE_MIN);
        for _ in 0..100 {
            escalation.silent(Lsn::ZERO);
        }
        assert_eq!(escalation.timeout(HEARTBEAT), 64 * TIMEOUT);
    }
}
