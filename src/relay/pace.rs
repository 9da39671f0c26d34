//! When to read the socket: at once while there is little to read, in gulps while there is much.
//!
//! Enters: how many bytes each read brought, and when. Leaves: [`Next`], whether to work on what is
//! buffered or to sleep first. Pure: the caller reads the clock and does the sleeping.
//!
//! Two measured facts are behind it (PostgreSQL 15, 2 cores). The walsender issues one `send` per
//! message and pays for waking an eager reader each time; a reader that sleeps 100-300 us under
//! load halves the walsender's cost over TCP. And the Kafka client's cost goes with the number of
//! produce requests: rows handed over in one burst share requests, whatever the configured linger.
//! Only a sleep of the thread that owns the socket does this; a timer on an event loop does not.

use std::time::{Duration, Instant};

/// How the socket at hand is read under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gait {
    /// Sleep between two reads. A unix socket's default buffer holds only some hundred small
    /// messages, so it is kept short there.
    pub(super) nap: Duration,
    /// A gulp ends after this long.
    pub(super) gulp_max: Duration,
    /// A gulp ends when this many bytes are buffered.
    pub(super) gulp_bytes: usize,
}

/// Below this many bytes per millisecond (some four small rows) reading at once costs little, and
/// sleeping would cost latency. Above it an eager reader pays 10 to 20 us a row for wake-ups, which
/// slows the server down as much as itself.
const BRISK_BYTES_PER_MS: usize = 2 * 1024;
/// Above this many bytes per millisecond (some twenty small rows) rows are gathered into bursts.
const FLOOD_BYTES_PER_MS: usize = 10 * 1024;
/// Rows this old have waited in the log already: gathering them for some milliseconds more costs
/// nobody anything. Clocks that disagree by more cost a gulp's length of latency at brisk rates.
const BEHIND: Duration = Duration::from_millis(100);
/// A read of a gulp should bring this much: twenty small rows, sixty of the walsender's messages, a
/// third of what a unix socket's default buffer holds of them.
const SIP_BYTES: usize = 12 * 1024;
/// The window over which bytes are counted: long enough that a gulp's own rhythm does not show.
const WINDOW: Duration = Duration::from_millis(4);

/// What to do after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Work on what is buffered.
    Work,
    /// Sleep this long, then read again.
    Nap(Duration),
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    /// Bytes it brought.
    pub(super) bytes: usize,
    /// Bytes not worked on yet, these included.
    pub(super) buffered: usize,
    /// Age of the newest transaction that was worked on.
    pub(super) lag: Duration,
}

/// The state of the gulp.
#[derive(Debug)]
pub(super) struct Pace {
    gait: Gait,
    window_start: Instant,
    window_bytes: usize,
    bytes_per_ms: usize,
    gulp_start: Option<Instant>,
}

impl Pace {
    /// Starts unhurried.
    pub(super) const fn new(gait: Gait, now: Instant) -> Self {
        Self { gait, window_start: now, window_bytes: 0, bytes_per_ms: 0, gulp_start: None }
    }

    /// Tells what to do after a read.
    pub(super) fn after_read(&mut self, now: Instant, read: Read) -> Next {
        self.count(now, read.bytes);
        let (longest, nap) = if self.bytes_per_ms <= BRISK_BYTES_PER_MS {
            (Duration::ZERO, Duration::ZERO)
        } else if self.bytes_per_ms > FLOOD_BYTES_PER_MS || read.lag > BEHIND {
            (self.gait.gulp_max, self.sip())
        } else {
            (self.gait.nap, self.gait.nap)
        };
        let start = *self.gulp_start.get_or_insert(now);
        if now.duration_since(start) >= longest || read.buffered >= self.gait.gulp_bytes {
            self.gulp_start = None;
            return Next::Work;
        }
        Next::Nap(nap)
    }

    /// How long it takes until a read is worth its wake-up.
    fn sip(&self) -> Duration {
        let filled_us = SIP_BYTES * 1_000 / self.bytes_per_ms.max(1);
        let filled = Duration::from_micros(u64::try_from(filled_us).unwrap_or(u64::MAX));
        filled.clamp(self.gait.nap, (self.gait.gulp_max / 4).max(self.gait.nap))
    }

    fn count(&mut self, now: Instant, bytes: usize) {
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        let elapsed = now.duration_since(self.window_start);
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

    const GAIT: Gait = Gait {
        nap: Duration::from_micros(100),
        gulp_max: Duration::from_millis(5),
        gulp_bytes: 256 * 1024,
    };
    const LIVE: Duration = Duration::from_millis(1);
    const OLD: Duration = Duration::from_secs(5);

    /// A thousand reads of `bytes`, one every `step`, unused bytes piling up: lists the answers.
    fn drive(pace: &mut Pace, step: Duration, bytes: usize, lag: Duration) -> Vec<Next> {
        let from = pace.window_start;
        let mut buffered = 0;
        (1..=1_000)
            .map(|read| {
                buffered += bytes;
                let next = pace.after_read(from + step * read, Read { bytes, buffered, lag });
                if next == Next::Work {
                    buffered = 0;
                }
                next
            })
            .collect()
    }

    fn naps_in_a_row(answers: &[Next]) -> usize {
        answers.split(|next| *next == Next::Work).map(<[_]>::len).max().unwrap_or(0)
    }

    const STEP: Duration = Duration::from_micros(100);

    #[test]
    fn a_trickle_is_never_delayed() {
        let mut pace = Pace::new(GAIT, Instant::now());
        let answers = drive(&mut pace, Duration::from_millis(1), 600, OLD);
        assert_eq!(naps_in_a_row(&answers), 0);
    }

    #[test]
    fn a_brisk_stream_is_delayed_by_one_nap() {
        let mut pace = Pace::new(GAIT, Instant::now());
        let answers = drive(&mut pace, STEP, 600, LIVE);
        assert_eq!(naps_in_a_row(&answers), 1);
    }

    #[test]
    fn a_flood_is_gulped_and_no_gulp_outlasts_its_limits() {
        for (bytes, lag) in [(6_000, LIVE), (600, OLD)] {
            let mut pace = Pace::new(GAIT, Instant::now());
            let answers = drive(&mut pace, STEP, bytes, lag);
            let naps = naps_in_a_row(&answers);
            assert!((40..=50).contains(&naps), "{naps} reads 100 us apart in a gulp of 5 ms");
        }
    }

    #[test]
    fn a_slow_sender_is_given_time_to_fill_a_read() {
        let mut pace = Pace::new(GAIT, Instant::now());
        drive(&mut pace, STEP, 600, OLD);
        assert!((GAIT.nap * 2..=GAIT.gulp_max / 4).contains(&pace.sip()), "{:?}", pace.sip());
        drive(&mut pace, STEP, 60_000, OLD);
        assert_eq!(pace.sip(), GAIT.nap);
    }

    #[test]
    fn a_full_buffer_ends_the_gulp() {
        let mut pace = Pace::new(GAIT, Instant::now());
        let answers = drive(&mut pace, STEP, 60_000, LIVE);
        assert!(naps_in_a_row(&answers[100..]) <= GAIT.gulp_bytes / 60_000);
    }

    #[test]
    fn the_flood_ends_at_once() {
        let start = Instant::now();
        let mut pace = Pace::new(GAIT, start);
        drive(&mut pace, STEP, 6_000, LIVE);
        let read = Read { bytes: 600, buffered: 600, lag: LIVE };
        assert_eq!(pace.after_read(start + Duration::from_secs(1), read), Next::Work);
    }
}
