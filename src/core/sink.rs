//! Defines [`Sink`]: the part of a Kafka producer that a session uses.
//!
//! Contract, for every implementation:
//! * records of one partition are appended in the order of `send` (G2);
//! * each accepted ticket is answered exactly once, or `poll` returns an error. After an error no
//!   unanswered ticket is answered, and the relay resumes from the acknowledged position;
//! * `Stored` means that the brokers acknowledged the record under `acks=all` (G1 depends on this);
//! * no call blocks for more than a few milliseconds, or 0.1 s while a client connects;
//! * a record whose topic does not exist is not accepted, so nothing after it is repeated;
//! * a sink that stores progress limits acknowledgements by [`Sink::kept`].

use crate::ledger::Ticket;
use crate::lsn::Lsn;
use crate::pipeline::{Confirmation, Mark, Outgoing};
use crate::progress::Since;
use crate::route::Rejection;
use crate::time::Instant;

/// Why `send` did not take a record.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// The queue is full: poll, stop reading, and send the record again (G3).
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
    /// Maps [`SendError::Broken`].
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
    /// Confirmed position.
    pub settled: Lsn,
    /// Rows are old, so throughput matters more than latency.
    pub behind: bool,
    /// No frame is taken until a confirmation.
    pub pressed: bool,
    /// The session is about to end.
    pub ending: bool,
}

/// A transaction's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPlace {
    /// Position in the log.
    pub lsn: Lsn,
    /// Unix microseconds.
    pub time_us: i64,
}

/// A destination that stores records, by the module's contract.
pub trait Sink {
    /// Why the sink is no longer usable.
    type Error;

    /// Sends one record and copies its bytes. An [alone](Outgoing::alone) record needs its own
    /// batch and Kafka transaction: the sink returns `Full` while another record, or this one, is
    /// in flight.
    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>)
    -> Result<(), SendError<Self::Error>>;

    /// Appends the answers that have arrived, without waiting.
    fn poll(
        &mut self,
        now: Instant,
        confirmations: &mut Vec<Confirmation>,
    ) -> Result<(), Self::Error>;

    /// Starts the session at this mark.
    fn begin_at(&mut self, _mark: Mark) {}

    /// Sets the start of the complete part of the stream.
    fn whole_since(&mut self, _since: Since) {}

    /// Reports progress between two frames, after everything that `poll` returned is handled.
    fn reached(&mut self, _now: Instant, _reached: Reached) -> Result<(), Self::Error> {
        Ok(())
    }

    /// False while `send` would always return `Full`.
    fn takes_records(&self) -> bool {
        true
    }

    /// True if the batch may end at the next transaction boundary.
    fn has_enough(&self) -> bool {
        false
    }

    /// True if a session may end within a Postgres transaction, which consumers have seen in parts.
    fn may_end_within(&self) -> bool {
        false
    }

    /// End of the stored progress; nothing above it may be acknowledged. `None`: the sink stores no
    /// progress, so everything confirmed may be acknowledged.
    fn kept(&self) -> Option<Lsn> {
        None
    }

    /// True if [`Sink::confirmed`] is needed.
    fn is_observed(&self) -> bool {
        false
    }

    /// Reports a confirmed record and its transaction's commit.
    fn confirmed(&mut self, _ticket: Ticket, _commit: CommitPlace) {}
}
