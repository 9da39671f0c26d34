//! Handles messages that are not outbox rows.
//!
//! An UPDATE of an outbox row, or a log other than the resumed one (G6), may be an error.

use super::Pipeline;
use super::error::PipelineError;
use super::mark::CommitId;
use super::policy::UpdatePolicy;
use super::resume::ResumeCheck;
use super::step::Handled;
use crate::ledger::LedgerError;
use crate::outbox::Position;
use crate::pgoutput::{Begin, Message};

impl Pipeline {
    pub(super) fn verify(
        &mut self,
        ask: impl FnOnce(&mut ResumeCheck) -> Result<bool, PipelineError>,
    ) -> Result<(), PipelineError> {
        if let Some(check) = &mut self.check
            && ask(check)?
        {
            self.check = None;
        }
        Ok(())
    }

    pub(super) fn note(&mut self, message: &Message<'_>) -> Result<Handled, PipelineError> {
        self.expect_nothing_unsent()?;
        match message {
            Message::Begin(begin) => {
                let Begin { final_lsn: lsn, commit_time, xid } = *begin;
                let commit = CommitId { lsn, xid, time_us: commit_time.0 };
                self.verify(|check| check.begin(commit))?;
                self.begun = Some(commit);
                self.suspects.passed(self.ledger.settled());
                let known_by = self.suspects.begins(lsn, xid);
                self.ledger.begin(known_by, begin.commit_time.unix_us())?;
                self.newest_commit_time_us = Some(begin.commit_time.unix_us());
                let (commit_lsn, commit_time) = (begin.final_lsn, begin.commit_time);
                let left_out = self.left_out.take().filter(|part| part.commit_lsn == commit_lsn);
                let index = left_out.map_or(0, |part| part.rows);
                self.at.next = Some(Position { commit_lsn, index, commit_time });
                self.counters.begins += 1;
            }
            Message::Commit(commit) => {
                self.ledger.commit(commit.end_lsn)?;
                let had_rows = self.at.next.take().is_some_and(|next| next.index > 0);
                if had_rows {
                    self.last = self.last.max(self.begun);
                    self.last_row = self.last_row.max(self.begun.map(|commit| commit.lsn));
                }
                self.counters.commits += 1;
            }
            Message::Relation(relation) => {
                self.outbox.relation(relation);
                self.counters.relations += 1;
            }
            Message::Type(named) => {
                self.outbox.type_name(named);
                self.counters.annotations += 1;
            }
            Message::Update(update) => self.updated(update.relation)?,
            Message::Delete(delete) => {
                self.counters.deletes += u64::from(self.outbox.table(delete.relation).is_some());
            }
            Message::Truncate(truncate) => {
                let ours = truncate.relations().any(|table| self.outbox.table(table).is_some());
                self.counters.truncates += u64::from(ours);
            }
            Message::Logical(_) => self.counters.logical_messages += 1,
            // Nothing was streamed before its commit, so nothing is revoked.
            Message::StreamAbort(abort) if self.at.next.is_some() => {
                return Err(LedgerError::AbortedWithin { xid: abort.xid }.into());
            }
            Message::Origin(_) | Message::StreamAbort(_) => self.counters.annotations += 1,
            Message::Insert(_) => {}
        }
        Ok(Handled::Done)
    }

    fn updated(&mut self, relation: u32) -> Result<(), PipelineError> {
        let Some(table) = self.outbox.table(relation) else { return Ok(()) };
        self.counters.updates += 1;
        match self.policy.on_update {
            UpdatePolicy::Ignore | UpdatePolicy::Warn | UpdatePolicy::Error => Ok(()),
            UpdatePolicy::Stop => Err(PipelineError::Updated { table: table.clone() }),
        }
    }
}
