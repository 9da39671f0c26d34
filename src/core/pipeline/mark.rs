//! Defines [`Mark`]: a delivered position that outlives a session.
//!
//! Kafka stores a mark beside the records, and later sessions skip the rows before it. A log
//! position is not enough: all rows of a COPY can share one, and a transaction may exceed one
//! stored batch.

use crate::lsn::Lsn;
use crate::outbox::Position;

/// A position between two rows, in the order of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mark {
    /// Transactions that end at or below this are covered.
    pub end: Lsn,
    /// Delivered part of the next transaction.
    pub part: Option<PartialTransaction>,
    /// Last commit with rows, or the commit of `part`; distinguishes this log from a copy's.
    /// `None`: not known.
    pub last: Option<CommitId>,
}

/// Identity of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId {
    /// Start of the commit record.
    pub lsn: Lsn,
    /// 32-bit transaction number.
    pub xid: u32,
    /// Microseconds since 2000.
    pub time_us: i64,
}

/// Beginning of a transaction that is delivered in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartialTransaction {
    /// Start of its commit record; at or above `end`.
    pub commit_lsn: Lsn,
    /// Rows before the mark; at least 1.
    pub rows: u64,
}

impl Mark {
    /// A mark between two transactions.
    pub const fn at(end: Lsn) -> Self {
        Self { end, part: None, last: None }
    }

    /// True if the row lies before the mark. A commit record starts below its transaction's end,
    /// and not below the previous one's.
    pub fn covers(&self, row: Position) -> bool {
        row.commit_lsn < self.end
            || self
                .part
                .is_some_and(|part| row.commit_lsn == part.commit_lsn && row.index < part.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::PgTime;

    fn row(commit_lsn: u64, index: u64) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), index, commit_time: PgTime(0) }
    }

    #[test]
    fn g6_a_transaction_lies_before_the_mark_as_a_whole_or_not_at_all() {
        let mark = Mark::at(Lsn::new(100));
        assert!(mark.covers(row(99, 0)) && mark.covers(row(50, 1_000)));
        // The next commit record may start where the last one ended.
        assert!(!mark.covers(row(100, 0)));
        assert!(!Mark::default().covers(row(1, 0)));
    }

    #[test]
    fn g6_of_a_transaction_in_pieces_the_first_rows_lie_before_the_mark() {
        let part = Some(PartialTransaction { commit_lsn: Lsn::new(500), rows: 3 });
        let mark = Mark { part, ..Mark::at(Lsn::new(100)) };
        assert!(mark.covers(row(99, 7)) && mark.covers(row(500, 2)));
        assert!(!mark.covers(row(500, 3)) && !mark.covers(row(501, 0)));
    }

    #[test]
    fn marks_are_ordered_as_the_stream() {
        let part = |rows| Some(PartialTransaction { commit_lsn: Lsn::new(500), rows });
        let marks = [
            Mark::at(Lsn::new(100)),
            Mark { part: part(1), ..Mark::at(Lsn::new(100)) },
            Mark { part: part(2), ..Mark::at(Lsn::new(100)) },
            Mark::at(Lsn::new(600)),
        ];
        assert!(marks.is_sorted() && marks.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
