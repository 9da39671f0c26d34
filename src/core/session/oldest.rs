//! Keeps the commit time of the oldest undelivered transaction across sessions.
//!
//! A transaction of an earlier session counts until it is settled, or read again.

use crate::lsn::Lsn;
use crate::pipeline::Mark;

/// The oldest transaction of earlier sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Oldest {
    /// Commit time in Unix microseconds, and the position that settles everything the session read.
    left: Option<(i64, Lsn)>,
}

impl Oldest {
    /// The state after a session that settled up to `settled` and read everything before `reached`.
    #[must_use]
    pub fn after(self, settled: Lsn, reached: Mark, oldest_us: Option<i64>) -> Self {
        let Some(oldest) = oldest_us else { return self.settled(settled) };
        let until = reached.part.map_or(reached.end, |part| part.commit_lsn.next());
        Self { left: Some((oldest, until)) }
    }

    /// The state once everything up to `position` is confirmed.
    #[must_use]
    pub fn settled(self, position: Lsn) -> Self {
        Self { left: self.left.filter(|(_, until)| position < *until) }
    }

    /// Commit time of the oldest transaction. A session reads in order, so its own oldest comes
    /// first.
    pub fn with(self, settled: Lsn, oldest_us: Option<i64>) -> Option<i64> {
        oldest_us.or_else(|| self.settled(settled).time_us())
    }

    /// Commit time of the oldest transaction of earlier sessions.
    pub fn time_us(self) -> Option<i64> {
        self.left.map(|(oldest, _)| oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::PartialTransaction;

    fn left() -> Oldest {
        Oldest::default().after(Lsn::new(100), Mark::at(Lsn::new(200)), Some(7))
    }

    #[test]
    fn what_a_session_left_keeps_its_age_until_it_is_settled() {
        assert_eq!(left().time_us(), Some(7));
        let failed = left().after(Lsn::ZERO, Mark::default(), None);
        assert_eq!(failed.time_us(), Some(7));
        assert_eq!(failed.with(Lsn::new(150), None), Some(7));
        assert_eq!(failed.with(Lsn::new(150), Some(8)), Some(8));
        assert_eq!(failed.with(Lsn::new(200), None), None);
        assert_eq!(failed.settled(Lsn::new(200)).time_us(), None);
    }

    #[test]
    fn a_transaction_in_pieces_waits_for_its_commit() {
        let part = PartialTransaction { commit_lsn: Lsn::new(300), rows: 1 };
        let reached = Mark { part: Some(part), ..Mark::at(Lsn::new(200)) };
        let left = Oldest::default().after(Lsn::new(200), reached, Some(7));
        assert_eq!(left.settled(Lsn::new(300)).time_us(), Some(7));
        assert_eq!(left.settled(Lsn::new(301)).time_us(), None);
    }
}
