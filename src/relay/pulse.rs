//! Whether the server at the other end of the stream still lives.
//!
//! Enters: when we asked it for a sign of life, and when anything came from it. Leaves: a verdict
//! once it has been silent for too long after a question. What always holds: time in which we did
//! not read does not count; a server that answers, however slowly it sends, is never given up; one
//! that is silent over the same work again is given more time, so that it gets through it. Pure:
//! the caller reads the clock. Owned by `session` and `supervise`.

use std::time::{Duration, Instant};

use crate::lsn::Lsn;
use crate::wal::WalError;

/// Unanswered heartbeats after which nobody is there any more. A live walsender answers within a
/// round trip, unless it decodes something large that it does not publish.
const HEARTBEATS: u32 = 3;
/// Patience at least: a server on a busy machine, or its disk, may stall for seconds.
const SILENCE_MIN: Duration = Duration::from_secs(5);
/// Patience at most grows by 2^6: to half an hour and more with the usual heartbeat.
const DOUBLINGS_MAX: u32 = 6;

/// Listens for a sign of life in one session.
#[derive(Debug)]
pub(super) struct Pulse {
    patience: Duration,
    /// The oldest question that nothing has followed.
    asked: Option<Instant>,
}

impl Pulse {
    /// Silence for `patience` after a question is too long.
    pub(super) const fn new(patience: Duration) -> Self {
        Self { patience, asked: None }
    }

    /// The server is asked for a reply.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Something came; or nothing could, for we did not read.
    pub(super) const fn rest(&mut self) {
        self.asked = None;
    }

    /// Takes note of what a read brought, and of what it did not bring for too long.
    pub(super) fn hear(&mut self, bytes: usize, now: Instant) -> Result<(), WalError> {
        if bytes > 0 {
            self.rest();
            return Ok(());
        }
        match self.lost(now) {
            Some(silence) => Err(WalError::Silent { seconds: silence.as_secs() }),
            None => Ok(()),
        }
    }

    /// How long the server has been silent, once that is too long. Ask after a read that found
    /// nothing, never before.
    pub(super) fn lost(&self, now: Instant) -> Option<Duration> {
        let silence = now.saturating_duration_since(self.asked?);
        (silence >= self.patience).then_some(silence)
    }
}

/// What sessions that ended in silence teach the next one.
#[derive(Debug, Default)]
pub(super) struct Forbearance {
    settled: Lsn,
    doublings: u32,
}

impl Forbearance {
    /// A session ended in silence, having settled everything up to `settled`. No further than the
    /// one before: then it is the work that takes so long, not the network.
    pub(super) fn silent(&mut self, settled: Lsn) {
        if settled > self.settled {
            *self = Self { settled, doublings: 0 };
        } else {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// The patience of the next session, which asks at least every `heartbeat`.
    pub(super) fn patience(&self, heartbeat: Duration) -> Duration {
        (heartbeat * HEARTBEATS).max(SILENCE_MIN) * (1 << self.doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const ALMOST: Duration = Duration::from_secs(29);
    const HEARTBEAT: Duration = Duration::from_secs(10);

    #[test]
    fn silence_counts_from_the_first_unanswered_question() {
        let start = Instant::now();
        let mut pulse = Pulse::new(PATIENCE);
        assert_eq!(pulse.lost(start + 9 * PATIENCE), None, "nobody asked");
        pulse.ask(start);
        pulse.ask(start + ALMOST);
        assert_eq!(pulse.lost(start + ALMOST), None);
        assert_eq!(pulse.lost(start + PATIENCE), Some(PATIENCE));
    }

    #[test]
    fn an_answer_and_time_without_reading_begin_anew() {
        let start = Instant::now();
        let mut pulse = Pulse::new(PATIENCE);
        pulse.ask(start);
        pulse.rest();
        assert_eq!(pulse.lost(start + 2 * PATIENCE), None);
        pulse.ask(start + 2 * PATIENCE);
        assert_eq!(pulse.lost(start + 2 * PATIENCE + ALMOST), None);
        assert!(pulse.lost(start + 3 * PATIENCE).is_some());
    }

    #[test]
    fn a_server_that_is_silent_over_the_same_work_again_gets_more_time() {
        let mut forbearance = Forbearance::default();
        assert_eq!(forbearance.patience(HEARTBEAT), PATIENCE);
        forbearance.silent(Lsn::new(7));
        assert_eq!(forbearance.patience(HEARTBEAT), PATIENCE);
        forbearance.silent(Lsn::new(7));
        forbearance.silent(Lsn::new(0));
        assert_eq!(forbearance.patience(HEARTBEAT), 4 * PATIENCE);
        forbearance.silent(Lsn::new(8));
        assert_eq!(forbearance.patience(HEARTBEAT), PATIENCE);
    }

    #[test]
    fn patience_has_bounds() {
        let mut forbearance = Forbearance::default();
        assert_eq!(forbearance.patience(Duration::from_millis(300)), SILENCE_MIN);
        for _ in 0..100 {
            forbearance.silent(Lsn::ZERO);
        }
        assert_eq!(forbearance.patience(HEARTBEAT), 64 * PATIENCE);
    }
}
