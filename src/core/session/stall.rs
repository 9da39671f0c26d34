//! Ends the relay if the brokers store nothing for too long.
//!
//! A large transaction is not a stall while its records are confirmed.

use std::time::Duration;

use crate::ledger::LedgerProgress;
use crate::time::Instant;

/// Most time counted between two checks, because a suspended process has not waited.
const STEP_MAX: Duration = Duration::from_secs(1);

/// Nothing was confirmed within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stalled {
    /// No broker has answered.
    BrokersAway {
        /// Seconds without an answer.
        seconds: u64,
    },
    /// Brokers answer but store nothing.
    NothingStored {
        /// Seconds without progress.
        seconds: u64,
        /// Unconfirmed records.
        records: u64,
    },
}

/// Detects that the brokers store nothing.
#[derive(Debug)]
pub struct StallDetector {
    limit: Duration,
    /// Time since a broker answered.
    away: Duration,
    last_look: Option<Instant>,
    progress: LedgerProgress,
    /// Time in which answering brokers confirmed nothing of the oldest transaction.
    stuck: Duration,
    unconfirmed_for: Duration,
}

impl StallDetector {
    /// Gives up after `limit`; zero: never.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            away: Duration::ZERO,
            last_look: None,
            progress: LedgerProgress::default(),
            stuck: Duration::ZERO,
            unconfirmed_for: Duration::ZERO,
        }
    }

    /// A session begins.
    pub fn begin(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Time with unconfirmed records and without progress.
    pub const fn unconfirmed_for(&self) -> Duration {
        self.unconfirmed_for
    }

    /// Checks brokers and unconfirmed records.
    pub fn look(
        &mut self,
        connected: bool,
        records: u64,
        progress: LedgerProgress,
        now: Instant,
    ) -> Result<(), Stalled> {
        let before = self.last_look.replace(now).unwrap_or(now);
        let step = (now - before).min(STEP_MAX);
        if records == 0 || progress != self.progress {
            self.progress = progress;
            (self.stuck, self.unconfirmed_for) = (Duration::ZERO, Duration::ZERO);
        } else {
            self.unconfirmed_for += step;
            self.stuck += if connected { step } else { Duration::ZERO };
        }
        self.away = if connected { Duration::ZERO } else { self.away + step };
        if self.limit.is_zero() {
            Ok(())
        } else if self.away >= self.limit {
            Err(Stalled::BrokersAway { seconds: self.away.as_secs() })
        } else if self.stuck >= self.limit {
            Err(Stalled::NothingStored { seconds: self.stuck.as_secs(), records })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const TICK: Duration = Duration::from_millis(250);
    const LIMIT: Duration = Duration::from_mins(1);

    fn watch(
        stall: &mut StallDetector,
        from: Instant,
        time: Duration,
        see: impl Fn(u64) -> (bool, u64, LedgerProgress),
    ) -> Result<Instant, Stalled> {
        let mut now = from;
        for tick in 0.. {
            let (connected, records, progress) = see(tick);
            stall.look(connected, records, progress, now)?;
            if now >= from + time {
                break;
            }
            now += TICK;
        }
        Ok(now)
    }

    fn at(settled: u64, confirmed: u64) -> LedgerProgress {
        LedgerProgress { settled: Lsn::new(settled), confirmed }
    }

    #[test]
    fn brokers_that_answer_without_storing_are_given_up() {
        let mut stall = StallDetector::new(LIMIT);
        stall.begin();
        let start = Instant::START;
        let error = watch(&mut stall, start, 2 * LIMIT, |_| (true, 7, at(0, 0))).unwrap_err();
        assert!(matches!(error, Stalled::NothingStored { seconds: 60, records: 7 }), "{error:?}");
        assert_eq!(stall.unconfirmed_for(), LIMIT);
    }

    #[test]
    fn a_large_transaction_of_which_records_are_confirmed_is_progress() {
        let mut stall = StallDetector::new(LIMIT);
        stall.begin();
        let start = Instant::START;
        let now = watch(&mut stall, start, 9 * LIMIT, |n| (true, 9, at(5, n / 200))).unwrap();
        assert!(stall.unconfirmed_for() < LIMIT);
        watch(&mut stall, now, 9 * LIMIT, |_| (true, 0, at(6, 0))).unwrap();
    }

    #[test]
    fn time_without_a_broker_counts_for_itself() {
        let mut stall = StallDetector::new(LIMIT);
        stall.begin();
        let start = Instant::START;
        let almost = LIMIT.mul_f64(0.9);
        let now = watch(&mut stall, start, almost, |_| (false, 7, at(0, 0))).unwrap();
        let now = watch(&mut stall, now, almost, |_| (true, 7, at(0, 0))).unwrap();
        let error = watch(&mut stall, now, 2 * LIMIT, |_| (false, 7, at(0, 0))).unwrap_err();
        assert!(matches!(error, Stalled::BrokersAway { seconds: 60 }), "{error:?}");
        assert!(stall.unconfirmed_for() > 2 * almost);
    }

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        let mut stall = StallDetector::new(LIMIT);
        stall.begin();
        let start = Instant::START;
        for connected in [true, false] {
            stall.begin();
            stall.look(connected, 7, at(1, 0), start).unwrap();
            stall.look(connected, 7, at(1, 0), start + 9 * LIMIT).unwrap();
        }
    }

    #[test]
    fn without_a_limit_nothing_is_given_up() {
        let mut stall = StallDetector::new(Duration::ZERO);
        stall.begin();
        watch(&mut stall, Instant::START, LIMIT, |n| (n % 9 > 4, 7, at(0, 0))).unwrap();
    }
}
