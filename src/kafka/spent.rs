//! Where the time of transactions goes.
//!
//! Enters: what a sink turns to, and how large what it ended was. Leaves: one line in the log, for whoever
//! tunes batches, when the session ends. Called by `transactional`.

use std::time::{Duration, Instant};

/// What a sink can be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// No transaction is open.
    Resting,
    /// It takes records.
    Taking,
    /// It waits for delivery reports.
    Settling,
    /// It waits for the end of the transaction.
    Ending,
}

/// The totals of a session.
#[derive(Debug)]
pub(super) struct Spent {
    doing: Doing,
    since: Instant,
    /// In the order of [`Doing`].
    totals: [Duration; 4],
    transactions: u64,
    records: u64,
}

impl Spent {
    /// Nothing so far.
    pub(super) fn new() -> Self {
        let since = Instant::now();
        let totals = [Duration::ZERO; 4];
        Self { doing: Doing::Resting, since, totals, transactions: 0, records: 0 }
    }

    /// Books the time since the last turn.
    pub(super) fn turn_to(&mut self, doing: Doing) {
        let now = Instant::now();
        if let Some(total) = self.totals.get_mut(self.doing as usize) {
            *total += now.duration_since(self.since);
        }
        (self.doing, self.since) = (doing, now);
    }

    /// A transaction of so many records has ended.
    pub(super) const fn ended(&mut self, records: u64) {
        self.transactions += 1;
        self.records += records;
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        self.turn_to(Doing::Resting);
        let [resting, taking, settling, ending] = self.totals.map(|total| total.as_millis());
        let (transactions, records) = (self.transactions, self.records);
        tracing::debug!(
            transactions,
            records,
            resting_ms = resting,
            taking_ms = taking,
            settling_ms = settling,
            ending_ms = ending,
            "transactions of this session"
        );
    }
}
