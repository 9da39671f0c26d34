//! Defines the trait [`Sink`]: what a session needs of a Kafka producer.
//!
//! Input: records to send, and how far the session has come ([`Reached`]). Output: confirmations, or a
//! [`SendError`] that says why a record was not taken. Contract, for every implementation:
//! * records of one partition are appended in the order of `send` (G2);
//! * each accepted ticket is answered exactly once by a [`Confirmation`], or `poll` returns an error, after
//!   which none of its unanswered tickets will be answered: the session is dropped and the relay resumes
//!   from the acknowledged position;
//! * `Stored` means that the brokers acknowledged it under `acks=all` (G1 depends on this);
//! * no call blocks for longer than a few milliseconds, or a tenth of a second while a client connects;
//! * a record whose topic does not exist is not accepted, so that nothing behind it is repeated;
//! * a sink that stores progress returns from [`Sink::kept`] how far Postgres may be acknowledged.

use crate::ledger::Ticket;
use crate::lsn::Lsn;
use crate::pipeline::{Confirmation, Mark, Outgoing};
use crate::progress::Since;
use crate::route::Rejection;
use crate::time::Instant;

/// Why `send` did not take a record.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// The queue is full: poll, stop reading, send the same record again. Back-pressure (G3).
    #[error("the producer's queue is full")]
    Full,
    /// This record can never be sent.
    #[error("the record is refused: {}", .0.reason)]
    Refused(Rejection),
    /// The sink is no longer usable.
    #[error(transparent)]
    Broken(#[from] E),
}

impl<E> SendError<E> {
    /// The same with another error in the place of [`SendError::Broken`]'s.
    pub fn map<F>(self, into: impl FnOnce(E) -> F) -> SendError<F> {
        match self {
            Self::Full => SendError::Full,
            Self::Refused(rejection) => SendError::Refused(rejection),
            Self::Broken(error) => SendError::Broken(into(error)),
        }
    }
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Every row before it was handed over, or needs no record.
    pub mark: Mark,
    /// Everything up to here is confirmed.
    pub settled: Lsn,
    /// What was handed over is old: rows per second count for more than milliseconds.
    pub behind: bool,
    /// Nothing more is taken until something is confirmed.
    pub pressed: bool,
    /// The session is about to end.
    pub ending: bool,
}

/// Where and when a transaction committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPlace {
    /// Its position in the log.
    pub lsn: Lsn,
    /// In microseconds since the Unix epoch.
    pub time_us: i64,
}

/// A place that stores records. See the module's contract.
pub trait Sink {
    /// Why the sink is no longer usable.
    type Error;

    /// Hands over one record; its bytes are copied before this returns. One that goes
    /// [alone](Outgoing::alone) must have its batch, and its Kafka transaction, for itself: `Full` while
    /// anything else is under way, and nothing else is taken until its answer has come.
    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>)
    -> Result<(), SendError<Self::Error>>;

    /// Serves every delivery report that has arrived, without waiting, and appends the answers.
    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), Self::Error>;

    /// The session begins at this mark.
    fn begin_at(&mut self, _mark: Mark) {}

    /// Since when the stream has left out no row: what progress is kept says so.
    fn whole_since(&mut self, _since: Since) {}

    /// Tells how far the session has come; to be called between two frames, when everything that
    /// `poll` gave back is dealt with. A sink that works in batches may end one here.
    fn reached(&mut self, _now: Instant, _reached: Reached) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether records are taken at all at this moment; if not, `send` says `Full`.
    fn takes_records(&self) -> bool {
        true
    }

    /// Whether the batch is large enough to end where the next transaction ends.
    fn has_enough(&self) -> bool {
        false
    }

    /// Whether a session may end in the midst of a transaction of Postgres: a later one goes on there,
    /// and what reads committed records has seen it in pieces already.
    fn may_end_within(&self) -> bool {
        false
    }

    /// The end of what a later session will find kept: nothing above it may be acknowledged.
    /// `None`: this sink keeps nothing, and what is confirmed may be acknowledged.
    fn kept(&self) -> Option<Lsn> {
        None
    }

    /// Whether it wants to be told of the records that are confirmed now: somebody looks at what it stores.
    fn is_observed(&self) -> bool {
        false
    }

    /// A record of the transaction that committed there is confirmed.
    fn confirmed(&mut self, _ticket: Ticket, _commit: CommitPlace) {}
}
