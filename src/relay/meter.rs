//! Progress of a long-running command, for another thread. Counting is one relaxed store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::telemetry::{DROPPED, SKIPPED, Snapshot};

/// The telemetry provides the count of this stage.
pub const DELIVERING: &str = "delivering rows";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Rows,
    Records,
    WalBytes,
    Partitions,
}

impl Unit {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Records => "records",
            Self::WalBytes => "bytes of WAL",
            Self::Partitions => "partitions",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    Unknown,
    /// Estimated from the server's statistics.
    About(u64),
    Exactly(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub stage: &'static str,
    pub unit: Unit,
    /// Amount done by an earlier, interrupted command.
    pub before: u64,
    /// Amount done since the stage began.
    pub done: u64,
    /// Includes `before`.
    pub total: Total,
    pub since: Instant,
}

impl Reading {
    /// Includes `before`.
    pub const fn all(&self) -> u64 {
        self.before.saturating_add(self.done)
    }

    #[must_use]
    pub fn with_delivered(self, snapshot: &Snapshot) -> Self {
        match self.stage {
            DELIVERING => Self { done: delivered(snapshot), ..self },
            _ => self,
        }
    }

    /// `None` after the relay has caught up.
    pub fn of_catch_up(snapshot: &Snapshot) -> Option<Self> {
        let CatchUp { from, until, since } = snapshot.catch_up.filter(|_| snapshot.holds_slot)?;
        let whole = until.checked_sub(from).filter(|_| snapshot.settled_lsn < until)?;
        Some(Self {
            stage: "catching up",
            unit: Unit::WalBytes,
            before: 0,
            done: snapshot.settled_lsn.saturating_sub(from),
            total: Total::Exactly(whole),
            since,
        })
    }
}

/// Includes rows left out by policy or a rule.
pub(super) fn delivered(snapshot: &Snapshot) -> u64 {
    let left_out = snapshot.ignored.iter().filter(|(what, _)| [SKIPPED, DROPPED].contains(what));
    snapshot.confirmed + left_out.map(|(_, rows)| rows).sum::<u64>()
}

/// Log that existed when a stream began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    pub from: u64,
    pub until: u64,
    /// Start of the first session of the catch-up.
    pub since: Instant,
}

/// Clones share the progress.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: Mutex<Option<Reading>>,
    done: AtomicU64,
}

impl Meter {
    pub fn begin(&self, stage: &'static str, unit: Unit, total: Total) {
        let mut current = self.stage();
        self.0.done.store(0, Ordering::Relaxed);
        let since = Instant::now();
        *current = Some(Reading { stage, unit, before: 0, done: 0, total, since });
    }

    pub fn set_whole(&self, before: u64, total: Total) {
        if let Some(stage) = &mut *self.stage() {
            (stage.before, stage.total) = (before, total);
        }
    }

    pub fn set_done(&self, done: u64) {
        self.0.done.store(done, Ordering::Relaxed);
    }

    pub fn reading(&self) -> Option<Reading> {
        let done = || self.0.done.load(Ordering::Relaxed);
        self.stage().map(|stage| Reading { done: done(), ..stage })
    }

    fn stage(&self) -> MutexGuard<'_, Option<Reading>> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_counts_from_zero_and_what_was_done_before_counts() {
        let meter = Meter::default();
        assert_eq!(meter.reading(), None);
        meter.begin("reading rows", Unit::Rows, Total::Unknown);
        meter.clone().set_done(7);
        meter.set_whole(3, Total::Exactly(20));
        let reading = meter.reading().unwrap();
        assert_eq!((reading.done, reading.all(), reading.total), (7, 10, Total::Exactly(20)));
        meter.begin("comparing", Unit::Rows, Total::Unknown);
        assert_eq!(meter.reading().map(|it| (it.stage, it.all())), Some(("comparing", 0)));
    }

    #[test]
    fn a_relay_catches_up_with_the_log_of_when_it_began() {
        let catch_up = |settled_lsn, holds_slot| {
            let catch_up = Some(CatchUp { from: 100, until: 300, since: Instant::now() });
            let snapshot = Snapshot { holds_slot, settled_lsn, catch_up, ..Snapshot::default() };
            Reading::of_catch_up(&snapshot).map(|it| (it.done, it.total))
        };
        assert_eq!(catch_up(0, true), Some((0, Total::Exactly(200))));
        assert_eq!(catch_up(150, true), Some((50, Total::Exactly(200))));
        assert_eq!([catch_up(300, true), catch_up(150, false)], [None, None]);
    }
}
