//! Defines the requests from outside: run, end because of new routes, close the stream for a server
//! shutdown, drain (confirm what is in flight, then exit) and abort.
//!
//! [`Requested`] combines the most urgent request with the time since the stop request, and decides
//! whether the relay must end between two sessions. [`Draining`] gives the log the number of
//! records for which an ending session waits. A pause does not end the session: it keeps its stream
//! but stops taking frames.

use std::time::Duration;

use super::owed::Owed;

/// Shortest streaming time before a session ends for new routes, so that repeated reloads do not
/// stop delivery. Nothing is delivered between two sessions, which takes 0.1 s, and up to a second
/// with transactions.
const RECONFIGURES_AFTER: Duration = Duration::from_secs(2);

/// A request to a session from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControlRequest {
    /// Continue.
    Run,
    /// The routes changed. Read the open transaction to its end, confirm what is in flight, and end
    /// for a session with the new routes. There is no time limit if a transaction would otherwise
    /// be routed in two ways.
    Reconfigure,
    /// Postgres is shutting down. Confirm what is in flight within seconds, close the stream, and
    /// reconnect in a new session. Otherwise a `fast` stop of the server would wait.
    ServerShutdown,
    /// Confirm what is in flight within the grace period, acknowledge it, then exit.
    Drain,
    /// End now. The next run delivers unconfirmed rows again.
    Abort,
}

/// All requests from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// The most urgent request.
    pub request: ControlRequest,
    /// True if Postgres is shutting down, whatever else is requested.
    pub server_stops: bool,
    /// Time since the request to stop; zero without one.
    pub told_for: Duration,
    /// True if nothing may be read until further notice.
    pub is_paused: bool,
}

impl Requested {
    /// The request that applies to a session after this streaming time.
    #[must_use]
    pub fn of_session(self, streamed: Duration) -> Self {
        let is_early = self.request == ControlRequest::Reconfigure && streamed < RECONFIGURES_AFTER;
        Self { request: if is_early { ControlRequest::Run } else { self.request }, ..self }
    }

    /// True after a request to stop if nothing is left to confirm or no time remains.
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

/// An ending session, reported when it starts to end or gets less time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// Unconfirmed records, including those sent by earlier sessions.
    pub unconfirmed: u64,
    /// Time limit for their confirmation.
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
