//! A session's phases (`Phase`) and the reasons for its end ([`End`]).
//!
//! An ending session never streams again, and its deadline only moves closer, unless a session that
//! ends for new routes gets a request to stop.

use std::time::Duration;

use crate::time::Instant;

/// How a session ended. If several reasons apply, the last in this list wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The mode's position was reached.
    ModeOver,
    /// The routes changed. Everything sent is confirmed, and no transaction is sent in part.
    Reconfigured,
    /// Postgres is shutting down.
    ServerShutdown,
    /// Stopped by a signal, with everything confirmed.
    Drained,
    /// Everything committed before the relay's start is confirmed.
    CaughtUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Streaming,
    /// Reads to the end of the open transaction and confirms.
    Ending {
        end: End,
        deadline: Instant,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    On,
    Paused,
}

impl Phase {
    /// Repeated calls change nothing.
    pub(super) fn towards(self, end: End, grace: Duration, now: Instant) -> Self {
        match self {
            Self::Streaming => Self::Ending { end, deadline: now + grace },
            // The previous reason had no time limit.
            Self::Ending { end: End::Reconfigured, .. } if end > End::Reconfigured => {
                Self::Ending { end, deadline: now + grace }
            }
            Self::Ending { end: current, deadline } => {
                Self::Ending { end: current.max(end), deadline: deadline.min(now + grace) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(3);
    const LATE: Duration = Duration::from_secs(25);

    #[test]
    fn saying_it_again_postpones_nothing() {
        let now = Instant::START;
        let first = Phase::Streaming.towards(End::Drained, LATE, now);
        assert_eq!(first, Phase::Ending { end: End::Drained, deadline: now + LATE });
        assert_eq!(first.towards(End::Drained, LATE, now + SOON), first);
    }

    #[test]
    fn a_drain_that_learns_of_a_server_that_stops_hurries() {
        let now = Instant::START;
        let phase = Phase::Streaming.towards(End::Drained, LATE, now);
        let hurried = phase.towards(End::ServerShutdown, SOON, now);
        assert_eq!(hurried, Phase::Ending { end: End::Drained, deadline: now + SOON });
        assert_eq!(hurried.towards(End::Drained, LATE, now), hurried);
    }

    #[test]
    fn a_stop_that_meets_a_change_of_routes_has_its_own_time() {
        let (now, later) = (Instant::START, Instant::START + LATE);
        let phase = Phase::Streaming.towards(End::Reconfigured, SOON, now);
        let stopping = phase.towards(End::Drained, LATE, later);
        assert_eq!(stopping, Phase::Ending { end: End::Drained, deadline: later + LATE });
        assert_eq!(
            stopping.towards(End::Reconfigured, SOON, later),
            Phase::Ending { end: End::Drained, deadline: later + SOON }
        );
    }

    #[test]
    fn a_signal_outweighs_what_would_be_followed_by_another_session() {
        let now = Instant::START;
        for before in [End::ModeOver, End::ServerShutdown] {
            let phase =
                Phase::Streaming.towards(before, SOON, now).towards(End::Drained, LATE, now);
            assert_eq!(phase, Phase::Ending { end: End::Drained, deadline: now + SOON });
        }
    }
}
