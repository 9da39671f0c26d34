//! Requests from outside to a session.
//!
//! A paused session keeps its stream but does not read frames.

use std::time::Duration;

use super::owed::Owed;

/// Shortest streaming time before new routes end a session. A change of sessions takes 0.1 s, up to
/// a second with transactions, so repeated reloads would stop delivery.
const RECONFIGURES_AFTER: Duration = Duration::from_secs(2);

/// A request to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControlRequest {
    /// Continue.
    Run,
    /// End for new routes, after the open transaction. There is no time limit if a transaction
    /// would otherwise be routed in two ways.
    Reconfigure,
    /// Postgres is shutting down, and a `fast` stop waits for the stream: confirm within seconds,
    /// close, reconnect.
    ServerShutdown,
    /// Confirm within the grace period, acknowledge, exit.
    Drain,
    /// End now; unconfirmed rows are repeated.
    Abort,
}

/// All requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// Most urgent request.
    pub request: ControlRequest,
    /// Whether Postgres is also shutting down.
    pub server_stops: bool,
    /// Time since the request to stop.
    pub told_for: Duration,
    /// Whether nothing may be read.
    pub is_paused: bool,
}

impl Requested {
    /// The request for a session after this streaming time.
    #[must_use]
    pub fn of_session(self, streamed: Duration) -> Self {
        let is_early = self.request == ControlRequest::Reconfigure && streamed < RECONFIGURES_AFTER;
        Self { request: if is_early { ControlRequest::Run } else { self.request }, ..self }
    }

    /// True if a requested stop has nothing left to confirm, or no time.
    pub fn must_end(self, owed: Owed, grace: Duration) -> bool {
        match self.request {
            ControlRequest::Run | ControlRequest::Reconfigure | ControlRequest::ServerShutdown => {
                false
            }
            ControlRequest::Drain => owed.is_nothing() || self.told_for >= grace,
            ControlRequest::Abort => true,
        }
    }
}

/// A session that starts to end, or gets less time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// Unconfirmed records of all sessions.
    pub unconfirmed: u64,
    /// Time limit.
    pub grace: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_routes_wait_until_a_session_has_streamed_for_a_while() {
        let soon = RECONFIGURES_AFTER.saturating_sub(Duration::from_millis(1));
        let asked = |request| Requested {
            request,
            server_stops: false,
            told_for: Duration::ZERO,
            is_paused: false,
        };
        let after = |request, streamed| asked(request).of_session(streamed).request;
        assert_eq!(after(ControlRequest::Reconfigure, soon), ControlRequest::Run);
        let late = after(ControlRequest::Reconfigure, RECONFIGURES_AFTER);
        assert_eq!(late, ControlRequest::Reconfigure);
        for request in
            [ControlRequest::Drain, ControlRequest::ServerShutdown, ControlRequest::Abort]
        {
            assert_eq!(after(request, Duration::ZERO), request);
        }
    }
}
