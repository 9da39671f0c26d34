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

/// How eagerly to gulp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gait {
    /// Sleep between two reads of a gulp. A unix socket's default buffer holds only some hundred
    /// small messages, so it is kept short there.
    pub(super) nap: Duration,
    /// A gulp ends after this long, so that under load a row waits no longer than this for others.
    pub(super) gulp_max: Duration,
    /// A gulp ends when this many bytes are buffered.
    pub(super) gulp_bytes: usize,
}

/// Bytes per window above which the stream counts as busy. At 500 bytes a row this is 20 rows per
/// millisecond; below it, sleeping would cost latency and save nothing.
const BUSY_BYTES_PER_WINDOW: usize = 10 * 1024;
/// The window over which bytes are counted.
const WINDOW: Duration = Duration::from_millis(1);

/// What to do after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Work on what is buffered.
    Work,
    /// Sleep this long, then read again.
    Nap(Duration),
}

/// The state of the gulp.
#[derive(Debug)]
pub(super) struct Pace {
    gait: Gait,
    window_start: Instant,
    window_bytes: usize,
    busy: bool,
    gulp_start: Option<Instant>,
}

impl Pace {
    /// Starts unhurried.
    pub(super) const fn new(gait: Gait, now: Instant) -> Self {
        Self { gait, window_start: now, window_bytes: 0, busy: false, gulp_start: None }
    }

    /// Tells what to do after a read that brought `read` bytes and left `buffered` of them unused.
    pub(super) fn after_read(&mut self, now: Instant, read: usize, buffered: usize) -> Next {
        self.count(now, read);
        if !self.busy || buffered >= self.gait.gulp_bytes {
            self.gulp_start = None;
            return Next::Work;
        }
        let start = *self.gulp_start.get_or_insert(now);
        if now.duration_since(start) >= self.gait.gulp_max {
            self.gulp_start = None;
            return Next::Work;
        }
        Next::Nap(self.gait.nap)
    }

    fn count(&mut self, now: Instant, read: usize) {
        self.window_bytes = self.window_bytes.saturating_add(read);
        let elapsed = now.duration_since(self.window_start);
        if elapsed < WINDOW {
            return;
        }
        let windows =
            usize::try_from(elapsed.as_micros() / WINDOW.as_micros()).unwrap_or(usize::MAX);
        self.busy = self.window_bytes / windows.max(1) > BUSY_BYTES_PER_WINDOW;
        self.window_start = now;
        self.window_bytes = 0;
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

    /// Feeds one read of `bytes` every `step`, unused bytes piling up, and lists the answers.
    fn drive(
        pace: &mut Pace,
        from: Instant,
        step: Duration,
        bytes: usize,
        reads: u32,
    ) -> Vec<Next> {
        let mut buffered = 0;
        (1..=reads)
            .map(|read| {
                buffered += bytes;
                let next = pace.after_read(from + step * read, bytes, buffered);
                if next == Next::Work {
                    buffered = 0;
                }
                next
            })
            .collect()
    }

    #[test]
    fn a_trickle_is_never_delayed() {
        let start = Instant::now();
        let mut pace = Pace::new(GAIT, start);
        let answers = drive(&mut pace, start, Duration::from_millis(1), 600, 1_000);
        assert!(answers.iter().all(|next| *next == Next::Work));
    }

    #[test]
    fn a_flood_is_gulped_and_no_gulp_outlasts_its_limits() {
        let start = Instant::now();
        let mut pace = Pace::new(GAIT, start);
        let answers = drive(&mut pace, start, Duration::from_micros(100), 6_000, 1_000);
        let works = answers.iter().filter(|next| **next == Next::Work).count();
        assert!((15..60).contains(&works), "{works} gulps in 100 ms");
        let longest_run = answers.split(|next| *next == Next::Work).map(<[_]>::len).max();
        assert!(longest_run <= Some(50), "{longest_run:?} naps of 100 us in a gulp of 5 ms");
    }

    #[test]
    fn a_full_buffer_ends_the_gulp() {
        let start = Instant::now();
        let mut pace = Pace::new(GAIT, start);
        drive(&mut pace, start, Duration::from_micros(100), 60_000, 20);
        let now = start + Duration::from_millis(3);
        assert_eq!(pace.after_read(now, 60_000, GAIT.gulp_bytes), Next::Work);
    }

    #[test]
    fn the_flood_ends_at_once() {
        let start = Instant::now();
        let mut pace = Pace::new(GAIT, start);
        drive(&mut pace, start, Duration::from_micros(100), 6_000, 100);
        let later = start + Duration::from_millis(500);
        assert_eq!(pace.after_read(later, 600, 600), Next::Work);
    }
}
