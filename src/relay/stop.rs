//! The stop signal: tells the hot thread to drain, to abort, or that the server shuts down.
//!
//! Input: signals, the detection of a server shutdown, tests. Output: one atomic state that the hot thread
//! reads in each turn. A request only becomes more urgent. Invariant: the grace period for confirming what
//! was sent is counted from the first signal, across sessions (G8).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use postrider_core::session::{ControlRequest, Owed, Requested};

/// How soon a request is noticed by those who wait for something else.
const TICK: Duration = Duration::from_millis(20);

/// Shared by the signal listener, the canary and the hot thread. One bit for each request, so that
/// a server's shutdown is known also while a signal stands.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    asked: Arc<AtomicU8>,
    /// When it was first told to end.
    told: Arc<OnceLock<Instant>>,
}

impl StopSignal {
    /// The most urgent of what is asked for now.
    pub fn most_urgent(&self) -> ControlRequest {
        let asked = self.asked.load(Ordering::Acquire);
        [ControlRequest::Abort, ControlRequest::Drain, ControlRequest::ServerShutdown]
            .into_iter()
            .find(|request| asked & bit(*request) != 0)
            .unwrap_or(ControlRequest::Run)
    }

    /// Whether Postgres is shutting down, whatever else is asked for.
    pub fn server_stops(&self) -> bool {
        self.asked.load(Ordering::Acquire) & bit(ControlRequest::ServerShutdown) != 0
    }

    /// All that is asked for now.
    pub(super) fn snapshot(&self) -> Requested {
        let (request, server_stops) = (self.most_urgent(), self.server_stops());
        Requested { request, server_stops, told_for: self.told_for() }
    }

    /// Asks, beside what was asked for before.
    pub fn request(&self, request: ControlRequest) {
        if request >= ControlRequest::Drain {
            self.told.get_or_init(Instant::now);
        }
        self.asked.fetch_or(bit(request), Ordering::AcqRel);
    }

    /// How long ago it was first told to end; zero if it was not.
    pub fn told_for(&self) -> Duration {
        self.told.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Whether it was told to end, and nothing is left to confirm or no time for it.
    pub(super) fn must_end(&self, owed: Owed, grace: Duration) -> bool {
        self.snapshot().must_end(owed, grace)
    }

    /// Resolves once that is so.
    pub(super) async fn until_end(self, owed: Owed, grace: Duration) {
        while !self.must_end(owed, grace) {
            tokio::time::sleep(TICK).await;
        }
    }

    /// The first signal drains, the second aborts. Returns what is asked for now.
    pub fn signal(&self) -> ControlRequest {
        let next = if self.most_urgent() >= ControlRequest::Drain {
            ControlRequest::Abort
        } else {
            ControlRequest::Drain
        };
        self.request(next);
        next
    }

    /// The session of a server that shut down has ended: the next one starts with a clean slate,
    /// unless a signal came in the meantime.
    pub fn server_shutdown_is_over(&self) {
        self.asked.fetch_and(!bit(ControlRequest::ServerShutdown), Ordering::AcqRel);
    }
}

const fn bit(request: ControlRequest) -> u8 {
    match request {
        ControlRequest::Run => 0,
        ControlRequest::ServerShutdown => 1,
        ControlRequest::Drain => 2,
        ControlRequest::Abort => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_signal_drains_second_aborts() {
        let stop = StopSignal::default();
        assert_eq!(stop.most_urgent(), ControlRequest::Run);
        assert_eq!(stop.signal(), ControlRequest::Drain);
        assert_eq!(stop.signal(), ControlRequest::Abort);
        assert_eq!(stop.most_urgent(), ControlRequest::Abort);
    }

    #[test]
    fn a_signal_outweighs_a_shutdown_of_the_server() {
        let stop = StopSignal::default();
        stop.request(ControlRequest::ServerShutdown);
        assert_eq!(stop.signal(), ControlRequest::Drain);
        stop.server_shutdown_is_over();
        assert_eq!((stop.most_urgent(), stop.server_stops()), (ControlRequest::Drain, false));
        stop.request(ControlRequest::ServerShutdown);
        assert_eq!((stop.most_urgent(), stop.server_stops()), (ControlRequest::Drain, true));
    }

    #[test]
    fn a_shutdown_of_the_server_ends_with_the_session() {
        let stop = StopSignal::default();
        stop.request(ControlRequest::ServerShutdown);
        stop.server_shutdown_is_over();
        assert_eq!(stop.most_urgent(), ControlRequest::Run);
    }
}
