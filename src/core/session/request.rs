//! Defines the requests that come from outside: run, make room for a session with other routes, close the stream for a
//! server shutdown, drain (confirm what is in flight, then exit) and abort.
//!
//! [`Requested`] combines the most urgent request with how long ago the relay was told to stop, and decides
//! whether it must end between two sessions. [`Draining`] tells the log how many records a session that
//! begins to end still waits for. A pause is no request to end: the session lives on and takes no frame.

use std::time::Duration;

use super::owed::Owed;

/// How long a session streams before it ends for other routes, so that routes which are reloaded again and again hold
/// up nothing: between two sessions nothing is delivered, for 0.1 s, and up to a second with transactions.
const RECONFIGURES_AFTER: Duration = Duration::from_secs(2);

/// What a session is asked to do from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControlRequest {
    /// Go on.
    Run,
    /// The routes have changed: read the open transaction to its end, confirm what is in flight, and end for a session
    /// that has the new ones. Nobody waits for it, so that it has as long as it takes where a transaction would
    /// otherwise be routed in two ways.
    Reconfigure,
    /// Postgres is shutting down: confirm what is in flight within seconds, close the stream,
    /// and come back with a new session. Otherwise a `fast` stop of the server would wait for us.
    ServerShutdown,
    /// Confirm what is in flight within the grace period, acknowledge it, then end for good.
    Drain,
    /// End now; what is unconfirmed will be delivered again by the next run.
    Abort,
}

/// All that is asked from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// The most urgent of it.
    pub request: ControlRequest,
    /// Whether Postgres is shutting down, whatever else is asked for.
    pub server_stops: bool,
    /// How long ago the relay was told to end; zero if it was not.
    pub told_for: Duration,
    /// Whether nothing more is to be read until further notice.
    pub is_paused: bool,
}

impl Requested {
    /// What a session heeds of it that has streamed for this long.
    #[must_use]
    pub fn of_session(self, streamed: Duration) -> Self {
        let is_early = self.request == ControlRequest::Reconfigure && streamed < RECONFIGURES_AFTER;
        Self { request: if is_early { ControlRequest::Run } else { self.request }, ..self }
    }

    /// Whether the relay was told to end, and nothing is left to confirm or no time for it.
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

/// A session has begun to end, or has less time for it than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// Records that wait for their confirmation, those of earlier sessions included.
    pub unconfirmed: u64,
    /// How long they may take.
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
