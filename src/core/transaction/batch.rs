//! Decides where a Kafka transaction ends.
//!
//! Input: [`BatchLimits`], records and age, and progress. Output: whether the transaction ends
//! here. It ends within a Postgres transaction only if that one is too large or slow, the session
//! has no room, or each record is alone.

use std::time::Duration;

use crate::sink::Reached;

/// Size and age limits of a Kafka transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Records after which the open Postgres transaction is the last.
    pub records: u64,
    /// Bytes after which the open Postgres transaction is the last.
    pub bytes: u64,
    /// Longest wait of recent rows for others.
    pub age: Duration,
}

/// Minimum age while rows are old.
const AGE_BEHIND: Duration = Duration::from_millis(50);
/// Age while rows are old, in durations of the last end. Ends then take a tenth of the time.
const ENDS_BEHIND: u32 = 10;
/// Rate below which saving commits does not matter. Without this limit a late stream stayed late:
/// at 1,000 rows/s and 150 partitions a transaction stayed open for 300 ms because the last end
/// took 80 ms.
const FEW_RECORDS_PER_MS: u64 = 10;
/// See [`FEW_RECORDS_PER_MS`].
const FEW_BYTES_PER_MS: u64 = 10 << 10;
/// Half of what a session reads during an end. Above this, the session perhaps could not read more.
const FEW_BYTES: u64 = 1 << 20;
/// What a session reads during an end; a high rate, unless it arrived below [`FEW_BYTES_PER_MS`].
const MANY_BYTES: u64 = 2 << 20;
/// Shortest time for measuring a rate. In less, even one Postgres transaction would count as many
/// records.
const MANY_TIME_MIN: Duration = Duration::from_millis(50);
/// End after which the next transaction is larger. Over 150 partitions, ends took a quarter of a
/// backlog's time with 48,000 records.
const SLOW_END: Duration = Duration::from_millis(40);
const SLOW_END_TIMES: u64 = 2;
/// Multiple of the limits that ends a batch within a Postgres transaction.
const SPLIT_AT: u64 = SLOW_END_TIMES + 2;
/// A slow transaction is split, because it blocks consumers that read committed records only.
const SPLIT_AFTER: Duration = Duration::from_secs(1);

impl BatchLimits {
    /// Four times this limit of 48,000 fits a session's in-flight limit. An end takes about 20 ms
    /// over 15 partitions, whatever the number of records: with 16,000 records a third of a
    /// backlog's time went to ends of 50 ms.
    pub const fn new(age: Duration, alone: bool) -> Self {
        if alone {
            return Self { records: 1, bytes: 1, age: Duration::ZERO };
        }
        Self { records: 48_000, bytes: 24 << 20, age }
    }

    pub(super) const fn is_alone(self) -> bool {
        self.records == 1
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Here,
    WithPostgres,
    Later,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Batch {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl Batch {
    /// True if the batch ends with Postgres's transaction.
    pub(super) fn is_large(self, limits: BatchLimits, last_end: Duration) -> bool {
        self.exceeds(limits, if last_end < SLOW_END { 1 } else { SLOW_END_TIMES })
    }

    pub(super) const fn is_huge(self, limits: BatchLimits) -> bool {
        self.exceeds(limits, SPLIT_AT)
    }

    const fn exceeds(self, limits: BatchLimits, times: u64) -> bool {
        let times = if limits.is_alone() { 1 } else { times };
        self.records >= limits.records.saturating_mul(times)
            || self.bytes >= limits.bytes.saturating_mul(times)
    }

    fn is_few(self, time: Duration) -> bool {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.records < ms.saturating_mul(FEW_RECORDS_PER_MS)
            && self.bytes < ms.saturating_mul(FEW_BYTES_PER_MS).min(FEW_BYTES)
    }

    /// True if the next records soon fill the client's queue.
    pub(super) fn is_many(self, time: Duration) -> bool {
        let ms = u64::try_from(time.max(MANY_TIME_MIN).as_millis()).unwrap_or(u64::MAX);
        let many_bytes = ms.saturating_mul(FEW_BYTES_PER_MS).max(MANY_BYTES);
        let is_large = self.records > 1 && self.bytes >= many_bytes;
        is_large || self.records >= ms.saturating_mul(FEW_RECORDS_PER_MS)
    }

    /// Whether a transaction of this age ends at the reached position.
    pub(super) fn ends(
        self,
        limits: BatchLimits,
        open_for: Duration,
        last_end: Duration,
        at: Reached,
    ) -> Ends {
        if self.records == 0 {
            return Ends::Later;
        }
        let age_behind = (last_end * ENDS_BEHIND).clamp(AGE_BEHIND, SPLIT_AFTER).max(limits.age);
        let is_behind = at.behind && !self.is_few(open_for + last_end);
        let age = if is_behind { age_behind } else { limits.age };
        let is_due = self.is_large(limits, last_end) || open_for >= age;
        let is_within = at.mark.part.is_some();
        // If the Postgres transaction had started later, this one would have ended before.
        let is_late = is_within && open_for >= age_behind + SPLIT_AFTER;
        if at.pressed || self.is_huge(limits) || is_late {
            return Ends::Here;
        }
        match (is_within, is_due) {
            (true, true) => Ends::WithPostgres,
            (false, is_due) if is_due || at.ending => Ends::Here,
            _ => Ends::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::pipeline::{Mark, PartialTransaction};

    const AGE: Duration = Duration::from_millis(10);
    const LIMITS: BatchLimits = BatchLimits::new(AGE, false);
    const QUICK: Duration = Duration::from_millis(3);
    const SMALL: Batch = Batch { records: 7, bytes: 700 };
    const MANY: Batch = Batch { records: 15_000, bytes: 7 << 20 };
    const LARGE: Batch = Batch { records: 48_000, bytes: 700 };
    const HUGE: Batch = Batch { records: 7, bytes: 96 << 20 };

    impl Batch {
        fn ends_here(
            self,
            limits: BatchLimits,
            open_for: Duration,
            last_end: Duration,
            at: Reached,
        ) -> bool {
            self.ends(limits, open_for, last_end, at) == Ends::Here
        }
    }

    fn between() -> Reached {
        let mark = Mark::at(Lsn::new(100));
        Reached { mark, settled: Lsn::ZERO, behind: false, pressed: false, ending: false }
    }

    fn within() -> Reached {
        let part = Some(PartialTransaction { commit_lsn: Lsn::new(200), rows: 7 });
        Reached { mark: Mark { part, ..Mark::at(Lsn::new(100)) }, ..between() }
    }

    #[test]
    fn one_large_row_is_not_many() {
        let is_many =
            |records, bytes, ms| Batch { records, bytes }.is_many(Duration::from_millis(ms));
        assert!(!is_many(1, 16 << 20, 0) && is_many(2, 16 << 20, 0));
        assert!(!is_many(9, 9 << 20, 1_000) && is_many(9, 10 << 20, 1_000));
        assert!(!is_many(499, 1 << 20, 0) && is_many(500, 1 << 20, 0));
        assert!(!is_many(999, 1 << 20, 100) && is_many(1_000, 1 << 20, 100));
    }

    #[test]
    fn it_ends_between_two_transactions_by_size_or_age() {
        assert!(!SMALL.ends_here(LIMITS, Duration::ZERO, QUICK, between()));
        assert!(SMALL.ends_here(LIMITS, AGE, QUICK, between()));
        assert!(LARGE.ends_here(LIMITS, Duration::ZERO, QUICK, between()));
        assert!(SMALL.ends_here(
            LIMITS,
            Duration::ZERO,
            QUICK,
            Reached { ending: true, ..between() }
        ));
        let behind = Reached { behind: true, ..between() };
        assert!(
            !MANY.ends_here(LIMITS, AGE, QUICK, behind)
                && MANY.ends_here(LIMITS, AGE_BEHIND, QUICK, behind)
        );
    }

    #[test]
    fn old_rows_that_are_few_wait_no_longer_than_others() {
        let behind = Reached { behind: true, ..between() };
        assert!(!SMALL.ends_here(LIMITS, Duration::ZERO, QUICK, behind));
        assert!(SMALL.ends_here(LIMITS, AGE, QUICK, behind));
        let slow = Duration::from_millis(80);
        let at_1_000_a_second = Batch { records: 90, bytes: 90 * 400 };
        assert!(at_1_000_a_second.ends_here(LIMITS, AGE, slow, behind));
        let large_ones = Batch { records: 90, bytes: 1 << 20 };
        assert!(!large_ones.ends_here(LIMITS, AGE, slow, behind));
        let a_full_buffer = Batch { records: 5_000, bytes: 2 << 20 };
        assert!(!a_full_buffer.ends_here(LIMITS, AGE, Duration::from_secs(5), behind));
    }

    #[test]
    fn behind_it_is_open_for_longer_where_ends_are_slow() {
        let behind = Reached { behind: true, ..between() };
        let slow = Duration::from_millis(60);
        let ends = |open_for, last_end| MANY.ends_here(LIMITS, open_for, last_end, behind);
        assert!(!ends(slow * 9, slow) && ends(slow * 10, slow));
        assert!(!ends(slow, Duration::from_secs(9)) && ends(SPLIT_AFTER, Duration::from_secs(9)));
        assert!(SMALL.ends_here(LIMITS, AGE, slow, between()), "rows that just came do not wait");
    }

    #[test]
    fn it_becomes_larger_where_ends_are_slow() {
        let behind = Reached { behind: true, ..between() };
        let ends = |batch: Batch, last_end| batch.ends_here(LIMITS, AGE, last_end, behind);
        assert!(ends(LARGE, SLOW_END / 2) && !ends(LARGE, SLOW_END));
        assert!(ends(Batch { records: 96_000, bytes: 700 }, SLOW_END));
        let alone = BatchLimits::new(AGE, true);
        assert!(Batch { records: 1, bytes: 0 }.is_large(alone, SLOW_END));
    }

    #[test]
    fn a_transaction_of_postgres_of_half_the_largest_is_whole() {
        let before = LIMITS.records * SLOW_END_TIMES - 1;
        let with = |rows| Batch { records: before + rows, bytes: 700 };
        assert!(!with(96_000).is_huge(LIMITS) && with(96_001).is_huge(LIMITS));
    }

    #[test]
    fn it_splits_a_transaction_only_if_it_must() {
        assert!(!LARGE.ends_here(LIMITS, AGE, QUICK, within()));
        assert!(HUGE.ends_here(LIMITS, Duration::ZERO, QUICK, within()));
        assert!(SMALL.ends_here(LIMITS, AGE_BEHIND + SPLIT_AFTER, QUICK, within()));
        assert_eq!(SMALL.ends(LIMITS, AGE, QUICK, within()), Ends::WithPostgres);
        assert_eq!(LARGE.ends(LIMITS, Duration::ZERO, QUICK, within()), Ends::WithPostgres);
        assert_eq!(SMALL.ends(LIMITS, Duration::ZERO, QUICK, within()), Ends::Later);
        assert!(!SMALL.ends_here(LIMITS, AGE, QUICK, Reached { ending: true, ..within() }));
        // This transaction itself fills the budget, so waiting would never end.
        assert!(SMALL.ends_here(
            LIMITS,
            Duration::ZERO,
            QUICK,
            Reached { pressed: true, ..within() }
        ));
    }

    #[test]
    fn one_that_began_when_this_might_have_ended_has_a_second() {
        for last_end in [3, 60, 100, 9_000].map(Duration::from_millis) {
            for between in [Reached { behind: true, ..between() }, between()] {
                let began = (0..).map(Duration::from_millis);
                let began =
                    began.take_while(|at| !MANY.ends_here(LIMITS, *at, last_end, between)).last();
                for behind in [true, false] {
                    let at = Reached { behind, ..within() };
                    let open_for = began.unwrap() + Duration::from_millis(999);
                    assert!(!MANY.ends_here(LIMITS, open_for, last_end, at));
                }
                assert!(MANY.ends_here(LIMITS, SPLIT_AFTER * 2, last_end, within()));
            }
        }
    }

    #[test]
    fn an_empty_one_has_nothing_to_end_for() {
        let at = Reached { pressed: true, ending: true, ..between() };
        assert!(!Batch::default().ends_here(LIMITS, SPLIT_AFTER, QUICK, at));
    }

    #[test]
    fn alone_means_one_record() {
        let alone = BatchLimits::new(AGE, true);
        let one = Batch { records: 1, bytes: 0 };
        assert!(one.is_huge(alone) && one.ends_here(alone, Duration::ZERO, QUICK, within()));
    }

    #[test]
    fn g3_the_largest_fits_what_may_be_under_way() {
        let most = LIMITS.records * SPLIT_AT;
        assert!(most < crate::ledger::Budget::default().in_transactions().records);
    }
}
