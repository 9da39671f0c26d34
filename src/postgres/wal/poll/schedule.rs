//! Decides when to poll, which table, which parts of the keys, and how far to look.
//!
//! Invariant: an idle table is polled once per interval, or after a notification. A table with
//! locked rows or parts is polled sooner, with growing pauses. A look filled with locked rows is
//! repeated at once, twice as far. The caller reads the clock.

use std::time::{Duration, Instant};

use super::batch::About;
use super::request::BUCKETS;
use postrider_core::lsn::Lsn;

/// Doubles up to the interval.
const RETRY_FIRST: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollOptions {
    /// Number of this worker, from 0, and number of workers.
    pub worker: (u32, u32),
    pub batch: u32,
    pub interval: Duration,
    pub notify: Option<String>,
    pub once: bool,
    /// True until marks are known to work: the first batch is one row.
    pub is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollPositions {
    pub first: Lsn,
    /// End of rows that earlier sessions sent but did not mark.
    pub owed: Lsn,
    /// End above any number of rows; reported when no row waits.
    pub end: Lsn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reach {
    pub(super) rows: u32,
    pub(super) window: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Polled {
    pub(super) asked: u32,
    /// Bits of the parts.
    pub(super) locked: u64,
    pub(super) reach: Reach,
    pub(super) taken: u32,
    /// Rows that are locked, or wait behind locked rows.
    pub(super) held_back: u32,
    /// Identifies the first of them.
    pub(super) first_held: u32,
    pub(super) has_keys: bool,
    pub(super) took: Duration,
}

impl Polled {
    pub(super) fn hold_back(&mut self, about: About) {
        if self.held_back == 0 {
            self.first_held = about.part;
        }
        self.held_back = self.held_back.saturating_add(about.held_back());
    }

    pub(super) const fn held(self) -> (u32, u32) {
        (self.held_back, self.first_held)
    }

    const fn is_hindered(self) -> bool {
        self.held_back > 0 || self.locked.count_ones() < self.asked
    }

    const fn is_full(self) -> bool {
        self.taken >= self.reach.rows || self.is_cut_short()
    }

    const fn is_cut_short(self) -> bool {
        let seen = self.taken.saturating_add(self.held_back);
        self.has_keys && self.taken < self.reach.rows && seen >= self.reach.window
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    Open,
    /// `waits`: rows or parts are held back.
    Over {
        waits: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct TableTurn {
    due: Instant,
    /// Earliest time to which a notification advances the next poll.
    rested: Instant,
    retry: Duration,
    window: u32,
    asks_all: bool,
    /// Set if no row was taken since; true if rows wait for another session.
    waits: Option<bool>,
    /// Parts seen without a waiting row, one bit each.
    cleared: u64,
}

#[derive(Debug)]
pub(super) struct Schedule {
    options: PollOptions,
    tables: Vec<TableTurn>,
}

impl Schedule {
    pub(super) fn new(options: PollOptions, tables: usize, now: Instant) -> Self {
        let turn = TableTurn {
            due: now,
            rested: now,
            retry: RETRY_FIRST,
            window: 0,
            asks_all: false,
            waits: None,
            cleared: 0,
        };
        Self { options, tables: vec![turn; tables] }
    }

    pub(super) fn pause(&self, now: Instant) -> Duration {
        let due = self.tables.iter().map(|table| table.due).min();
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }

    pub(super) fn notified(&mut self, now: Instant) {
        for table in self.tables.iter_mut().filter(|table| table.due > now) {
            (table.due, table.asks_all) = (now.max(table.rested), false);
            table.waits = None;
        }
    }

    pub(super) fn next(&self) -> (usize, (u32, u32), Reach) {
        let (worker, workers) = self.options.worker;
        let first = worker * BUCKETS / workers;
        let share = ((worker + 1) * BUCKETS / workers - first).max(1);
        let Some((number, table)) =
            self.tables.iter().enumerate().min_by_key(|(_, table)| table.due)
        else {
            unreachable!("there is a table to poll")
        };
        let parts = if table.asks_all { (first, BUCKETS) } else { (first, share) };
        let rows = if self.options.is_first { 1 } else { self.options.batch };
        (number, parts, Reach { rows, window: table.window.max(rows) })
    }

    /// The next poll is due at once if more rows may wait.
    pub(super) fn delivered(&mut self, table: usize, polled: Polled, now: Instant) {
        self.options.is_first = false;
        for other in &mut self.tables {
            other.cleared = 0;
            // A run that ends when no row waits polls the empty tables once again.
            if other.waits.take() == Some(false) && self.options.once {
                other.due = now;
            }
        }
        let is_told = self.options.notify.is_some() && !self.options.once;
        let interval = self.options.interval;
        let turn = self.after(table, polled);
        (turn.due, turn.retry, turn.asks_all) = (now, RETRY_FIRST, false);
        if is_told && !polled.is_full() && !polled.is_hindered() {
            turn.rest(now, interval);
        }
    }

    pub(super) fn found_nothing(&mut self, table: usize, polled: Polled, now: Instant) -> Round {
        let PollOptions { once, worker: (_, workers), interval, .. } = self.options;
        let turn = self.after(table, polled);
        if polled.held_back == 0 {
            turn.cleared |= polled.locked;
        }
        if polled.is_cut_short() {
            turn.due = now;
            return Round::Open;
        }
        if once && !turn.asks_all && workers > 1 {
            (turn.asks_all, turn.due) = (true, now);
            return Round::Open;
        }
        // Another worker may hold some parts at any time: each must be free at one look, not all at
        // one.
        turn.waits = Some(polled.held_back > 0 || turn.cleared.count_ones() < polled.asked);
        if polled.is_hindered() {
            // A look over many rows takes at most half of the time.
            turn.due = now + turn.retry.max(polled.took);
            turn.retry = (turn.retry * 2).min(interval);
            turn.asks_all = once;
        } else {
            turn.retry = RETRY_FIRST;
            turn.rest(now, interval);
        }
        if polled.held_back > 0 {
            turn.rested = now + polled.took;
        }
        let known: Option<Vec<bool>> = self.tables.iter().map(|table| table.waits).collect();
        known.map_or(Round::Open, |known| Round::Over { waits: known.contains(&true) })
    }

    /// The next look is twice as far if held-back rows hid all others.
    fn after(&mut self, table: usize, polled: Polled) -> &mut TableTurn {
        let Some(turn) = self.tables.get_mut(table) else {
            unreachable!("table {table} was polled")
        };
        turn.window = match polled.held_back {
            0 => 0,
            _ if !polled.has_keys => 0,
            held_back => self.options.batch.saturating_add(held_back),
        };
        if polled.is_cut_short() {
            turn.window = turn.window.max(polled.reach.window.saturating_mul(2));
        }
        turn
    }
}

impl TableTurn {
    /// Requests all parts next, in case some have no worker.
    fn rest(&mut self, now: Instant, interval: Duration) {
        (self.due, self.asks_all) = (now + interval, true);
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

    fn polled((asked, locked): (u32, u32), taken: u32, held_back: u32) -> Polled {
        let reach = Reach { rows: 100, window: 100 };
        let locked = u64::MAX.checked_shr(BUCKETS - locked).unwrap_or(0);
        Polled { asked, locked, reach, taken, held_back, has_keys: true, ..Polled::default() }
    }

    const OVER: Round = Round::Over { waits: false };

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
        assert_eq!(schedule.found_nothing(0, polled((16, 16), 0, 0), now), OVER);
        assert_eq!((schedule.pause(now), schedule.next().1), (SECOND, (16, BUCKETS)));
        schedule.notified(now);
        assert_eq!((schedule.pause(now), schedule.next().1), (Duration::ZERO, (16, 16)));
        schedule.delivered(0, polled((16, 16), 7, 0), now);
        assert_eq!(schedule.pause(now), SECOND, "whoever commits more says so");
        schedule.notified(now);
        schedule.delivered(0, polled((16, 16), 100, 0), now);
        assert!(schedule.pause(now).is_zero(), "a batch that is full is not the last one");
    }

    #[test]
    fn without_notifications_it_polls_until_it_finds_nothing() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), false, false, now);
        schedule.delivered(0, polled((64, 64), 1, 0), now);
        assert!(schedule.pause(now).is_zero());
        assert_eq!(schedule.found_nothing(0, polled((64, 64), 0, 0), now), OVER);
        assert_eq!(schedule.pause(now), SECOND);
    }

    #[test]
    fn who_is_kept_from_rows_looks_again_less_and_less_often() {
        let now = Instant::now();
        let mut schedule = schedule((0, 2), true, false, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.found_nothing(0, polled((32, 3), 0, 0), now);
            pauses.push(schedule.pause(now).as_millis());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    /// Windows until the first row behind `blocked` rows is taken.
    fn looks(schedule: &mut Schedule, blocked: u32, now: Instant) -> Vec<u32> {
        let mut windows = Vec::new();
        loop {
            let (table, (_, share), reach) = schedule.next();
            windows.push(reach.window);
            let found = Polled { reach, ..polled((share, share), 0, blocked) };
            if reach.window > blocked {
                schedule.delivered(table, Polled { taken: 1, ..found }, now);
                return windows;
            }
            let cut_short = Polled { held_back: reach.window, ..found };
            assert_eq!(schedule.found_nothing(table, cut_short, now), Round::Open);
            assert!(schedule.pause(now).is_zero(), "the rest is looked at without a pause");
        }
    }

    #[test]
    fn a_look_past_locked_rows_is_doubled_and_not_forgotten() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), true, false, now);
        schedule.options.is_first = true;
        let windows = looks(&mut schedule, 70_000, now);
        assert_eq!(windows.len(), 12, "{windows:?}");
        let (_, _, reach) = schedule.next();
        assert_eq!(reach, Reach { rows: 100, window: 70_100 });
        let free = Polled { reach, ..polled((64, 64), 5, 0) };
        schedule.delivered(0, free, now);
        assert_eq!(schedule.next().2, Reach { rows: 100, window: 100 }, "once they are free");
    }

    #[test]
    fn each_table_has_a_window_and_a_pause_of_its_own() {
        let now = Instant::now();
        let options = schedule((0, 1), false, false, now).options;
        let mut schedule = Schedule::new(options, 2, now);
        assert_eq!(looks(&mut schedule, 150, now), [100, 200]);
        schedule.found_nothing(1, polled((64, 64), 0, 0), now);
        let (table, _, reach) = schedule.next();
        assert_eq!((table, reach.window), (0, 250));
        schedule.found_nothing(0, Polled { reach, ..polled((64, 64), 0, 150) }, now);
        assert_eq!(
            schedule.pause(now),
            RETRY_FIRST,
            "the other one is not due before the interval"
        );
    }

    #[test]
    fn a_run_that_ends_remembers_every_table_that_has_a_row() {
        let now = Instant::now();
        let options = schedule((0, 1), false, true, now).options;
        let mut schedule = Schedule::new(options, 2, now);
        let locked = polled((64, 64), 0, 1);
        let empty = polled((64, 64), 0, 0);
        assert_eq!(schedule.found_nothing(0, locked, now), Round::Open);
        assert_eq!(schedule.found_nothing(1, empty, now), Round::Over { waits: true });
        schedule.delivered(0, polled((64, 64), 1, 0), now);
        assert!(schedule.pause(now).is_zero(), "both are looked at once more");
        assert_eq!(schedule.found_nothing(1, empty, now), Round::Open);
        assert_eq!(schedule.found_nothing(0, empty, now), OVER);
    }

    #[test]
    fn rows_without_keys_are_not_looked_past() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), true, false, now);
        let all = Polled { has_keys: false, ..polled((1, 1), 0, 100) };
        assert_eq!(schedule.found_nothing(0, all, now), Round::Over { waits: true });
        assert_eq!((schedule.pause(now), schedule.next().2.window), (RETRY_FIRST, 100));
    }

    #[test]
    fn a_long_look_takes_half_of_the_time_at_most() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), true, false, now);
        let long = Polled { took: 10 * SECOND, ..polled((64, 64), 0, 50) };
        schedule.found_nothing(0, long, now);
        assert_eq!(schedule.pause(now), 10 * SECOND);
        schedule.notified(now);
        assert_eq!(schedule.pause(now), 10 * SECOND, "whoever notifies");
    }

    #[test]
    fn who_is_to_end_asks_for_all_parts_first() {
        let now = Instant::now();
        let mut schedule = schedule((0, 4), true, true, now);
        assert_eq!(schedule.found_nothing(0, polled((16, 16), 0, 0), now), Round::Open);
        assert_eq!((schedule.pause(now), schedule.next().1), (Duration::ZERO, (0, BUCKETS)));
        let another_has_some = polled((64, 60), 0, 0);
        let waits = Round::Over { waits: true };
        assert_eq!(schedule.found_nothing(0, another_has_some, now), waits, "which may be locked");
        assert_eq!(schedule.found_nothing(0, polled((64, 64), 0, 0), now), OVER);
    }

    #[test]
    fn a_run_ends_once_each_part_was_free_without_rows() {
        let now = Instant::now();
        let mut schedule = schedule((0, 1), true, true, now);
        let of = |locked, held_back| Polled { locked, ..polled((64, 0), 0, held_back) };
        let (low, high) = (u64::MAX >> 32, u64::MAX << 32);
        let waits = Round::Over { waits: true };
        assert_eq!(schedule.found_nothing(0, of(low, 0), now), waits);
        assert_eq!(schedule.found_nothing(0, of(high, 1), now), waits, "a row is locked");
        schedule.delivered(0, polled((64, 64), 1, 0), now);
        assert_eq!(schedule.found_nothing(0, of(high, 0), now), waits, "a row was taken");
        schedule.notified(now);
        assert_eq!(schedule.found_nothing(0, of(low, 0), now), OVER, "two looks saw all parts");
    }
}
