//! Whether the brokers still take what is sent to them.
//!
//! Enters: a look at the connection and the ledger, a few times a second. Leaves: the error that
//! ends the relay once its patience is over. What always holds: brokers that are away, and brokers
//! that answer without storing, are both given up; a large transaction is not, as long as records of
//! it are confirmed; time in which this process did not run does not count. Pure: the caller reads
//! the clock. Owned by `report`.

use std::time::{Duration, Instant};

use crate::ledger::Progress;
use crate::relay::error::RelayError;

/// At most so much counts between two looks: a process that was stopped has not waited.
const STEP_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Zero: for ever.
    patience: Duration,
    /// How long no broker has answered.
    away: Duration,
    last_look: Option<Instant>,
    progress: Progress,
    /// How long brokers that answered have confirmed nothing of the oldest transaction.
    stuck: Duration,
    /// The same, whether or not they answered.
    fruitless: Duration,
}

impl Vigil {
    /// Gives up after this time; zero never does.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            away: Duration::ZERO,
            last_look: None,
            progress: Progress::default(),
            stuck: Duration::ZERO,
            fruitless: Duration::ZERO,
        }
    }

    /// A session begins.
    pub(super) fn begin(&mut self) {
        *self = Self::new(self.patience);
    }

    /// How long the session has, up to now, had something to confirm and got no further with it.
    pub(super) const fn fruitless(&self) -> Duration {
        self.fruitless
    }

    /// A look at the brokers and at what is unconfirmed.
    pub(super) fn look(
        &mut self,
        connected: bool,
        records: u64,
        progress: Progress,
        now: Instant,
    ) -> Result<(), RelayError> {
        let before = self.last_look.replace(now).unwrap_or(now);
        let step = now.saturating_duration_since(before).min(STEP_MAX);
        if records == 0 || progress != self.progress {
            self.progress = progress;
            (self.stuck, self.fruitless) = (Duration::ZERO, Duration::ZERO);
        } else {
            self.fruitless += step;
            self.stuck += if connected { step } else { Duration::ZERO };
        }
        self.away = if connected { Duration::ZERO } else { self.away + step };
        if self.patience.is_zero() {
            Ok(())
        } else if self.away >= self.patience {
            Err(RelayError::BrokersAway { seconds: self.away.as_secs() })
        } else if self.stuck >= self.patience {
            Err(RelayError::NothingStored { seconds: self.stuck.as_secs(), records })
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
    const PATIENCE: Duration = Duration::from_mins(1);

    /// Looks for `time`; in each look the brokers are as told.
    fn watch(
        vigil: &mut Vigil,
        from: Instant,
        time: Duration,
        see: impl Fn(u64) -> (bool, u64, Progress),
    ) -> Result<Instant, RelayError> {
        let mut now = from;
        for tick in 0.. {
            let (connected, records, progress) = see(tick);
            vigil.look(connected, records, progress, now)?;
            if now >= from + time {
                break;
            }
            now += TICK;
        }
        Ok(now)
    }

    fn at(settled: u64, confirmed: u64) -> Progress {
        Progress { settled: Lsn::new(settled), confirmed }
    }

    #[test]
    fn brokers_that_answer_without_storing_are_given_up() {
        let mut vigil = Vigil::new(PATIENCE);
        vigil.begin();
        let start = Instant::now();
        let error = watch(&mut vigil, start, 2 * PATIENCE, |_| (true, 7, at(0, 0))).unwrap_err();
        assert!(
            matches!(error, RelayError::NothingStored { seconds: 60, records: 7 }),
            "{error:?}"
        );
        assert_eq!(vigil.fruitless(), PATIENCE);
    }

    #[test]
    fn a_large_transaction_of_which_records_are_confirmed_is_progress() {
        let mut vigil = Vigil::new(PATIENCE);
        vigil.begin();
        let start = Instant::now();
        let now = watch(&mut vigil, start, 9 * PATIENCE, |n| (true, 9, at(5, n / 200))).unwrap();
        assert!(vigil.fruitless() < PATIENCE);
        // Nothing to do is no lack of progress.
        watch(&mut vigil, now, 9 * PATIENCE, |_| (true, 0, at(6, 0))).unwrap();
    }

    #[test]
    fn time_without_a_broker_counts_for_itself() {
        let mut vigil = Vigil::new(PATIENCE);
        vigil.begin();
        let start = Instant::now();
        let almost = PATIENCE.mul_f64(0.9);
        let now = watch(&mut vigil, start, almost, |_| (false, 7, at(0, 0))).unwrap();
        let now = watch(&mut vigil, now, almost, |_| (true, 7, at(0, 0))).unwrap();
        let error = watch(&mut vigil, now, 2 * PATIENCE, |_| (false, 7, at(0, 0))).unwrap_err();
        assert!(matches!(error, RelayError::BrokersAway { seconds: 60 }), "{error:?}");
        assert!(vigil.fruitless() > 2 * almost);
    }

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        let mut vigil = Vigil::new(PATIENCE);
        vigil.begin();
        let start = Instant::now();
        for connected in [true, false] {
            vigil.begin();
            vigil.look(connected, 7, at(1, 0), start).unwrap();
            vigil.look(connected, 7, at(1, 0), start + 9 * PATIENCE).unwrap();
        }
    }

    #[test]
    fn without_a_limit_nothing_is_given_up() {
        let mut vigil = Vigil::new(Duration::ZERO);
        vigil.begin();
        watch(&mut vigil, Instant::now(), PATIENCE, |n| (n % 9 > 4, 7, at(0, 0))).unwrap();
    }
}
