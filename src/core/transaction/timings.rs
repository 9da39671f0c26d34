//! Measures the time of Kafka transactions per activity.

use std::time::Duration;

use crate::time::Instant;

/// Activity of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Idle.
    Idle,
    /// Taking records.
    Taking,
    /// Waiting for reports.
    Settling,
    /// Waiting for the commit.
    Ending,
}

/// Totals of a session.
#[derive(Debug, Clone)]
pub struct Timings {
    activity: Activity,
    since: Instant,
    /// By [`Activity`].
    totals: [Duration; 4],
    /// Ended transactions.
    pub transactions: u64,
    /// Their records.
    pub records: u64,
}

impl Timings {
    pub(super) const fn new(now: Instant) -> Self {
        let totals = [Duration::ZERO; 4];
        Self { activity: Activity::Idle, since: now, totals, transactions: 0, records: 0 }
    }

    #[must_use]
    pub(super) const fn until(mut self, now: Instant) -> Self {
        self.turn_to(self.activity, now);
        self
    }

    /// Time of an activity.
    pub const fn spent(&self, activity: Activity) -> Duration {
        let [idle, taking, settling, ending] = self.totals;
        match activity {
            Activity::Idle => idle,
            Activity::Taking => taking,
            Activity::Settling => settling,
            Activity::Ending => ending,
        }
    }

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

    pub(super) const fn ended(&mut self, records: u64) {
        self.transactions += 1;
        self.records += records;
    }
}
