//! The protocol as it is meant, and the mistakes the model must notice.
//!
//! Input: nothing. Output: [`Rules`], one set for each exploration. Invariant: a mutant
//! differs from the design in exactly one [`Mistake`].

use crate::exactly_once::state::Left;
use crate::exactly_once::stream::Place;

/// What one exploration goes by.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// `None` for the design.
    pub mistake: Option<Mistake>,
    /// How many places of the stream there are, at most [`stream::PLACES`](crate::exactly_once::stream::PLACES).
    pub places: Place,
    /// Whether progress is written, now and then, though nothing was taken since the last.
    pub idle_progress: bool,
    /// What the world may do.
    pub left: Left,
}

/// One thing done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// Starts without a new epoch, so that earlier sessions can go on.
    DoesNotFence,
    /// Starts at the slot's position, as relays do that keep no progress.
    IgnoresProgress,
    /// Goes on with the same producer after EndTxn was sent twice.
    TrustsAmbiguousEnd,
    /// Tells Postgres when everything is reported stored, though nothing is committed.
    AcknowledgesBeforeCommit,
    /// Reads progress first, while an earlier session can still commit.
    ReadsProgressBeforeFencing,
    /// Writes progress beside the transaction that it tells of.
    ProgressOutsideTheTransaction,
    /// Ends the transaction while records of it are under way.
    CommitsBeforeReports,
    /// Gives up the transaction while records of it are under way, and goes on.
    AbortsBeforeReports,
    /// Not the relay's mistake: a leader takes a record without asking the coordinator whether there
    /// is a transaction for it (Kafka before 3.6).
    BrokerDoesNotVerify,
}
