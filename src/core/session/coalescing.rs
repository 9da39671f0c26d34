//! Read coalescing: decides when to read the socket, at once under little load, in batches under much.
//!
//! Input: the number of bytes of each read, and its time. Output: whether to process what is buffered, or
//! how long to wait before the next read. The caller reads the clock and sleeps.
//!
//! It saves work in the server and the Kafka client; two facts were measured (PostgreSQL 15, 2 cores). The
//! walsender issues one `send` per message and pays for waking an eager reader each time; a reader that
//! sleeps 100-300 us under load halves the walsender's cost over TCP. And the Kafka client's cost goes with
//! the number of produce requests: rows handed over in one burst share requests, whatever the configured
//! linger. Only a sleep of the thread that owns the socket does this; a timer on an event loop does not.

use std::time::Duration;

use crate::time::Instant;

/// How the socket at hand is read under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalescingProfile {
    /// Shortest wait between two reads. A unix socket's default buffer holds only some hundred small
    /// messages, so it is kept short there.
    pub delay: Duration,
    /// A batch of reads ends after this long.
    pub batch_max: Duration,
    /// A batch of reads ends when this many bytes are buffered.
    pub batch_bytes: usize,
}

/// Below this many bytes per millisecond (some four small rows) reading at once costs little, and
/// waiting would cost latency. Above it an eager reader pays 10 to 20 us a row for wake-ups, which
/// slows the server down as much as itself.
const SLOW_BYTES_PER_MS: usize = 2 * 1024;
/// Above this many bytes per millisecond (some twenty small rows) reads are batched for longer.
const FAST_BYTES_PER_MS: usize = 10 * 1024;
/// Rows this old have waited in the log already: batching them for some milliseconds more costs
/// nobody anything. Clocks that disagree by more cost a batch's length of latency at medium rates.
const BEHIND: Duration = Duration::from_millis(100);
/// A read in a batch should bring this much: twenty small rows, sixty of the walsender's messages, a
/// third of what a unix socket's default buffer holds of them.
const READ_BYTES: usize = 12 * 1024;
/// The window over which bytes are counted: long enough that a batch's own rhythm does not show.
const WINDOW: Duration = Duration::from_millis(4);

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketRead {
    /// Bytes it brought.
    pub(super) bytes: usize,
    /// Bytes not worked on yet, these included.
    pub(super) buffered: usize,
    /// Age of the newest transaction that was worked on.
    pub(super) lag: Duration,
}

/// The state of a batch of reads.
#[derive(Debug)]
pub(super) struct ReadCoalescing {
    profile: CoalescingProfile,
    window_start: Instant,
    window_bytes: usize,
    bytes_per_ms: usize,
    batch_start: Option<Instant>,
}

impl ReadCoalescing {
    /// Starts as if little came.
    pub(super) const fn new(profile: CoalescingProfile, now: Instant) -> Self {
        Self { profile, window_start: now, window_bytes: 0, bytes_per_ms: 0, batch_start: None }
    }

    /// How long to wait before reading on; `None`: work on what is buffered.
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

    /// How long it takes until a read is worth its wake-up.
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

    /// A thousand reads of `bytes`, one every `step`, unused bytes piling up: lists the answers.
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
