//! When the next poll is due, of which table, and for which parts of the keys.
//!
//! Input: how polls ended, notifications, the time. Output: whether to poll now, and until when to wait. Invariant: an
//! idle worker polls once in an interval, unless it is notified; one that found rows locked, or parts of the keys,
//! looks again sooner, and less and less often. The caller reads the clock.

use std::time::{Duration, Instant};

use super::request::BUCKETS;
use postrider_core::lsn::Lsn;

/// The first pause of a worker that was kept from rows; it doubles up to the interval.
const RETRY_FIRST: Duration = Duration::from_millis(10);

/// What a worker was told about polling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollOptions {
    /// The number of this worker, from 0, and how many there are.
    pub worker: (u32, u32),
    /// Rows of a batch.
    pub batch: u32,
    /// Between two polls of an idle worker.
    pub interval: Duration,
    /// The channel on which it is told of rows.
    pub notify: Option<String>,
    /// It ends when it has found no row.
    pub once: bool,
    /// Marks were never seen to work: the first batch is one row.
    pub is_first: bool,
}

/// From where positions count, and up to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollPositions {
    /// The first row stands here.
    pub first: Lsn,
    /// What earlier sessions sent up to here, and was not marked, is settled once it comes again or is nobody's.
    pub owed: Lsn,
    /// Above any number of rows: told when no row waits, by a stream that ends then.
    pub end: Lsn,
}

/// How a poll of one table ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Polled {
    /// Parts of the keys that were asked for, and locked.
    pub(super) parts: (u32, u32),
    /// Rows that wait, as many as were asked for at most.
    pub(super) seen: u32,
    /// Of these, locked by others or held back by such.
    pub(super) held_back: u32,
    /// As many were asked for.
    pub(super) window: u32,
}

impl Polled {
    /// Whether others keep some rows from us.
    const fn is_hindered(self) -> bool {
        self.held_back > 0 || self.parts.1 < self.parts.0
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Schedule {
    options: PollOptions,
    tables: usize,
    /// The table that is polled next.
    table: usize,
    /// Tables in which no row was found since one was.
    empty: usize,
    /// All parts are asked for, not those of this worker alone.
    asks_all: bool,
    /// One of these tables was kept from us in part.
    is_hindered: bool,
    /// Rows were skipped by the last poll of that table: so many more are asked for.
    held_back: u32,
    due: Instant,
    retry: Duration,
}

impl Schedule {
    /// Polls at once.
    pub(super) fn new(options: PollOptions, tables: usize, now: Instant) -> Self {
        Self {
            options,
            tables,
            table: 0,
            empty: 0,
            asks_all: false,
            is_hindered: false,
            held_back: 0,
            due: now,
            retry: RETRY_FIRST,
        }
    }

    /// How long until a poll is due.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Somebody says that there are rows.
    pub(super) fn notified(&mut self, now: Instant) {
        if self.due > now {
            (self.due, self.empty, self.asks_all) = (now, 0, false);
        }
    }

    /// The table to poll now, which parts of the keys to ask for, and how many rows.
    pub(super) fn next(&self) -> (usize, (u32, u32), u32) {
        let (worker, workers) = self.options.worker;
        let first = worker * BUCKETS / workers;
        let share = ((worker + 1) * BUCKETS / workers - first).max(1);
        let batch = if self.options.is_first { 1 } else { self.options.batch };
        let parts = if self.asks_all { (first, BUCKETS) } else { (first, share) };
        (self.table, parts, batch.saturating_add(self.held_back))
    }

    /// A batch was marked: the next poll is due at once where there may be more, else when there is a notification.
    pub(super) fn delivered(&mut self, polled: Polled, now: Instant) {
        self.options.is_first = false;
        (self.empty, self.asks_all, self.retry) = (0, false, RETRY_FIRST);
        self.remember(polled);
        let is_full = polled.seen >= polled.window;
        let is_told = self.options.notify.is_some() && self.tables == 1 && !self.options.once;
        self.turn();
        if is_told && !is_full && !polled.is_hindered() {
            self.rest(now);
        } else {
            self.due = now;
        }
    }

    /// No row was to be had. Whether that holds of all tables and parts that others do not have.
    pub(super) fn found_nothing(&mut self, polled: Polled, now: Instant) -> bool {
        self.remember(polled);
        self.is_hindered |= polled.is_hindered();
        self.empty += 1;
        self.turn();
        if self.empty < self.tables {
            self.due = now;
            return false;
        }
        let (waits, is_all) = (self.held_back > 0, self.asks_all || self.options.worker.1 == 1);
        if self.options.once && !is_all {
            (self.asks_all, self.empty, self.due) = (true, 0, now);
            return false;
        }
        if std::mem::take(&mut self.is_hindered) {
            self.due = now + self.retry;
            self.retry = (self.retry * 2).min(self.options.interval);
            (self.empty, self.asks_all) = (0, self.options.once);
        } else {
            self.retry = RETRY_FIRST;
            self.rest(now);
        }
        !waits
    }

    fn remember(&mut self, polled: Polled) {
        // So many as are in the way now, lest they hide all others.
        let most = self.options.batch.saturating_mul(64);
        self.held_back = polled.held_back.min(most);
    }

    fn turn(&mut self) {
        self.table = (self.table + 1) % self.tables;
        if self.tables > 1 {
            self.held_back = 0;
        }
    }

    /// Nothing to do until the interval is over; then for all parts, lest some are nobody's.
    fn rest(&mut self, now: Instant) {
        (self.due, self.empty, self.asks_all) = (now + self.options.interval, 0, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(worker: (u32, u32), notify: bool, once: bool, now: Instant) -> Schedule {
        let notify = notify.then(|| "c".to_owned());
        let options =
            PollOptions { worker, batch: 100, interval: SECOND, notify, once, is_first: false };
        Schedule::new(options, 1, now)
    }

    fn polled(parts: (u32, u32), seen: u32, held_back: u32) -> Polled {
        Polled { parts, seen, held_back, window: 100 }
    }

    #[test]
    fn the_workers_of_a_process_share_the_parts_of_the_keys() {
        let now = Instant::now();
        for workers in 1..=BUCKETS {
            let mut asked = Vec::new();
            for worker in 0..workers {
                let (_, (first, share), _) = schedule((worker, workers), false, false, now).next();
                asked.extend(first..first + share);
            }
            assert_eq!(asked, (0..BUCKETS).collect::<Vec<_>>(), "{workers}");
        }
    }

    #[test]
    fn an_idle_worker_polls_once_in_an_interval_and_when_it_is_told() {
        let now = Instant::now();
        let mut schedule = schedule((1, 4), true, false, now);
        assert!(schedule.pause(now).is_zero());
        assert!(schedule.found_nothing(polled((16, 16), 0, 0), now));
        assert_eq!((schedule.pause(now), schedule.next().1), (SECOND, (16, BUCKETS)));
        schedule.notified(now);
        assert_eq!((schedule.pause(now), schedule.next().1), (Duration::ZERO, (16, 16)));
        schedule.delivered(polled((16, 16), 7, 0), now);
        assert_eq!(schedule.pause(now), SECOND, "whoever commits more says so");
        schedule.notified(now);
        schedule.delivered(polled((16, 16), 100, 0), now);
        assert!(schedule.pause(now).is_zero(), "a batch that is full is not the last one");
    }

    #[test]
    fn without_notifications_it_polls_until_it_finds_nothing() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), false, false, now);
        schedule.delivered(polled((64, 64), 1, 0), now);
        assert!(schedule.pause(now).is_zero());
        assert!(schedule.found_nothing(polled((64, 64), 0, 0), now));
        assert_eq!(schedule.pause(now), SECOND);
    }

    #[test]
    fn who_is_kept_from_rows_looks_again_less_and_less_often() {
        let now = Instant::now();
        let mut schedule = schedule((0, 2), true, false, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.found_nothing(polled((32, 3), 0, 0), now);
            pauses.push(schedule.pause(now).as_millis());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(!schedule.found_nothing(polled((32, 32), 100, 100), now), "rows wait");
        assert_eq!(schedule.next().2, 200, "those that are locked do not hide the others");
    }

    #[test]
    fn who_is_to_end_asks_for_all_parts_first() {
        let now = Instant::now();
        let mut schedule = schedule((0, 4), true, true, now);
        assert!(!schedule.found_nothing(polled((16, 16), 0, 0), now));
        assert_eq!((schedule.pause(now), schedule.next().1), (Duration::ZERO, (0, BUCKETS)));
        assert!(schedule.found_nothing(polled((64, 64), 0, 0), now));
    }
}
