//! Remembers the commit up to which this process has delivered.
//!
//! PostgreSQL writes the position of a logical slot to disk only occasionally, and before version
//! 17 not even at a clean stop. A relay without progress in Kafka would repeat all later rows.
//!
//! Invariant: every row before the mark was confirmed (G1), and the server's log contains the
//! mark's commit. The mark counts only after a restart or a crash recovery of the server; otherwise
//! the slot may have been moved on purpose.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RelayError;
use postrider_core::gate::{Facts, GateError};
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{Mark, Pipeline, ResumeCheck};
use postrider_kafka::Lineage;
use postrider_postgres::control::SlotSample;

#[derive(Debug, Clone)]
struct Last {
    lineage: Lineage,
    server_recovered_us: i64,
    mark: Mark,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Delivered {
    last: Arc<Mutex<Option<Last>>>,
}

impl Delivered {
    /// Resumes at the last mark if the server has forgotten that position.
    pub(super) fn begin(
        &self,
        facts: &Facts,
        slot: &SlotSample,
        pipeline: &mut Pipeline,
    ) -> DeliveredNotes {
        if let Some((mark, check)) = self.resume(facts, slot) {
            tracing::info!(
                slot = facts.lineage.slot,
                delivered = %mark.end,
                confirmed = %facts.confirmed,
                "the server restarted with an older slot position; skipping the rows delivered before"
            );
            pipeline.resume_at(mark, Some(check));
        }
        self.of_session(facts, slot)
    }

    fn resume(&self, facts: &Facts, slot: &SlotSample) -> Option<(Mark, ResumeCheck)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Last { lineage, server_recovered_us, mark } = last.as_ref()?;
        let is_restarted = *server_recovered_us != slot.server_recovered_us;
        let is_here = facts.confirmed < mark.end && mark.end <= facts.server;
        if !is_restarted || !is_here || *lineage != facts.lineage {
            return None;
        }
        let check = ResumeCheck::new(*mark, facts.confirmed, true)?;
        Some((*mark, check))
    }

    /// Forgets a mark whose commit is not in the log, so the next session skips no rows.
    pub(super) fn judge(&self, error: RelayError) -> RelayError {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some() && matches!(error, RelayError::Gate(GateError::OtherLog { .. })) {
            *last = None;
            return RelayError::SourceChanged;
        }
        error
    }

    fn of_session(&self, facts: &Facts, slot: &SlotSample) -> DeliveredNotes {
        DeliveredNotes {
            delivered: self.clone(),
            lineage: facts.lineage.clone(),
            server_recovered_us: slot.server_recovered_us,
            next: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct DeliveredNotes {
    delivered: Delivered,
    lineage: Lineage,
    server_recovered_us: i64,
    /// Handed over, but not yet known to be settled.
    next: Option<Mark>,
}

impl DeliveredNotes {
    /// Only a mark names the last commit before it, so the mark is kept until the rows before it
    /// are settled.
    pub(super) fn reached(&mut self, mark: Mark) {
        self.next.get_or_insert(Mark { part: None, ..mark });
    }

    pub(super) fn settled(&mut self, settled: Lsn) {
        let Some(mark) = self.next.take_if(|next| next.end <= settled) else { return };
        if mark.last.is_some() {
            let (lineage, server_recovered_us) = (self.lineage.clone(), self.server_recovered_us);
            let last = Last { lineage, server_recovered_us, mark };
            *self.delivered.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pipeline::CommitId;

    fn mark(end: u64) -> Mark {
        let last = Some(CommitId { lsn: Lsn::new(end - 1), xid: 7, time_us: 70 });
        Mark { last, ..Mark::at(Lsn::new(end)) }
    }

    fn slot(server_recovered_us: i64) -> SlotSample {
        SlotSample {
            current: Lsn::new(900),
            confirmed_flush: Lsn::new(100),
            restart: None,
            wal_status: String::new(),
            safe_wal_bytes: None,
            active_pid: None,
            server_started_us: 1,
            server_recovered_us,
            server_now_us: server_recovered_us,
            next_xid: 0,
        }
    }

    fn facts(confirmed: u64, server: u64) -> Facts {
        Facts { confirmed: Lsn::new(confirmed), server: Lsn::new(server), ..Facts::default() }
    }

    fn settled() -> Delivered {
        let delivered = Delivered::default();
        let mut notes = delivered.of_session(&facts(100, 900), &slot(1));
        notes.reached(mark(500));
        notes.settled(Lsn::new(200));
        notes.reached(mark(600));
        notes.settled(Lsn::new(520));
        delivered
    }

    #[test]
    fn a_server_that_was_restarted_is_resumed_at_the_settled_mark() {
        let (resumed, _) = settled().resume(&facts(100, 900), &slot(2)).unwrap();
        assert_eq!(resumed, mark(500));
    }

    #[test]
    fn g1_a_mark_is_kept_only_once_all_before_it_is_settled() {
        let delivered = Delivered::default();
        let mut notes = delivered.of_session(&facts(100, 900), &slot(1));
        notes.reached(mark(500));
        notes.settled(Lsn::new(499));
        assert!(delivered.resume(&facts(100, 900), &slot(2)).is_none());
    }

    #[test]
    fn g1_a_mark_of_another_log_or_server_is_not_used() {
        let of = |facts: &Facts, started| settled().resume(facts, &slot(started)).is_some();
        assert!(!of(&facts(100, 900), 1), "the server was not restarted: its slot was moved");
        assert!(!of(&facts(100, 499), 2), "the log ends before the mark");
        assert!(!of(&facts(500, 900), 2), "the slot remembers it");
        let mut other = facts(100, 900);
        other.lineage.timeline = 2;
        assert!(!of(&other, 2), "the server was promoted");
        let forgetful = settled();
        let other = CommitId { lsn: Lsn::new(499), xid: 8, time_us: 0 };
        let error = || GateError::OtherLog { delivered: other }.into();
        assert!(matches!(forgetful.judge(error()), RelayError::SourceChanged));
        assert!(matches!(forgetful.judge(error()), RelayError::Gate(_)), "progress in Kafka");
        assert!(forgetful.resume(&facts(100, 900), &slot(2)).is_none());
    }
}
