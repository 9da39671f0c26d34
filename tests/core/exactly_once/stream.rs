//! What is to be carried: a short stream of places, cut into transactions of Postgres.
//!
//! Input: nothing; these are the constants of the model's world. Output: where each row belongs and
//! where transactions end. Invariant: places are numbered from 1 in commit order; "done: n"
//! means that the places 1 to n are done.

use crate::exactly_once::broker::Partition;

/// A row of the outbox by its place in the stream, or how many of them are done.
pub type Place = u8;

/// Places in the stream.
pub const PLACES: Place = 4;

/// How many places are done at the end of each transaction of Postgres; the slot stands on one of
/// these. The second transaction is a giant: it may be split between Kafka transactions. The third
/// has no row for us, as a keepalive, a rolled-back transaction or another table's has none.
const ENDS: [Place; 4] = [0, 1, 3, 4];

/// Transactions of Postgres.
#[expect(clippy::cast_possible_truncation, reason = "three")]
pub const TRANSACTIONS: u8 = ENDS.len() as u8 - 1;

/// Every place that has a row.
pub const ROWS: u8 = 0b0111;

/// Which data partition the row of a place belongs to; none if there is no row.
pub const fn partition(place: Place) -> Option<Partition> {
    match place {
        1 | 3 => Some(Partition::A),
        2 => Some(Partition::B),
        _ => None,
    }
}

/// How many places lie in the first so many transactions.
pub const fn end(transactions: u8) -> Place {
    ENDS[transactions as usize]
}

/// How many transactions lie wholly within the first `done` places. Postgres can be told no more.
pub fn whole_transactions(done: Place) -> u8 {
    (0..=TRANSACTIONS).rev().find(|&transactions| end(transactions) <= done).unwrap_or(0)
}

/// The rows of the first `done` places, as a set.
pub const fn rows_within(done: Place) -> u8 {
    ((1 << done) - 1) & ROWS
}
