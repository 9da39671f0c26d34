//! Measures where the time of Kafka transactions goes, for tuning the size of batches.
//!
//! Input: which [`Activity`] a sink begins (idle, taking records, waiting for reports, waiting for the
//! commit) and when, and the size of each transaction. Output: [`Timings`]: total time of each activity,
//! numbers of transactions and records.

use std::time::Duration;

use crate::time::Instant;

/// What a sink can be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// No transaction is open.
    Idle,
    /// It takes records.
    Taking,
    /// It waits for delivery reports.
    Settling,
    /// It waits for the end of the transaction.
    Ending,
}

/// The totals of a session.
#[derive(Debug, Clone)]
pub struct Timings {
    activity: Activity,
    since: Instant,
    /// In the order of [`Activity`].
    totals: [Duration; 4],
    /// Transactions that ended.
    pub transactions: u64,
    /// Records in them.
    pub records: u64,
}

impl Timings {
    /// Nothing so far.
    pub(super) const fn new(now: Instant) -> Self {
        let totals = [Duration::ZERO; 4];
        Self { activity: Activity::Idle, since: now, totals, transactions: 0, records: 0 }
    }

    /// With what it does now up to this moment.
    #[must_use]
    pub(super) const fn until(mut self, now: Instant) -> Self {
        self.turn_to(self.activity, now);
        self
    }

    /// How long the session has done this.
    pub const fn spent(&self, activity: Activity) -> Duration {
        let [idle, taking, settling, ending] = self.totals;
        match activity {
            Activity::Idle => idle,
            Activity::Taking => taking,
            Activity::Settling => settling,
            Activity::Ending => ending,
        }
    }

    /// Books the time since the last turn.
    pub(super) const fn turn_to(&mut self, activity: Activity, now: Instant) {
        let [idle, taking, settling, ending] = &mut self.totals;
        let total = match self.activity {
            Activity::Idle => idle,
            Activity::Taking => taking,
            Activity::Settling => settling,
            Activity::Ending => ending,
        };
        *total = total.saturating_add(now.since(self.since));
        (self.activity, self.since) = (activity, now);
    }

    /// A transaction of so many records has ended.
    pub(super) const fn ended(&mut self, records: u64) {
        self.transactions += 1;
        self.records += records;
    }
}
