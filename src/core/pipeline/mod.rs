//! Frame in, at most one record out; confirmation in, settled position out.
//!
//! Enters: the frames of one replication session, in order, and the confirmations of the records
//! it asked to send, in any order. Leaves: [`Step`]s, [`Answer`]s and [`Pipeline::settled`], the
//! one position that may be acknowledged to Postgres. No clock, socket or thread: the relay's loop
//! drives it, and so do scripts, fuzzers and the seeded simulation.
//!
//! Always holds:
//! * A record is counted as unconfirmed from the moment the sink took it until the brokers stored
//!   it or its dead letter, and nothing at or beyond it is settled before (G1).
//! * Records leave in the order of the stream (G2). A frame whose record was not taken is offered
//!   again and gives the same record under the same ticket.
//! * Nothing grows with what the peers do: one record is in hand, the ledger has a budget (G3).
//! * A row leaves as a record, as a dead letter under the ticket the record would have had, or as
//!   an explicit [`Skipped`]; going on without one of them is an error (G4).
//!
//! ```text
//!            +----------------- Full: the same frame again ----------------+
//!            v                                                             |
//!   frame -> row -> record ------> Send -> sink.send -- taken -> sent -> consume the frame
//!              \-> rejection \       ^          \
//!                  (by policy) -> dead letter <- reject (refused)
//! ```

mod allowance;
mod confirmation;
mod counters;
mod error;
mod inferred;
mod letter;
mod mark;
mod missing;
mod note;
mod place;
mod policy;
mod resume;
mod step;
mod suspects;
mod translator;

use crate::frame::Frame;
use crate::ledger::{Budget, InFlight, Ledger, Progress, Ticket};
use crate::lsn::Lsn;
use crate::outbox::{Outbox, Position};
use crate::pgoutput::{Excerpt, Insert, LogicalMessage, Message, decode};
use crate::route::{NO_TIMESTAMP, OwnedRecord, Rejection, RejectionCode, Routed, Router, untimed};

pub use allowance::Allowance;
pub use confirmation::{Aspect, Blame, Confirmation, Outcome, Refused};
pub use counters::{Counters, TopicTotal};
pub use error::PipelineError;
pub use mark::{CommitId, Mark, Part};
pub use missing::{
    AbsentTopic, CreateRule, Decision, MissingPolicy, MissingTopic, MissingTopics, TopicFault,
};
pub use policy::{Policy, RejectPolicy, UpdatePolicy};
pub use resume::ResumeCheck;
pub use step::{Answer, Outgoing, OwnedOutgoing, Skipped, Step};
pub use suspects::{Lesson, Suspects};
pub use translator::Translator;

use counters::TopicPlace;
use letter::{is_dead_letter, letter};
use place::Place;
use resume::covers;

/// The core of one session. Dropped with its stream and sink at the first error.
#[derive(Debug)]
pub struct Pipeline {
    outbox: Outbox,
    router: Router,
    policy: Policy,
    ledger: Ledger,
    counters: Counters,
    at: Place,
    /// What lies before it was stored by an earlier session.
    resume: Mark,
    /// What is still to be found in the log before anything is settled.
    check: Option<ResumeCheck>,
    /// The transaction that began last.
    begun: Option<CommitId>,
    /// The last one that had rows.
    last: Option<CommitId>,
    newest_commit_time_us: Option<i64>,
    suspects: Suspects,
    /// The record in hand: asked to be sent, neither taken nor given up.
    offered: Option<Offered>,
    /// The dead letter in hand, when `offered` is one.
    dead_letter: OwnedRecord,
}

#[derive(Debug, Clone, Copy)]
struct Offered {
    ticket: Ticket,
    topic: TopicPlace,
    rejection: Option<RejectionCode>,
}

/// What may be a row.
#[derive(Debug, Clone, Copy)]
struct Change<'a> {
    kind: Kind<'a>,
    /// What was kept of it, where it was too large to be held.
    excerpt: Option<&'a Excerpt>,
    /// The columns of which UTF-8 has no equivalent.
    untranslatable: &'a [usize],
    sent_us: i64,
}

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    Insert(Insert<'a>),
    Logical(LogicalMessage<'a>),
}

impl Kind<'_> {
    /// Whether it is a transaction of its own.
    const fn is_alone(&self) -> bool {
        matches!(self, Self::Logical(message) if !message.transactional)
    }
}

/// What a frame holds.
enum Found<'a> {
    Change(Change<'a>),
    Message(Message<'a>),
    Keepalive(Lsn),
}

impl Pipeline {
    /// A pipeline for a new session: `outbox` and `router` must come from one spec and know no
    /// table yet.
    pub fn new(outbox: Outbox, router: Router, policy: Policy, budget: Budget) -> Self {
        Self {
            outbox,
            router,
            policy,
            ledger: Ledger::new(budget),
            counters: Counters::default(),
            at: Place::default(),
            resume: Mark::default(),
            check: None,
            begun: None,
            last: None,
            newest_commit_time_us: None,
            suspects: Suspects::default(),
            offered: None,
            dead_letter: OwnedRecord::default(),
        }
    }

    /// Leaves out the rows before this mark, for an earlier session has stored them, once `check` has
    /// found that this is the log they came from. To be called before the first frame. Upholds G6.
    pub const fn resume_at(&mut self, mark: Mark, check: Option<ResumeCheck>) {
        (self.resume, self.check, self.last) = (mark, check, mark.last);
    }

    /// What earlier sessions found: these records go alone, or not again, and their rows as the policy
    /// says. To be called before the first frame.
    pub fn beware(&mut self, suspects: Suspects) {
        // What was not tried must not be lost for it.
        let infers = matches!(self.policy.rejected, RejectPolicy::DeadLetter { .. });
        self.suspects = suspects.inferring(infers);
    }

    /// What a later session is to know of the records that the brokers blame; `unnamed` is a topic that
    /// refused a batch for its size, and no record stood out.
    pub fn lesson(&self, blamed: &[Blame], unnamed: Option<&str>) -> Result<Lesson, PipelineError> {
        let letters = match &self.policy.rejected {
            RejectPolicy::DeadLetter { topic } => Some(topic.as_str()),
            RejectPolicy::Skip | RejectPolicy::Stop => None,
        };
        self.suspects.learn(blamed, letters, &self.ledger, unnamed)
    }

    /// What was handed over: every row before this mark is in the sink, was stored by an earlier
    /// session, or needs no record. Never goes back. To be asked between two frames.
    pub fn reached(&self) -> Mark {
        let end = self.ledger.horizon().max(self.resume.end);
        let part = self.at.part().filter(|part| part.commit_lsn >= end);
        let last = if part.is_some() { self.begun } else { self.last };
        Mark { end, part, last }.max(self.resume)
    }

    /// Takes the next frame of the stream, or the same one again while its record was not taken.
    /// To be called only while [`Pipeline::has_room`].
    pub fn frame<'a>(&'a mut self, frame: Frame<'a>) -> Result<Step<'a>, PipelineError> {
        match self.change(frame)? {
            Found::Change(change) => self.row(&change, None),
            Found::Message(message) => {
                self.expect_nothing_in_hand()?;
                self.note(&message)?;
                Ok(Step::Nothing)
            }
            Found::Keepalive(end) => {
                self.expect_nothing_in_hand()?;
                self.counters.keepalives += 1;
                self.verify(|check| check.keepalive(end))?;
                self.ledger.keepalive(end);
                Ok(Step::Nothing)
            }
        }
    }

    /// The sink took the record in hand; from now on it must be confirmed. To be called before the
    /// sink is polled again.
    pub fn sent(&mut self) -> Result<(), PipelineError> {
        let offered = self.offered.take().ok_or(PipelineError::NotOffered)?;
        self.ledger.count(offered.ticket)?;
        self.counters.count_record(offered.topic, offered.ticket.weight(), offered.rejection);
        self.at.row_done(&mut self.counters, &mut self.ledger)
    }

    /// The sink refused the record in hand, which came from this `frame`: the policy decides what
    /// goes in its place. A refused dead letter has no such place and ends the session.
    pub fn reject<'a>(
        &'a mut self,
        frame: Frame<'a>,
        rejection: Rejection,
    ) -> Result<Step<'a>, PipelineError> {
        let offered = self.offered.ok_or(PipelineError::NotOffered)?;
        if offered.rejection.is_some() {
            let topic = self.dead_letter.topic.clone();
            return Err(PipelineError::DeadLetterRefused { topic, rejection });
        }
        self.counters.topic_refused(offered.topic);
        match self.change(frame)? {
            Found::Change(change) => self.row(&change, Some(rejection)),
            Found::Message(_) | Found::Keepalive(_) => Err(PipelineError::NotOffered),
        }
    }

    /// Books what the brokers answered.
    pub fn confirm(&mut self, confirmation: Confirmation) -> Result<Answer, PipelineError> {
        let Confirmation { ticket, outcome } = confirmation;
        match outcome {
            Outcome::Stored => {
                self.ledger.confirm(ticket)?;
                self.counters.confirmed += 1;
                Ok(Answer::Stored)
            }
            Outcome::Refused(refused) => self.refused(ticket, refused),
        }
    }

    /// The position to acknowledge; see [`Ledger::settled`]. None while it is not certain that this
    /// is the log of the mark to go on at. Upholds G1.
    pub const fn settled(&self) -> Lsn {
        if self.check.is_some() { Lsn::ZERO } else { self.ledger.settled() }
    }

    /// Whether a frame may be offered; if not, stop reading. Upholds G3.
    pub fn has_room(&self) -> bool {
        self.ledger.has_room()
    }

    /// Whether everything received is settled: nothing unconfirmed, no transaction open.
    pub fn is_idle(&self) -> bool {
        self.ledger.in_flight() == InFlight::default()
    }

    /// Whether a transaction is open: its commit was not read yet.
    pub const fn is_open(&self) -> bool {
        self.at.next.is_some()
    }

    /// Whether to end here repeats nothing: no transaction is open of which anything was sent, in this
    /// session or, as the mark has it, in an earlier one.
    pub fn may_end_here(&self) -> bool {
        self.ledger.open_is_empty()
    }

    /// Where the last transaction committed that had rows.
    pub fn last_row(&self) -> Option<Lsn> {
        self.last.map(|commit| commit.lsn)
    }

    /// What is unconfirmed now.
    pub fn in_flight(&self) -> InFlight {
        self.ledger.in_flight()
    }

    /// How far confirmation has come.
    pub fn progress(&self) -> Progress {
        self.ledger.progress()
    }

    /// Commit time of the oldest transaction that is not settled, in microseconds since the Unix
    /// epoch.
    pub fn oldest_commit_time_us(&self) -> Option<i64> {
        self.ledger.oldest_commit_time()
    }

    /// Commit time of the newest transaction begun, in microseconds since the Unix epoch.
    pub const fn newest_commit_time_us(&self) -> Option<i64> {
        self.newest_commit_time_us
    }

    /// Commit times, in microseconds since the Unix epoch, of the transactions that settled since
    /// the last call; see [`Ledger::drain_settled_times`].
    pub fn drain_settled_times_us(&mut self) -> std::vec::Drain<'_, i64> {
        self.ledger.drain_settled_times()
    }

    /// Whether dead letters go to this topic.
    pub fn sends_dead_letters_to(&self, topic: &str) -> bool {
        matches!(&self.policy.rejected, RejectPolicy::DeadLetter { topic: known } if known == topic)
    }

    /// UPDATEs of outbox tables that the operator wants to be told of, and what to do about them.
    pub fn unwelcome_updates(&self) -> (u64, UpdatePolicy) {
        let updates = match self.policy.on_update {
            UpdatePolicy::Warn | UpdatePolicy::Error => self.counters.updates,
            UpdatePolicy::Ignore | UpdatePolicy::Stop => 0,
        };
        (updates, self.policy.on_update)
    }

    /// Totals of this session.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn change<'a>(&self, frame: Frame<'a>) -> Result<Found<'a>, PipelineError> {
        let (data, sent_us, excerpt, untranslatable) = match frame {
            Frame::Wal { data, sent_us, .. } => (data, sent_us, None, &[][..]),
            Frame::Untranslatable { data, sent_us, columns, .. } => (data, sent_us, None, columns),
            Frame::Excerpt { excerpt, sent_us, .. } => {
                (excerpt.message(), sent_us, Some(excerpt), excerpt.untranslatable())
            }
            Frame::Keepalive { end, .. } => return Ok(Found::Keepalive(end)),
        };
        let kind = match decode(data)? {
            Message::Insert(insert) => Kind::Insert(insert),
            Message::Logical(message) if self.outbox.is_row_of(&message, excerpt) => {
                Kind::Logical(message)
            }
            message => return Ok(Found::Message(message)),
        };
        Ok(Found::Change(Change { kind, excerpt, untranslatable, sent_us }))
    }

    fn row<'a>(
        &'a mut self,
        change: &Change<'a>,
        refused: Option<Rejection>,
    ) -> Result<Step<'a>, PipelineError> {
        let Change { kind, excerpt, untranslatable, sent_us } = *change;
        let row = match &kind {
            Kind::Insert(insert) => {
                self.outbox.row_of(insert, excerpt, untranslatable, self.at.open()?)?
            }
            Kind::Logical(message) => {
                let position = self.at.message(message, sent_us, &mut self.ledger)?;
                self.newest_commit_time_us = Some(position.commit_time.unix_us());
                Some(self.outbox.message_row(message, excerpt, position))
            }
        };
        let Some(row) = row else {
            let in_hand = self.offered.is_some();
            self.counters.foreign_rows += u64::from(!in_hand);
            return if in_hand { Err(PipelineError::NotSent) } else { Ok(Step::Nothing) };
        };
        if covers(self.resume, self.check, row.position(), kind.is_alone())? {
            self.counters.repeats += 1; // Upholds G6: it is not sent again.
            self.at.row_done(&mut self.counters, &mut self.ledger)?;
            return Ok(Step::Nothing);
        }
        let routed = refused.map_or_else(|| self.router.check(&row), Err);
        let record = |routed: &Routed| self.router.record(&row, routed);
        let rejection = match self.suspects.judge((row.position(), sent_us), routed, record) {
            (Ok(Some(routed)), alone) => {
                let record = self.router.record(&row, &routed);
                let ticket = self.ledger.next_ticket(record.weight())?;
                let topic = self.counters.topic_place(record.topic);
                self.offered = Some(Offered { ticket, topic, rejection: None });
                return Ok(Step::Send(Outgoing { record, ticket, rejection: None, alone }));
            }
            (Ok(None), _) => {
                self.counters.dropped += 1;
                self.at.row_done(&mut self.counters, &mut self.ledger)?;
                return Ok(Step::Nothing);
            }
            (Err(rejection), _) => rejection,
        };
        // Upholds G4: a row that is no record goes one of three ways, each of them told.
        match &self.policy.rejected {
            RejectPolicy::DeadLetter { topic } => {
                let (letter, alone) =
                    letter(&self.router, &mut self.suspects, (&row, sent_us), &rejection, topic)?;
                self.dead_letter = letter;
                let record = self.dead_letter.as_record();
                let ticket = self.ledger.next_ticket(record.weight())?;
                let topic = self.counters.topic_place(record.topic);
                let rejection = Some(rejection.code);
                self.offered = Some(Offered { ticket, topic, rejection });
                Ok(Step::Send(Outgoing { record, ticket, rejection, alone }))
            }
            RejectPolicy::Stop => Err(PipelineError::Rejected {
                row: format!("row {} of {}", printed(row.position()), row.table()),
                rejection,
            }),
            RejectPolicy::Skip => {
                self.offered = None;
                self.counters.skipped += 1;
                self.counters.count_rejection(rejection.code);
                self.at.row_done(&mut self.counters, &mut self.ledger)?;
                let (id, position) = (self.router.id_of(&row), row.position());
                Ok(Step::Skipped(Skipped { table: row.table(), id, position, rejection }))
            }
        }
    }

    /// The brokers refused what the sink took: its ticket is still waiting.
    fn refused(&mut self, ticket: Ticket, refused: Box<Refused>) -> Result<Answer, PipelineError> {
        let rejection = &refused.rejection;
        match &self.policy.rejected {
            RejectPolicy::DeadLetter { topic }
                if *topic == refused.record.topic && is_dead_letter(&refused.record) =>
            {
                // Perhaps for its time: a producer that says so does not say for what.
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
                let (place, weight) =
                    (self.counters.topic_place(topic), record.as_record().weight() as u64);
                self.counters.count_dead_letter(place, weight, rejection);
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

    fn expect_nothing_in_hand(&self) -> Result<(), PipelineError> {
        if self.offered.is_some() { Err(PipelineError::NotSent) } else { Ok(()) }
    }
}

/// As in the header `postrider-lsn` and in Postgres's tools.
fn printed(position: Position) -> String {
    format!("{}.{}", position.commit_lsn, position.index)
}

#[cfg(test)]
mod tests;
