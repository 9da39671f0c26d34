//! The pipeline of one session: turns frames into records, and confirmations into the position to
//! acknowledge.
//!
//! Input: frames, and confirmations in any order. Output: records, [`Answer`]s and
//! [`Pipeline::settled`].
//!
//! Invariants:
//! * Nothing at or beyond a record is settled before the brokers stored it or its dead letter (G1).
//! * Records leave in the order of the stream (G2). A repeated frame yields an equal record.
//! * The ledger's budget bounds memory (G3).
//! * A row leaves as a record, a dead letter, or an explicit [`Skipped`], unless a rule drops it or
//!   an earlier session stored it (G4).
//!
//! ```text
//!   frame -> row -> record -------> send -- taken ---------> Handled::Done: consume the frame
//!              \-> rejection \       ^   \- full ----------> Handled::Full: the same frame again
//!                 (by policy) -> dead letter <- refused
//! ```

mod allowance;
mod confirmation;
mod counters;
mod error;
mod inferred;
mod mark;
mod missing;
mod note;
mod policy;
mod rejected;
mod resume;
mod step;
mod stream_position;
mod suspects;
mod trace_sampler;
mod translator;

use crate::frame::Frame;
use crate::ledger::{Budget, InFlight, Ledger, LedgerProgress, Ticket};
use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};
use crate::outbox::{Outbox, Position};
use crate::pgoutput::{Message, decode};
use crate::record::LetterSource;
use crate::route::{NO_TIMESTAMP, Router, untimed};
use crate::sink::{CommitPlace, SendError, Sink};

pub use allowance::Allowance;
pub use confirmation::{Blame, Confirmation, Outcome, RefusalCause, Refused};
pub use counters::{Counters, TopicTotal};
pub use error::PipelineError;
pub use mark::{CommitId, Mark, PartialTransaction};
pub use missing::{
    AbsentTopic, CreateRule, MissingPolicy, MissingTopic, MissingTopics, TopicDecision, TopicFault,
};
pub use policy::{Policy, RejectPolicy, UpdatePolicy};
pub use resume::ResumeCheck;
pub use step::{Answer, Handled, Outgoing, OwnedOutgoing, SentDeadLetter, Skipped};
pub use suspects::{RefusalAnalysis, Suspects};
pub use trace_sampler::TraceSampler;
pub use translator::Translator;

use rejected::{Rejected, check_letters, is_dead_letter, rejected};
use resume::covers;
use stream_position::StreamPosition;

/// The core of one session. Drop it with its stream and sink at the first error.
#[derive(Debug)]
pub struct Pipeline {
    outbox: Outbox,
    router: Router,
    policy: Policy,
    ledger: Ledger,
    counters: Counters,
    at: StreamPosition,
    resume: Mark,
    check: Option<ResumeCheck>,
    begun: Option<CommitId>,
    last: Option<CommitId>,
    /// Position of the last row, also of a non-transactional message.
    last_row: Option<Lsn>,
    newest_commit_time_us: Option<i64>,
    suspects: Suspects,
    has_unsent: bool,
    /// Rows that are not sent again.
    left_out: Option<PartialTransaction>,
    traces: TraceSampler,
}

impl Pipeline {
    /// Creates a pipeline. `outbox` and `router` must come from one spec and must not know any
    /// table yet.
    pub fn new(outbox: Outbox, router: Router, policy: Policy, budget: Budget) -> Self {
        Self {
            outbox,
            router,
            policy,
            ledger: Ledger::new(budget),
            counters: Counters::default(),
            at: StreamPosition::default(),
            resume: Mark::default(),
            check: None,
            begun: None,
            last: None,
            last_row: None,
            newest_commit_time_us: None,
            suspects: Suspects::default(),
            has_unsent: false,
            left_out: None,
            traces: TraceSampler::default(),
        }
    }

    /// Adds the stream's names to dead letters.
    pub fn name_source(&mut self, source: &LetterSource) {
        self.router.name_source(source);
    }

    /// Skips the rows before this mark, once `check` has confirmed the log. Call it before the
    /// first frame. Upholds G6.
    pub fn resume_at(&mut self, mark: Mark, check: Option<ResumeCheck>) {
        if mutants::is(Mutant::IgnoresProgress) {
            return;
        }
        (self.resume, self.check, self.last) = (mark, check, mark.last);
        self.last_row = mark.last.map(|commit| commit.lsn);
    }

    /// Skips the part of the first transaction before the mark, but counts its rows as for a table.
    /// Call it after [`Pipeline::resume_at`] and before the first frame.
    pub const fn begin_within(&mut self) {
        self.left_out = self.resume.part;
    }

    /// Sets the findings of earlier sessions. Call it before the first frame.
    pub fn set_suspects(&mut self, suspects: Suspects) {
        // Without dead letters, records that were not tried would be lost.
        let infers = matches!(self.policy.rejected, RejectPolicy::DeadLetter { .. });
        self.suspects = suspects.inferring(infers);
    }

    /// Identifies each transaction by its number, because positions of polled rows are meaningless.
    /// Call it after [`Pipeline::set_suspects`].
    pub fn identify_rows(&mut self) {
        self.suspects = std::mem::take(&mut self.suspects).by_row();
    }

    /// Findings about blamed records. `unnamed`: a topic that refused a batch for its size,
    /// although no record stood out. An error if the brokers refuse a dead letter whatever its size
    /// and time.
    pub fn analyse_refusals(
        &self,
        blamed: &[Blame],
        unnamed: Option<&str>,
    ) -> Result<RefusalAnalysis, PipelineError> {
        let letters = match &self.policy.rejected {
            RejectPolicy::DeadLetter { topic } => Some(topic.as_str()),
            RejectPolicy::Skip | RejectPolicy::Stop => None,
        };
        check_letters(blamed, letters)?;
        self.suspects.learn(blamed, letters, &self.ledger, unnamed)
    }

    /// The mark before which every row is sent, stored, or needs no record. Ask between two frames.
    pub fn reached(&self) -> Mark {
        let end = self.ledger.horizon().max(self.resume.end);
        let part = self.at.part().filter(|part| part.commit_lsn >= end);
        let last = if part.is_some() { self.begun } else { self.last };
        Mark { end, part, last }.max(self.resume)
    }

    /// Takes the next frame, or repeats the last one after [`Handled::Full`]. `send` receives the
    /// row's record or dead letter; everything that it takes must be confirmed. Call it only while
    /// [`Pipeline::has_room`].
    #[inline]
    pub fn frame<E: From<PipelineError>>(
        &mut self,
        frame: Frame<'_>,
        mut send: impl FnMut(&Outgoing<'_>) -> Result<(), SendError<E>>,
    ) -> Result<Handled, E> {
        let (data, sent_us, excerpt, untranslatable) = match frame {
            Frame::Wal { data, sent_us, .. } => (data, sent_us, None, &[][..]),
            Frame::Untranslatable { data, sent_us, columns, .. } => (data, sent_us, None, columns),
            Frame::Excerpt { excerpt, sent_us, .. } => {
                (excerpt.message(), sent_us, Some(excerpt), excerpt.untranslatable())
            }
            Frame::Keepalive { end, .. } => return Ok(self.keepalive(end)?),
        };
        let message = decode(data).map_err(PipelineError::from)?;
        let mut is_lone = false;
        let row = match &message {
            Message::Insert(insert) => {
                let position = self.at.open()?;
                let row = self.outbox.row_of(insert, excerpt, untranslatable, position);
                row.map_err(PipelineError::from)?
            }
            Message::Logical(message) if self.outbox.is_row_of(message, excerpt) => {
                let position = self.at.message(message, sent_us, &mut self.ledger)?;
                self.newest_commit_time_us = Some(position.commit_time.unix_us());
                is_lone = !message.transactional;
                Some(self.outbox.message_row(message, excerpt, position))
            }
            _ => return Ok(self.note(&message)?),
        };
        let Some(row) = row else { return Ok(self.foreign_row()?) };
        if covers(self.resume, self.check, row.position(), is_lone)? {
            self.counters.repeats += 1; // Upholds G6: it is not sent again.
            self.done()?;
            return Ok(Handled::Done);
        }
        let taken = match self.router.route(&row) {
            Ok(Some(record)) => match self.suspects.judge((row.position(), sent_us), &record) {
                Ok(alone) => {
                    let (topic, weight) = (record.topic, record.weight());
                    let position = Some(row.position());
                    self.traces.consider(&record, row.position().commit_time.unix_us());
                    let taken = self.ledger.send(weight, |ticket| {
                        send(&Outgoing { record, ticket, rejection: None, alone, position })
                    });
                    let taken = taken.map_err(PipelineError::from)?;
                    taken.inspect(|()| self.counters.count_record(topic, weight as u64, None))
                }
                Err(rejection) => Err(SendError::Refused(rejection)),
            },
            Ok(None) => {
                self.counters.dropped += 1;
                Ok(())
            }
            Err(rejection) => Err(SendError::Refused(rejection)),
        };
        match taken {
            Ok(()) => {
                self.done()?;
                Ok(Handled::Done)
            }
            Err(SendError::Full) => Ok(self.unsent()?),
            Err(SendError::Broken(error)) => Err(error),
            Err(SendError::Refused(rejection)) => {
                let (rejects, position) = (&self.policy.rejected, row.position());
                let row = (&row, sent_us);
                let rejected = rejected(rejects, &self.router, &mut self.suspects, row, rejection)?;
                self.leave(rejected, position, send)
            }
        }
    }

    /// Books the brokers' answer.
    pub fn confirm(&mut self, confirmation: Confirmation) -> Result<Answer, PipelineError> {
        let Confirmation { ticket, outcome } = confirmation;
        match outcome {
            Outcome::Stored => {
                self.ledger.confirm(ticket)?;
                self.counters.confirmed += 1;
                Ok(Answer::Stored)
            }
            Outcome::Refused(_) if mutants::is(Mutant::ForgetsRefused) => {
                self.ledger.confirm(ticket)?;
                Ok(Answer::Stored)
            }
            Outcome::Refused(refused) => self.refused(ticket, refused),
        }
    }

    /// Reports commits to an observed sink.
    pub fn tell_commits(&self, confirmations: &[Confirmation], sink: &mut impl Sink) {
        for &Confirmation { ticket, .. } in confirmations {
            let place = (self.ledger.commit_lsn(ticket), self.ledger.commit_time(ticket));
            if let (Ok(lsn), Ok(time_us)) = place {
                sink.confirmed(ticket, CommitPlace { lsn, time_us });
            }
        }
    }

    /// The position to acknowledge; zero until `check` is done. Upholds G1.
    pub const fn settled(&self) -> Lsn {
        if self.check.is_some() { Lsn::ZERO } else { self.ledger.settled() }
    }

    /// True if a frame may be submitted; if not, stop reading. Upholds G3.
    pub fn has_room(&self) -> bool {
        self.ledger.has_room()
    }

    /// True if everything received is settled.
    pub fn is_idle(&self) -> bool {
        self.ledger.in_flight() == InFlight::default()
    }

    /// True inside a transaction.
    pub const fn is_open(&self) -> bool {
        self.at.next.is_some()
    }

    /// True if ending here repeats nothing: nothing of an open transaction was sent.
    pub fn may_end_here(&self) -> bool {
        self.ledger.open_is_empty()
    }

    /// Commit position of the last row.
    pub const fn last_row(&self) -> Option<Lsn> {
        self.last_row
    }

    /// What is unconfirmed now.
    pub fn in_flight(&self) -> InFlight {
        self.ledger.in_flight()
    }

    /// The ledger's progress.
    pub fn progress(&self) -> LedgerProgress {
        self.ledger.progress()
    }

    /// Commit time of the oldest unsettled transaction, in Unix microseconds.
    pub fn oldest_commit_time_us(&self) -> Option<i64> {
        self.ledger.oldest_commit_time()
    }

    /// Commit time of the newest transaction, in Unix microseconds.
    pub const fn newest_commit_time_us(&self) -> Option<i64> {
        self.newest_commit_time_us
    }

    /// Commit times of newly settled transactions, in Unix microseconds, and the sampler of their
    /// traces.
    pub fn drain_settled_times_us(&mut self) -> (std::vec::Drain<'_, i64>, &mut TraceSampler) {
        (self.ledger.drain_settled_times(), &mut self.traces)
    }

    /// True if dead letters go to this topic.
    pub fn sends_dead_letters_to(&self, topic: &str) -> bool {
        matches!(&self.policy.rejected, RejectPolicy::DeadLetter { topic: known } if known == topic)
    }

    /// Outbox UPDATEs to report, and their policy.
    pub fn unwelcome_updates(&self) -> (u64, UpdatePolicy) {
        let updates = match self.policy.on_update {
            UpdatePolicy::Warn | UpdatePolicy::Error => self.counters.updates,
            UpdatePolicy::Ignore | UpdatePolicy::Stop => 0,
        };
        (updates, self.policy.on_update)
    }

    /// Totals.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Upholds G4: a row without a record leaves as a dead letter, or its omission is reported.
    #[cold]
    fn leave<E: From<PipelineError>>(
        &mut self,
        rejected: Rejected,
        position: Position,
        mut send: impl FnMut(&Outgoing<'_>) -> Result<(), SendError<E>>,
    ) -> Result<Handled, E> {
        let (letter, code, alone) = match rejected {
            Rejected::Letter { letter, code, alone } => (letter, code, alone),
            Rejected::Skip(skipped) => {
                self.counters.skipped += 1;
                self.counters.count_rejection(skipped.rejection.code);
                self.done()?;
                return Ok(Handled::Skipped(skipped));
            }
        };
        let (record, rejection) = (letter.as_record(), Some(code));
        let weight = record.weight();
        let position = Some(position);
        let taken = self
            .ledger
            .send(weight, |ticket| send(&Outgoing { record, ticket, rejection, alone, position }));
        match taken.map_err(PipelineError::from)? {
            Ok(()) => {
                self.counters.count_record(&letter.topic, weight as u64, rejection);
                self.done()?;
                Ok(Handled::DeadLetter(Box::new(SentDeadLetter { record: letter, code })))
            }
            Err(SendError::Full) => Ok(self.unsent()?),
            Err(SendError::Refused(rejection)) => {
                Err(PipelineError::DeadLetterRefused { topic: letter.topic, rejection }.into())
            }
            Err(SendError::Broken(error)) => Err(error),
        }
    }

    fn refused(&mut self, ticket: Ticket, refused: Box<Refused>) -> Result<Answer, PipelineError> {
        let rejection = &refused.rejection;
        match &self.policy.rejected {
            RejectPolicy::DeadLetter { topic }
                if *topic == refused.record.topic && is_dead_letter(&refused.record) =>
            {
                // Possibly for its time: a producer does not name the cause.
                if refused.record.timestamp_ms != NO_TIMESTAMP {
                    let commit_ms = self.ledger.commit_time(ticket)?.div_euclid(1000);
                    let rejection = refused.rejection.code;
                    let record = untimed(refused.record, commit_ms);
                    return Ok(Answer::Send(Box::new(OwnedOutgoing { record, ticket, rejection })));
                }
                let (topic, rejection) = (topic.clone(), refused.rejection);
                Err(PipelineError::DeadLetterRefused { topic, rejection })
            }
            RejectPolicy::DeadLetter { topic } => {
                let commit_ms = self.ledger.commit_time(ticket)?.div_euclid(1000);
                let record = (self.router).dead_letter_of_refused(
                    &refused.record,
                    rejection,
                    topic,
                    commit_ms,
                );
                let rejection = rejection.code;
                let weight = record.as_record().weight() as u64;
                self.counters.count_dead_letter(topic, weight, rejection);
                Ok(Answer::Send(Box::new(OwnedOutgoing { record, ticket, rejection })))
            }
            RejectPolicy::Stop => Err(PipelineError::Rejected {
                row: format!("a record for topic `{}`", refused.record.topic),
                rejection: refused.rejection,
            }),
            RejectPolicy::Skip => {
                self.ledger.confirm(ticket)?;
                self.counters.skipped += 1;
                self.counters.count_rejection(rejection.code);
                Ok(Answer::Skipped(refused))
            }
        }
    }

    fn done(&mut self) -> Result<(), PipelineError> {
        self.has_unsent = false;
        self.last_row = self.at.lone().or(self.last_row);
        self.at.row_done(&mut self.counters, &mut self.ledger)
    }

    #[cold]
    fn unsent(&mut self) -> Result<Handled, PipelineError> {
        if mutants::is(Mutant::ConsumesUnsent) {
            self.done()?;
            return Ok(Handled::Done);
        }
        self.has_unsent = true;
        Ok(Handled::Full)
    }

    fn foreign_row(&mut self) -> Result<Handled, PipelineError> {
        self.expect_nothing_unsent()?;
        self.counters.foreign_rows += 1;
        Ok(Handled::Done)
    }

    fn keepalive(&mut self, end: Lsn) -> Result<Handled, PipelineError> {
        self.expect_nothing_unsent()?;
        self.counters.keepalives += 1;
        self.verify(|check| check.keepalive(end))?;
        self.suspects.marked();
        self.ledger.keepalive(end);
        Ok(Handled::Done)
    }

    fn expect_nothing_unsent(&self) -> Result<(), PipelineError> {
        if self.has_unsent { Err(PipelineError::NotSent) } else { Ok(()) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
