//! Commit back-off: how long a Kafka transaction waits after the one before it.
//!
//! Input: how long the first record of a transaction took to be stored. Output: the pause before the next
//! transaction, between zero and 16 ms.
//!
//! The brokers answer EndTxn before the transaction markers are written, and refuse to begin another
//! transaction until they are (CONCURRENT_TRANSACTIONS). librdkafka then asks again 20 ms later
//! (rdkafka_txnmgr.c, 2.12), though the markers take a few milliseconds. It does not report this, but a
//! record that takes so long was delayed by it. Measured at 1,000 rows/s over 15 partitions: rows are
//! visible after 41 ms at the median without a pause, and after 27 ms with one of 4 ms.

use std::time::Duration;

/// What being put off costs.
const PUT_OFF: Duration = Duration::from_millis(20);
/// What a record takes at most that was not put off, beside its wait for others.
const ANSWER: Duration = Duration::from_millis(4);
/// Beyond this a pause is no better than being put off.
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// By how much the pause grows when it was too short.
const STEP: Duration = Duration::from_millis(2);
/// By how much it shrinks otherwise: one transaction in some twenty finds out how short it may be.
const EASE: Duration = Duration::from_micros(100);

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitBackoff {
    pause: Duration,
    linger: Duration,
}

impl CommitBackoff {
    /// Before producers whose records wait so long for company.
    pub(super) const fn new(linger: Duration) -> Self {
        Self { pause: Duration::ZERO, linger }
    }

    /// The pause before the next transaction.
    pub(super) const fn pause(self) -> Duration {
        self.pause
    }

    /// Takes in how long the first record took, from the begin of its transaction.
    pub(super) fn learn(&mut self, first_stored: Duration) {
        // Both waits run at once.
        self.pause = if first_stored >= PUT_OFF.max(self.linger + ANSWER) {
            (self.pause + STEP).min(PAUSE_MAX)
        } else {
            self.pause.saturating_sub(EASE)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_millis(5);

    /// Brokers that write markers for this long, and answer a record in 3 ms.
    fn pause_before(markers: Duration, linger: Duration) -> Duration {
        let mut backoff = CommitBackoff::new(linger);
        for _ in 0..1_000 {
            let is_put_off = backoff.pause() < markers;
            let wait = if is_put_off { PUT_OFF.max(linger) } else { linger };
            backoff.learn(wait + Duration::from_millis(3));
        }
        backoff.pause()
    }

    #[test]
    fn it_finds_out_how_long_markers_take() {
        for markers in [2, 5, 9].map(Duration::from_millis) {
            for linger in [0, 5, 10].map(Duration::from_millis) {
                let pause = pause_before(markers, linger);
                let is_found = pause + EASE >= markers && pause <= markers + STEP;
                assert!(is_found, "{markers:?}, {linger:?}: {pause:?}");
            }
        }
    }

    #[test]
    fn it_is_none_where_none_is_needed_and_bounded_where_none_helps() {
        assert_eq!(pause_before(Duration::ZERO, LINGER), Duration::ZERO);
        assert_eq!(pause_before(Duration::from_secs(1), LINGER), PAUSE_MAX);
    }
}
