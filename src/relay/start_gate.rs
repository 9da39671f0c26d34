//! Makes a session cancellable until it starts to send.
//!
//! Invariant: a session that was closed before it crossed never sends records. A stop need not wait
//! for its connection (upholds G8).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const CROSSED: u8 = 1;
const CLOSED: u8 = 2;

#[derive(Debug, Clone, Default)]
pub(super) struct StartGate(Arc<AtomicU8>);

impl StartGate {
    /// `false`: the session was called off and must not send.
    pub(super) fn cross(&self) -> bool {
        self.leave_open(CROSSED)
    }

    /// `false`: the session has crossed, so it must be waited for.
    pub(super) fn close(&self) -> bool {
        self.leave_open(CLOSED)
    }

    fn leave_open(&self, to: u8) -> bool {
        let was = self.0.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire);
        was.map_or_else(|was| was == to, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g8_whoever_comes_first_decides() {
        let start_gate = StartGate::default();
        assert!(start_gate.clone().close());
        assert!(start_gate.close() && !start_gate.cross());

        let start_gate = StartGate::default();
        assert!(start_gate.clone().cross());
        assert!(!start_gate.close());
    }
}
