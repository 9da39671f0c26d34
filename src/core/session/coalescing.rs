//! Reads the socket at once under light load, and in batches under heavy load.
//!
//! Measured with PostgreSQL 15 on 2 cores: the walsender issues one `send` per message, which wakes
//! an eager reader. A reader that sleeps 100-300 us under load halves the walsender's cost over
//! TCP, and rows of one burst share produce requests. Only a sleep of the socket's own thread
//! achieves this, not an event loop's timer.

use std::time::Duration;

use crate::time::Instant;

/// How the socket is read under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalescingProfile {
    /// Shortest wait between reads. A unix socket's buffer holds only a few hundred messages, so
    /// its wait is short.
    pub delay: Duration,
    /// Longest batch of reads.
    pub batch_max: Duration,
    /// Buffered bytes that end a batch.
    pub batch_bytes: usize,
}

/// Bytes per millisecond (about four small rows) below which immediate reads cost little. Above,
/// wake-ups cost an eager reader 10 to 20 us per row.
const SLOW_BYTES_PER_MS: usize = 2 * 1024;
/// About twenty small rows, above which batches are longer.
const FAST_BYTES_PER_MS: usize = 10 * 1024;
/// Age of rows that have already waited in the log. A few milliseconds more do not matter. A larger
/// clock difference costs one batch's latency at medium rates.
const BEHIND: Duration = Duration::from_millis(100);
/// Target size of a read: twenty small rows, a third of a unix socket's default buffer.
const READ_BYTES: usize = 12 * 1024;
/// Counting window; longer than a batch's rhythm.
const WINDOW: Duration = Duration::from_millis(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketRead {
    pub(super) bytes: usize,
    /// Including these.
    pub(super) buffered: usize,
    /// Age of the newest transaction.
    pub(super) lag: Duration,
}

#[derive(Debug)]
pub(super) struct ReadCoalescing {
    profile: CoalescingProfile,
    window_start: Instant,
    window_bytes: usize,
    bytes_per_ms: usize,
    batch_start: Option<Instant>,
}

impl ReadCoalescing {
    pub(super) const fn new(profile: CoalescingProfile, now: Instant) -> Self {
        Self { profile, window_start: now, window_bytes: 0, bytes_per_ms: 0, batch_start: None }
    }

    /// `None`: process the buffer.
    pub(super) fn after_read(&mut self, now: Instant, read: SocketRead) -> Option<Duration> {
        self.count(now, read.bytes);
        let CoalescingProfile { delay, batch_max, batch_bytes } = self.profile;
        let (longest, wait) = if self.bytes_per_ms <= SLOW_BYTES_PER_MS {
            (Duration::ZERO, Duration::ZERO)
        } else if self.bytes_per_ms > FAST_BYTES_PER_MS || read.lag > BEHIND {
            (batch_max, self.until_filled())
        } else {
            (delay, delay)
        };
        let start = *self.batch_start.get_or_insert(now);
        if now - start >= longest || read.buffered >= batch_bytes {
            self.batch_start = None;
            return None;
        }
        Some(wait)
    }

    fn until_filled(&self) -> Duration {
        let CoalescingProfile { delay, batch_max, .. } = self.profile;
        let filled_us = READ_BYTES * 1_000 / self.bytes_per_ms.max(1);
        let filled = Duration::from_micros(u64::try_from(filled_us).unwrap_or(u64::MAX));
        filled.clamp(delay, (batch_max / 4).max(delay))
    }

    fn count(&mut self, now: Instant, bytes: usize) {
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        let elapsed = now - self.window_start;
        if elapsed >= WINDOW {
            let microseconds = usize::try_from(elapsed.as_micros()).unwrap_or(usize::MAX);
            self.bytes_per_ms = self.window_bytes.saturating_mul(1_000) / microseconds.max(1);
            self.window_start = now;
            self.window_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: CoalescingProfile = CoalescingProfile {
        delay: Duration::from_micros(100),
        batch_max: Duration::from_millis(5),
        batch_bytes: 256 * 1024,
    };
    const LIVE: Duration = Duration::from_millis(1);
    const OLD: Duration = Duration::from_secs(5);

    fn drive(
        reads: &mut ReadCoalescing,
        step: Duration,
        bytes: usize,
        lag: Duration,
    ) -> Vec<Option<Duration>> {
        let from = reads.window_start;
        let mut buffered = 0;
        (1..=1_000)
            .map(|read| {
                buffered += bytes;
                let next =
                    reads.after_read(from + step * read, SocketRead { bytes, buffered, lag });
                if next.is_none() {
                    buffered = 0;
                }
                next
            })
            .collect()
    }

    fn waits_in_a_row(answers: &[Option<Duration>]) -> usize {
        answers.split(Option::is_none).map(<[_]>::len).max().unwrap_or(0)
    }

    const STEP: Duration = Duration::from_micros(100);

    #[test]
    fn a_slow_stream_is_never_delayed() {
        let mut reads = ReadCoalescing::new(PROFILE, Instant::START);
        let answers = drive(&mut reads, Duration::from_millis(1), 600, OLD);
        assert_eq!(waits_in_a_row(&answers), 0);
    }

    #[test]
    fn a_medium_stream_is_delayed_by_one_wait() {
        let mut reads = ReadCoalescing::new(PROFILE, Instant::START);
        let answers = drive(&mut reads, STEP, 600, LIVE);
        assert_eq!(waits_in_a_row(&answers), 1);
    }

    #[test]
    fn a_fast_stream_is_batched_and_no_batch_outlasts_its_limits() {
        for (bytes, lag) in [(6_000, LIVE), (600, OLD)] {
            let mut reads = ReadCoalescing::new(PROFILE, Instant::START);
            let answers = drive(&mut reads, STEP, bytes, lag);
            let waits = waits_in_a_row(&answers);
            assert!((40..=50).contains(&waits), "{waits} reads 100 us apart in a batch of 5 ms");
        }
    }

    #[test]
    fn a_slow_sender_is_given_time_to_fill_a_read() {
        let mut reads = ReadCoalescing::new(PROFILE, Instant::START);
        drive(&mut reads, STEP, 600, OLD);
        assert!(
            (PROFILE.delay * 2..=PROFILE.batch_max / 4).contains(&reads.until_filled()),
            "{:?}",
            reads.until_filled()
        );
        drive(&mut reads, STEP, 60_000, OLD);
        assert_eq!(reads.until_filled(), PROFILE.delay);
    }

    #[test]
    fn a_full_buffer_ends_the_batch() {
        let mut reads = ReadCoalescing::new(PROFILE, Instant::START);
        let answers = drive(&mut reads, STEP, 60_000, LIVE);
        assert!(waits_in_a_row(&answers[100..]) <= PROFILE.batch_bytes / 60_000);
    }

    #[test]
    fn what_slows_down_is_read_at_once_again() {
        let start = Instant::START;
        let mut reads = ReadCoalescing::new(PROFILE, start);
        drive(&mut reads, STEP, 6_000, LIVE);
        let read = SocketRead { bytes: 600, buffered: 600, lag: LIVE };
        assert_eq!(reads.after_read(start + Duration::from_secs(1), read), None);
    }
}
