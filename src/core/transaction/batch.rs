//! Decides where a Kafka transaction ends.
//!
//! Input: [`BatchLimits`] (records, bytes, age), what was sent in the transaction, how long it is open, and
//! how far the session has come. Output: whether it ends here. Invariant: it ends between two rows; within
//! a Postgres transaction only if that one is too large or too slow to wait for, if the session has no room
//! for more records, or if each record has a Kafka transaction of its own. The caller reads the clock.

use std::time::Duration;

use crate::sink::Reached;

/// How large a Kafka transaction becomes and how long it stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Records after which it ends with the transaction of Postgres that is open.
    pub records: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// How long it stays open while rows are carried as they come. What a row waits for company.
    pub age: Duration,
}

/// While rows are old the number of commits counts, not the wait.
const AGE_BEHIND: Duration = Duration::from_millis(50);
/// And what commits cost: with many partitions, each of which gets a marker, a transaction is open
/// this many times as long as the last one took to end, so that ends take a tenth of the time.
const ENDS_BEHIND: u32 = 10;
/// Old rows that come more slowly than this need few commits less: whatever one takes to end, the next one takes up what
/// has come meanwhile. Without this a stream that was once late stayed late: at 1,000 rows/s and 150 partitions a
/// transaction was open for 300 ms because the last one took 80 to end, and took 80 to end because it was open for so long.
const FEW_RECORDS_PER_MS: u64 = 10;
/// The same in bytes.
const FEW_BYTES_PER_MS: u64 = 10 << 10;
/// Half of what a session reads while a transaction ends: with more, it may be that no more came because no more was read.
const FEW_BYTES: u64 = 1 << 20;
/// What a session reads while a transaction ends: rows of so many bytes are many, however few they are, unless they came
/// more slowly than [`FEW_BYTES_PER_MS`].
const MANY_BYTES: u64 = 2 << 20;
/// In less time the records of one transaction of Postgres would be many.
const MANY_TIME_MIN: Duration = Duration::from_millis(50);
/// After an end that took this long the next transaction becomes larger: over 150 partitions ends took a quarter of the
/// time of a backlog that was sent in transactions of 48,000 records.
const SLOW_END: Duration = Duration::from_millis(40);
/// This many times as large.
const SLOW_END_TIMES: u64 = 2;
/// A batch of this many times its limits ends even within a transaction of Postgres.
const SPLIT_AT: u64 = SLOW_END_TIMES + 2;
/// One that takes longer to arrive is split too: while it is open, it holds back whoever reads
/// committed records only.
const SPLIT_AFTER: Duration = Duration::from_secs(1);

impl BatchLimits {
    /// 48,000 records are a quarter of what a session may have under way, so that a transaction four
    /// times as large still fits; one record each when the culprit of a refusal is looked for. An end takes as long for
    /// few records as for many: the last batches, the end of the transaction and its markers, some 20 ms over 15 partitions;
    /// 16,000 records made a third of the time of a backlog when it was 50.
    pub const fn new(age: Duration, alone: bool) -> Self {
        if alone {
            return Self { records: 1, bytes: 1, age: Duration::ZERO };
        }
        Self { records: 48_000, bytes: 24 << 20, age }
    }

    /// Whether each record has a transaction of its own.
    pub(super) const fn is_alone(self) -> bool {
        self.records == 1
    }
}

/// Where a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Here,
    /// Where the transaction of Postgres ends that is open.
    WithPostgres,
    Later,
}

/// What was sent in the open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Batch {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl Batch {
    /// Whether it should end as soon as Postgres's transaction does, where the last one took so long to end.
    pub(super) fn is_large(self, limits: BatchLimits, last_end: Duration) -> bool {
        self.exceeds(limits, if last_end < SLOW_END { 1 } else { SLOW_END_TIMES })
    }

    /// Whether nothing more is taken.
    pub(super) const fn is_huge(self, limits: BatchLimits) -> bool {
        self.exceeds(limits, SPLIT_AT)
    }

    const fn exceeds(self, limits: BatchLimits, times: u64) -> bool {
        let times = if limits.is_alone() { 1 } else { times };
        self.records >= limits.records.saturating_mul(times)
            || self.bytes >= limits.bytes.saturating_mul(times)
    }

    /// Whether so little came in this time that commits need not be saved.
    fn is_few(self, time: Duration) -> bool {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.records < ms.saturating_mul(FEW_RECORDS_PER_MS)
            && self.bytes < ms.saturating_mul(FEW_BYTES_PER_MS).min(FEW_BYTES)
    }

    /// Whether so many records came in this time that the next ones fill the client's queue soon.
    pub(super) fn is_many(self, time: Duration) -> bool {
        let ms = u64::try_from(time.max(MANY_TIME_MIN).as_millis()).unwrap_or(u64::MAX);
        let many_bytes = ms.saturating_mul(FEW_BYTES_PER_MS).max(MANY_BYTES);
        let is_large = self.records > 1 && self.bytes >= many_bytes;
        is_large || self.records >= ms.saturating_mul(FEW_RECORDS_PER_MS)
    }

    /// Whether the transaction, open for so long, ends at the place that was reached, or else where the transaction of
    /// Postgres ends that is open there, where the last one took so long to end.
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
        // Had the transaction of Postgres begun later than that, this one had ended before it.
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
    /// So many that they are not few in any of the times of these tests.
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
        // The session reads to the end of what is open before it ends itself.
        assert!(!SMALL.ends_here(LIMITS, AGE, QUICK, Reached { ending: true, ..within() }));
        // What holds the budget is in this very transaction: waiting would be for ever.
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
                // Wherever the last place was at which it did not end.
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
