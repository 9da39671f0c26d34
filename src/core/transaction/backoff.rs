//! The pause between two Kafka transactions.
//!
//! The brokers answer EndTxn before they write the transaction's markers, and refuse another
//! transaction until then (CONCURRENT_TRANSACTIONS). librdkafka retries after 20 ms
//! (rdkafka_txnmgr.c, 2.12), although the markers take a few milliseconds. It does not report the
//! retry, but the first record's time shows it. Measured at 1,000 rows/s over 15 partitions: rows
//! are visible after 41 ms at the median without a pause, after 27 ms with 4 ms.

use std::time::Duration;

/// Cost of librdkafka's retry.
const PUT_OFF: Duration = Duration::from_millis(20);
/// Longest time of a record without the retry, beside its linger.
const ANSWER: Duration = Duration::from_millis(4);
/// A longer pause costs as much as a retry.
const PAUSE_MAX: Duration = Duration::from_millis(16);
const STEP: Duration = Duration::from_millis(2);
/// About one transaction in twenty probes how short the pause may be.
const EASE: Duration = Duration::from_micros(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitBackoff {
    pause: Duration,
    linger: Duration,
}

impl CommitBackoff {
    pub(super) const fn new(linger: Duration) -> Self {
        Self { pause: Duration::ZERO, linger }
    }

    pub(super) const fn pause(self) -> Duration {
        self.pause
    }

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

    /// Brokers write markers for this long, and store a record in 3 ms.
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
