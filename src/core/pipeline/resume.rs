//! Checks that the server's log is the one from which rows were delivered.
//!
//! A restored copy that has grown has equal system identifier, timeline and slot, but other rows.
//! Id and time of the last delivered commit distinguish the logs: Postgres sends that commit again
//! unless it was acknowledged, and then the copy has it too.

use super::error::PipelineError;
use super::mark::{CommitId, Mark};
use crate::lsn::Lsn;
use crate::outbox::Position;

/// Evidence to find while the log is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeCheck {
    last: CommitId,
    /// Up to here there are only rows up to `last`.
    end: Lsn,
    found: bool,
    /// True if rows are counted as when the mark was made.
    same_rows: bool,
}

impl ResumeCheck {
    /// The evidence for resuming at `mark`; `None` if nothing before it is sent again. Without
    /// `same_rows`, tables or prefixes have changed, and other rows may precede the mark. Only a
    /// different commit at the last position is then an error.
    pub fn new(mark: Mark, confirmed: Lsn, same_rows: bool) -> Option<Self> {
        let last = mark.last?;
        let found = confirmed > last.lsn;
        let is_done = found && (confirmed >= mark.end || !same_rows);
        (!is_done).then_some(Self { last, end: mark.end, found, same_rows })
    }

    /// True once the check is complete.
    pub(super) fn begin(&mut self, commit: CommitId) -> Result<bool, PipelineError> {
        if commit.lsn == self.last.lsn {
            if commit != self.last {
                return Err(self.contradicted());
            }
            self.found = true;
        }
        self.passed(commit.lsn)
    }

    pub(super) fn keepalive(&mut self, end: Lsn) -> Result<bool, PipelineError> {
        self.passed(end)
    }

    /// Everything that committed before `lsn` was sent.
    fn passed(&mut self, lsn: Lsn) -> Result<bool, PipelineError> {
        if lsn > self.last.lsn && !self.found {
            return if self.same_rows { Err(self.contradicted()) } else { Ok(true) };
        }
        Ok(self.found && (lsn >= self.end || !self.same_rows))
    }

    /// `alone`: the row is its own transaction, whose number and time are not known.
    pub(super) fn row(&self, row: Position, alone: bool) -> Result<(), PipelineError> {
        let at = row.commit_lsn;
        let after_last = at > self.last.lsn && at < self.end && !alone;
        let before_last = at < self.last.lsn && at >= self.end;
        let skipped_last = alone && at >= self.last.lsn && !self.found;
        if self.same_rows && (after_last || before_last || skipped_last) {
            return Err(self.contradicted());
        }
        Ok(())
    }

    const fn contradicted(&self) -> PipelineError {
        PipelineError::OtherLog { delivered: self.last }
    }
}

/// True if the row lies before the mark.
pub(super) fn covers(
    mark: Mark,
    check: Option<ResumeCheck>,
    row: Position,
    alone: bool,
) -> Result<bool, PipelineError> {
    check.map_or(Ok(()), |check| check.row(row, alone))?;
    Ok(mark.covers(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::PgTime;

    const LAST: CommitId = CommitId { lsn: Lsn::new(500), xid: 7, time_us: 70 };

    fn mark(end: u64) -> Mark {
        Mark { last: Some(LAST), ..Mark::at(Lsn::new(end)) }
    }

    fn check(confirmed: u64) -> ResumeCheck {
        ResumeCheck::new(mark(600), Lsn::new(confirmed), true).unwrap()
    }

    fn commit(lsn: u64, xid: u32) -> CommitId {
        CommitId { lsn: Lsn::new(lsn), xid, time_us: 70 }
    }

    fn row(commit_lsn: u64) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), index: 0, commit_time: PgTime(0) }
    }

    #[test]
    fn g6_the_last_commit_at_its_place_is_all_that_is_demanded() {
        let mut check = check(500);
        assert_eq!(check.begin(commit(400, 6)), Ok(false));
        assert_eq!(check.row(row(400), false), Ok(()));
        assert_eq!(check.begin(LAST), Ok(false));
        assert_eq!(check.row(row(500), false), Ok(()));
        assert_eq!(check.row(row(550), true), Ok(()));
        assert_eq!(check.keepalive(Lsn::new(599)), Ok(false));
        assert_eq!(check.keepalive(Lsn::new(600)), Ok(true));
    }

    #[test]
    fn g1_another_commit_none_or_a_row_too_many_is_another_log() {
        assert!(check(300).begin(commit(500, 8)).is_err());
        assert!(check(300).begin(CommitId { time_us: 71, ..LAST }).is_err());
        assert!(check(300).begin(commit(501, 9)).is_err());
        assert!(check(300).keepalive(Lsn::new(501)).is_err());
        assert!(check(300).row(row(510), true).is_err());
        let mut check = check(300);
        assert_eq!(check.begin(LAST), Ok(false));
        assert_eq!(check.begin(commit(550, 9)), Ok(false));
        assert!(check.row(row(550), false).is_err());
        // The commit of a partly delivered transaction lies after the mark.
        let half = ResumeCheck::new(mark(450), Lsn::new(300), true).unwrap();
        assert!(half.row(row(460), false).is_err() && half.row(row(440), false).is_ok());
    }

    #[test]
    fn what_is_not_sent_again_is_not_demanded() {
        assert_eq!(ResumeCheck::new(mark(600), Lsn::new(600), true), None);
        assert_eq!(ResumeCheck::new(Mark::at(Lsn::new(600)), Lsn::new(300), true), None);
        let mut behind_last = check(501);
        assert_eq!(behind_last.begin(commit(550, 9)), Ok(false));
        assert!(behind_last.row(row(550), false).is_err());
        assert_eq!(behind_last.keepalive(Lsn::new(700)), Ok(true));
    }

    #[test]
    fn with_other_tables_only_another_commit_at_the_same_place_tells() {
        let fresh = || ResumeCheck::new(mark(600), Lsn::new(300), false).unwrap();
        assert!(fresh().begin(commit(500, 8)).is_err());
        assert_eq!(fresh().row(row(550), false), Ok(()));
        assert_eq!(fresh().begin(commit(501, 9)), Ok(true));
        assert_eq!(fresh().begin(LAST), Ok(true));
        assert_eq!(ResumeCheck::new(mark(600), Lsn::new(501), false), None);
    }
}
