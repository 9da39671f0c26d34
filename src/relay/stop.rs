//! How the outside tells the hot thread to stop.
//!
//! Enters: signals, the shutdown canary, the end of a test. Leaves: one small state that the hot
//! thread reads in each turn of its loop. Requests only
//! ever become more urgent. What always holds: what was sent and is unconfirmed has the grace period,
//! counted from the first signal, through however many sessions (G8).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use postrider_core::session::{Owed, Request, Requested};

/// How soon a request is noticed by those who wait for something else.
const TICK: Duration = Duration::from_millis(20);

/// Shared by the signal listener, the canary and the hot thread. One bit for each request, so that
/// a server's shutdown is known also while a signal stands.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicU8>,
    /// When it was first told to end.
    told: Arc<OnceLock<Instant>>,
}

impl Stop {
    /// The most urgent of what is asked for now.
    pub fn requested(&self) -> Request {
        let asked = self.asked.load(Ordering::Acquire);
        [Request::Abort, Request::Drain, Request::ServerShutdown]
            .into_iter()
            .find(|request| asked & bit(*request) != 0)
            .unwrap_or(Request::Run)
    }

    /// Whether Postgres is shutting down, whatever else is asked for.
    pub fn server_stops(&self) -> bool {
        self.asked.load(Ordering::Acquire) & bit(Request::ServerShutdown) != 0
    }

    /// All that is asked for now.
    pub(super) fn asked(&self) -> Requested {
        let (request, server_stops) = (self.requested(), self.server_stops());
        Requested { request, server_stops, told_for: self.told_for() }
    }

    /// Asks, beside what was asked for before.
    pub fn request(&self, request: Request) {
        if request >= Request::Drain {
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
        self.asked().must_end(owed, grace)
    }

    /// Resolves once that is so.
    pub(super) async fn until_end(self, owed: Owed, grace: Duration) {
        while !self.must_end(owed, grace) {
            tokio::time::sleep(TICK).await;
        }
    }

    /// The first signal drains, the second aborts. Returns what is asked for now.
    pub fn signal(&self) -> Request {
        let next = if self.requested() >= Request::Drain { Request::Abort } else { Request::Drain };
        self.request(next);
        next
    }

    /// The session of a server that shut down has ended: the next one starts with a clean slate,
    /// unless a signal came in the meantime.
    pub fn server_shutdown_is_over(&self) {
        self.asked.fetch_and(!bit(Request::ServerShutdown), Ordering::AcqRel);
    }
}

const fn bit(request: Request) -> u8 {
    match request {
        Request::Run => 0,
        Request::ServerShutdown => 1,
        Request::Drain => 2,
        Request::Abort => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_signal_drains_second_aborts() {
        let stop = Stop::default();
        assert_eq!(stop.requested(), Request::Run);
        assert_eq!(stop.signal(), Request::Drain);
        assert_eq!(stop.signal(), Request::Abort);
        assert_eq!(stop.requested(), Request::Abort);
    }

    #[test]
    fn a_signal_outweighs_a_shutdown_of_the_server() {
        let stop = Stop::default();
        stop.request(Request::ServerShutdown);
        assert_eq!(stop.signal(), Request::Drain);
        stop.server_shutdown_is_over();
        assert_eq!((stop.requested(), stop.server_stops()), (Request::Drain, false));
        stop.request(Request::ServerShutdown);
        assert_eq!((stop.requested(), stop.server_stops()), (Request::Drain, true));
    }

    #[test]
    fn a_shutdown_of_the_server_ends_with_the_session() {
        let stop = Stop::default();
        stop.request(Request::ServerShutdown);
        stop.server_shutdown_is_over();
        assert_eq!(stop.requested(), Request::Run);
    }
}
