//! What the applications wrote: the truth that the judge compares topics with.

use std::collections::HashMap;

use support::chance::Chance;

/// What must become of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    /// The router rejects it: its route is NULL.
    Unroutable,
    /// The producer refuses it at once.
    RefusedAtSend,
    /// The brokers refuse it after a while.
    RefusedByBroker,
}

/// A committed outbox row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// NULL only where the fate is `Unroutable`.
    pub(crate) aggregate_type: Option<&'static str>,
    pub(crate) key: Option<String>,
    pub(crate) payload: String,
    pub(crate) fate: Fate,
    /// Written as a logical message, in no table.
    pub(crate) is_message: bool,
    /// Number of its transaction and of the row in it: commit order.
    pub(crate) order: (usize, usize),
}

/// One thing that pgoutput tells about a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Index into [`History::rows`].
    Row(usize),
    /// A row of a table that is no outbox.
    Foreign,
    /// An update, delete or truncate of the outbox, or a logical message.
    Other(u8),
    /// The outbox table is altered: its shape is described again before its next row.
    Alter,
}

#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) commit_lsn: u64,
    pub(crate) end_lsn: u64,
    pub(crate) changes: Vec<Change>,
    /// No transaction at all, but a logical message outside of one: it begins where it ends.
    pub(crate) is_lone_message: bool,
}

/// The write-ahead log, as far as it matters here.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) rows: Vec<Row>,
    /// By id.
    pub(crate) by_id: HashMap<String, usize>,
    /// The server's insert position.
    pub(crate) end: u64,
}

/// Few keys and topics, so that order matters often.
const KEYS: u64 = 4;
const AGGREGATE_TYPES: [&str; 2] = ["order", "invoice"];

impl History {
    /// A transaction commits.
    pub(crate) fn commit(&mut self, chance: &mut Chance) {
        let size = match chance.below(10) {
            0..=5 => chance.between(1, 2),
            6..=7 => chance.between(3, 6),
            8 => 0,
            _ => chance.between(10, 25),
        };
        let mut changes = Vec::new();
        let mut number = 0;
        for _ in 0..size {
            match chance.below(20) {
                0 => changes.push(Change::Foreign),
                1 => changes.push(Change::Other(u8::try_from(chance.below(4)).unwrap())),
                2 => changes.push(Change::Alter),
                _ => {
                    changes.push(Change::Row(self.insert(chance, number)));
                    number += 1;
                }
            }
        }
        let commit_lsn = self.end + size * 10 + chance.between(0, 3);
        // A commit record takes more than a byte, other than a message that is a transaction of its own.
        let end_lsn = commit_lsn + chance.between(2, 4);
        self.end = end_lsn;
        let is_lone_message = false;
        self.transactions.push(Transaction { commit_lsn, end_lsn, changes, is_lone_message });
    }

    /// A logical message that is part of no transaction.
    pub(crate) fn message(&mut self, chance: &mut Chance) {
        let index = self.insert(chance, 0);
        self.rows[index].is_message = true;
        let end_lsn = self.end + chance.between(1, 20);
        self.end = end_lsn;
        let (commit_lsn, changes) = (end_lsn - 1, vec![Change::Row(index)]);
        self.transactions.push(Transaction { commit_lsn, end_lsn, changes, is_lone_message: true });
    }

    /// Anything that leaves nothing in the stream: another database, a vacuum, a transaction that
    /// rolls back. Its rows must never be seen.
    pub(crate) fn roll_back(&mut self, chance: &mut Chance) {
        self.end += chance.between(1, 50);
    }

    /// Where the transaction of a row ends.
    pub(crate) fn end_of(&self, row: usize) -> u64 {
        self.transactions[self.rows[row].order.0].end_lsn
    }

    fn insert(&mut self, chance: &mut Chance, number: usize) -> usize {
        let fate = match chance.below(40) {
            0 => Fate::Unroutable,
            1 => Fate::RefusedAtSend,
            2 => Fate::RefusedByBroker,
            _ => Fate::Deliver,
        };
        let aggregate_type = AGGREGATE_TYPES[chance.below(AGGREGATE_TYPES.len())];
        let id = format!("row-{}", self.rows.len());
        let filler = "x".repeat(chance.below(30));
        self.rows.push(Row {
            aggregate_type: (fate != Fate::Unroutable).then_some(aggregate_type),
            key: (!chance.percent(5)).then(|| format!("key-{}", chance.between(1, KEYS))),
            payload: format!("{fate:?} {id} {filler}"),
            fate,
            is_message: chance.percent(10),
            order: (self.transactions.len(), number),
            id: id.clone(),
        });
        self.by_id.insert(id, self.rows.len() - 1);
        self.rows.len() - 1
    }
}
