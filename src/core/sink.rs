//! Defines the trait [`Sink`]: the part of a Kafka producer that a session uses.
//!
//! Input: records to send, and the session's progress ([`Reached`]). Output: confirmations, or a
//! [`SendError`] that says why a record was not taken. Contract, for every implementation:
//! * records of one partition are appended in the order of `send` (G2);
//! * each accepted ticket is answered exactly once by a [`Confirmation`], or `poll` returns an
//!   error. After an error no unanswered ticket will be answered: the session is dropped and the
//!   relay resumes from the acknowledged position;
//! * `Stored` means that the brokers acknowledged the record under `acks=all` (G1 depends on this);
//! * no call blocks for longer than a few milliseconds, or 0.1 s while a client connects;
//! * a record whose topic does not exist is not accepted, so nothing after it is repeated;
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
    /// The queue is full. Poll, stop reading, and send this record again. Back-pressure (G3).
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
    /// Maps the error in [`SendError::Broken`].
    pub fn map<F>(self, into: impl FnOnce(E) -> F) -> SendError<F> {
        match self {
            Self::Full => SendError::Full,
            Self::Refused(rejection) => SendError::Refused(rejection),
            Self::Broken(error) => SendError::Broken(into(error)),
        }
    }
}

/// Progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Every row before this mark was sent, or needs no record.
    pub mark: Mark,
    /// Everything up to this position is confirmed.
    pub settled: Lsn,
    /// The rows that were sent are old, so throughput matters more than latency.
    pub behind: bool,
    /// No more frames are taken until a record is confirmed.
    pub pressed: bool,
    /// The session is about to end.
    pub ending: bool,
}

/// Position and time of a transaction's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPlace {
    /// Position in the log.
    pub lsn: Lsn,
    /// In microseconds since the Unix epoch.
    pub time_us: i64,
}

/// A destination that stores records. The module documentation states the contract.
pub trait Sink {
    /// The reason why the sink is no longer usable.
    type Error;

    /// Sends one record and copies its bytes before it returns. An [alone](Outgoing::alone) record
    /// needs a batch and a Kafka transaction of its own: the sink returns `Full` while another
    /// record is in flight, and accepts another record this one is answered.
    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>)
    -> Result<(), SendError<Self::Error>>;

    /// Appends the answers of every delivery report that has arrived, without waiting.
    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), Self::Error>;

    /// Starts the session at this mark.
    fn begin_at(&mut self, _mark: Mark) {}

    /// Sets the start of the complete part of the stream, for the stored progress.
    fn whole_since(&mut self, _since: Since) {}

    /// Reports the session's progress. Call it between two frames, after everything that `poll`
    /// returned is handled. A sink that works in batches may end one here.
    fn reached(&mut self, _now: Instant, _reached: Reached) -> Result<(), Self::Error> {
        Ok(())
    }

    /// False while `send` would return `Full` for every record.
    fn takes_records(&self) -> bool {
        true
    }

    /// True if the batch is large enough to end at the next transaction boundary.
    fn has_enough(&self) -> bool {
        false
    }

    /// True if a session may end within a Postgres transaction. A later session resumes there, and
    /// consumers of committed records have already seen the transaction in parts.
    fn may_end_within(&self) -> bool {
        false
    }

    /// The end of the stored progress. Nothing above it may be acknowledged. `None`: the sink
    /// stores no progress, so everything confirmed may be acknowledged.
    fn kept(&self) -> Option<Lsn> {
        None
    }

    /// True if the sink needs [`Sink::confirmed`] because someone observes what it stores.
    fn is_observed(&self) -> bool {
        false
    }

    /// Reports a confirmed record of the transaction that committed at `commit`.
    fn confirmed(&mut self, _ticket: Ticket, _commit: CommitPlace) {}
}
