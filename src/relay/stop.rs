//! Stop signal: drain, abort, server shutdown; through [`Control`] also a pause or other routes.
//!
//! Invariant: a request only becomes more urgent. The grace period for confirming sent records
//! starts at the first signal, across sessions (G8).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::control::Control;
use postrider_config::Config;
use postrider_core::session::{ControlRequest, Owed, Requested};

const TICK: Duration = Duration::from_millis(20);

/// Bits of the requests, so that a server shutdown is visible beside a signal.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    asked: Arc<AtomicU8>,
    /// Time of the first request to end.
    told: Arc<OnceLock<Instant>>,
    control: Control,
    /// Generation of the configuration that sessions start with.
    taken: u64,
    /// A pause ends a session that holds locks and no slot.
    pause_ends: bool,
    /// Signal of the process, if this signal belongs to one of its streams.
    process: Option<Arc<Self>>,
}

const SIGNALLED: u8 = 8;

impl StopSignal {
    /// Creates the signal for one of several streams. Requests of this signal also apply to the
    /// stream. A pause, other routes, a server shutdown and the end of the stream apply only there.
    #[must_use]
    pub fn of_stream(&self) -> Self {
        Self { process: Some(Arc::new(self.clone())), ..Self::default() }
    }

    /// Creates the signal for a restart of this stream. The pause and the routes are kept.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self { control: self.control.clone(), process: self.process.clone(), ..Self::default() }
    }

    fn asked(&self) -> u8 {
        let process = self.process.as_ref().map_or(0, |process| process.asked());
        self.asked.load(Ordering::Acquire) | process
    }

    pub fn most_urgent(&self) -> ControlRequest {
        let asked = self.asked();
        [ControlRequest::Abort, ControlRequest::Drain, ControlRequest::ServerShutdown]
            .into_iter()
            .find(|request| asked & bit(*request) != 0)
            .unwrap_or_else(|| self.unhurried())
    }

    fn unhurried(&self) -> ControlRequest {
        let is_over = self.is_paused() && self.pause_ends;
        // A paused session would have to read its transaction to the end for new routes.
        let is_behind = !self.is_paused() && self.control.generation() != self.taken;
        if is_over || is_behind { ControlRequest::Reconfigure } else { ControlRequest::Run }
    }

    pub const fn control(&self) -> &Control {
        &self.control
    }

    pub(super) fn is_paused(&self) -> bool {
        self.control.is_paused()
    }

    #[must_use]
    pub(super) fn ending_for_pause(self) -> Self {
        Self { pause_ends: true, ..self }
    }

    /// Whether a pause prevents the start of the next session.
    pub(super) fn holds_sessions(&self) -> bool {
        self.pause_ends && self.is_paused() && self.most_urgent() < ControlRequest::Drain
    }

    /// Changed configuration for the next session, to be [taken](Self::take).
    pub(super) fn next_config(&self) -> Option<(u64, Arc<Config>)> {
        self.control.config().filter(|(generation, _)| *generation != self.taken)
    }

    pub(super) const fn take(&mut self, generation: u64) {
        self.taken = generation;
    }

    /// Whether Postgres is shutting down, regardless of other requests.
    pub fn server_stops(&self) -> bool {
        self.asked() & bit(ControlRequest::ServerShutdown) != 0
    }

    pub(super) fn snapshot(&self) -> Requested {
        let (request, server_stops) = (self.most_urgent(), self.server_stops());
        let is_paused = self.is_paused();
        Requested { request, server_stops, told_for: self.told_for(), is_paused }
    }

    pub fn request(&self, request: ControlRequest) {
        if request >= ControlRequest::Drain {
            self.told.get_or_init(Instant::now);
        }
        self.asked.fetch_or(bit(request), Ordering::AcqRel);
    }

    pub fn told_for(&self) -> Duration {
        let own = self.told.get().map_or(Duration::ZERO, Instant::elapsed);
        self.process.as_ref().map_or(own, |process| own.max(process.told_for()))
    }

    /// A stop was requested, and no records are left to confirm or the time for it is over.
    pub(super) fn must_end(&self, owed: Owed, grace: Duration) -> bool {
        self.snapshot().must_end(owed, grace)
    }

    pub(super) async fn until_end(self, owed: Owed, grace: Duration) {
        while !self.must_end(owed, grace) {
            tokio::time::sleep(TICK).await;
        }
    }

    /// The first signal drains, the second one aborts. Returns the current request.
    pub fn signal(&self) -> ControlRequest {
        // After a drain through the API, the next signal is the first one.
        let before = self.asked.fetch_or(SIGNALLED, Ordering::AcqRel);
        let next =
            if before & SIGNALLED != 0 { ControlRequest::Abort } else { ControlRequest::Drain };
        self.request(next);
        next
    }

    /// Clears a server shutdown after its session. A signal received since then stays.
    pub fn server_shutdown_is_over(&self) {
        self.asked.fetch_and(!bit(ControlRequest::ServerShutdown), Ordering::AcqRel);
    }
}

const fn bit(request: ControlRequest) -> u8 {
    match request {
        ControlRequest::Run | ControlRequest::Reconfigure => 0,
        ControlRequest::ServerShutdown => 1,
        ControlRequest::Drain => 2,
        ControlRequest::Abort => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_config::{FileChoice, Inputs, load};

    #[test]
    fn first_signal_drains_second_aborts() {
        let stop = StopSignal::default();
        assert_eq!(stop.most_urgent(), ControlRequest::Run);
        assert_eq!(stop.signal(), ControlRequest::Drain);
        assert_eq!(stop.signal(), ControlRequest::Abort);
        assert_eq!(stop.most_urgent(), ControlRequest::Abort);
    }

    #[test]
    fn what_is_asked_of_the_process_is_asked_of_each_stream() {
        let process = StopSignal::default();
        let [one, other] = [process.of_stream(), process.of_stream()];
        one.request(ControlRequest::ServerShutdown);
        one.control().pause();
        assert!(one.server_stops() && !other.server_stops() && !other.is_paused());
        one.request(ControlRequest::Abort);
        assert_eq!(
            (one.most_urgent(), other.most_urgent()),
            (ControlRequest::Abort, ControlRequest::Run)
        );
        let one = one.anew();
        assert!(one.most_urgent() == ControlRequest::Run && one.is_paused());
        process.signal();
        for stream in [one, other] {
            assert_eq!(stream.most_urgent(), ControlRequest::Drain);
            assert_eq!(stream.told_for().is_zero(), process.told_for().is_zero());
        }
    }

    #[test]
    fn a_signal_that_follows_a_drain_by_the_api_aborts_nothing() {
        let stop = StopSignal::default();
        stop.request(ControlRequest::Drain);
        assert_eq!(stop.signal(), ControlRequest::Drain);
        assert_eq!(stop.most_urgent(), ControlRequest::Drain);
        assert_eq!(stop.signal(), ControlRequest::Abort);
    }

    #[test]
    fn other_routes_end_a_session_unless_it_is_paused() {
        let inputs = Inputs {
            file: FileChoice::Absent,
            variables: vec![("PGUSER".to_owned(), "app".to_owned())],
            ..Inputs::default()
        };
        let config = load(&inputs, &|_| Vec::new()).unwrap().config;
        let mut stop = StopSignal::default();
        stop.control().pause();
        stop.control().reconfigure(config);
        assert_eq!(stop.most_urgent(), ControlRequest::Run);
        stop.control().resume();
        assert_eq!(stop.most_urgent(), ControlRequest::Reconfigure);
        let (generation, _) = stop.next_config().unwrap();
        stop.take(generation);
        assert!(stop.next_config().is_none() && stop.most_urgent() == ControlRequest::Run);
    }

    #[test]
    fn a_pause_leaves_a_stream_open_and_ends_a_session_that_holds_locks() {
        let stop = StopSignal::default();
        let polls = stop.clone().ending_for_pause();
        stop.control().pause();
        assert_eq!(stop.most_urgent(), ControlRequest::Run);
        assert!(stop.snapshot().is_paused && !stop.holds_sessions());
        assert!(polls.most_urgent() == ControlRequest::Reconfigure && polls.holds_sessions());
        stop.request(ControlRequest::Drain);
        assert!(!polls.holds_sessions(), "a stop goes before");
        stop.control().resume();
        assert!(!stop.snapshot().is_paused);
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
