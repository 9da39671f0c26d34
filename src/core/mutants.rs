//! Lists deliberate bugs in the shipped code, which tests switch on to prove that the simulation notices
//! them.
//!
//! Input: which [`Mutant`] a test switches on for its thread, in builds with the feature `mutants`. Output:
//! whether the code that asks is to behave wrongly. Without the feature the answer is constantly no, and
//! the compiler removes the check. Public because the tests of other crates choose the bug.

/// One mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The watermark passes over a transaction that is not wholly confirmed.
    SettlesUnconfirmed,
    /// A transaction counts as confirmed with one record missing.
    CountsOneTooFew,
    /// A keepalive settles what lies before it, confirmed or not.
    SettlesKeepalives,
    /// A keepalive settles nothing: the log of an idle outbox grows for ever.
    IgnoresKeepalives,
    /// A refused record is booked as stored.
    ForgetsRefused,
    /// A frame for whose record there was no room is done with.
    ConsumesUnsent,
    /// Frames are taken though the budget is used up.
    IgnoresBudget,
    /// The socket is waited for though a frame is buffered that may be taken.
    WaitsBesideFrames,
    /// No heartbeat: the server ends the stream of an idle outbox.
    StaysSilent,
    /// A drain ends with records unconfirmed.
    EndsUnconfirmed,
    /// A drain ends within a transaction.
    EndsWithinTransaction,
    /// Records count as stored when they are reported, before their Kafka transaction is committed.
    ConfirmsBeforeCommit,
    /// A Kafka transaction is committed before all reports are there.
    CommitsBeforeReports,
    /// The session goes on after a commit during which EndTxn may have been sent twice.
    TrustsDisturbedCommit,
    /// Progress does not say how many rows of a split transaction it covers.
    ForgetsPart,
    /// A session begins at the slot's position, whatever progress says.
    IgnoresProgress,
    /// Records are taken behind the progress record.
    SendsBehindProgress,
    /// The session looks at what follows in the stream though no frame is wanted, and meets its end.
    LooksForTheEnd,
    /// The supervisor calls a stop a clean one, whatever sessions left unconfirmed.
    ForgetsOwed,
    /// A session begins without what earlier ones learned of refused records.
    ForgetsSuspects,
    /// A request to stop waits for the end of a pause.
    SleepsThroughStop,
    /// Pauses after failures do not grow.
    NeverBacksOff,
    /// A server that is silent over the same work again is given no more time.
    KeepsTimeout,
    /// A message of the log that cannot be read is tried for ever.
    RetriesUnreadable,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::SettlesUnconfirmed,
        Self::CountsOneTooFew,
        Self::SettlesKeepalives,
        Self::IgnoresKeepalives,
        Self::ForgetsRefused,
        Self::ConsumesUnsent,
        Self::IgnoresBudget,
        Self::WaitsBesideFrames,
        Self::StaysSilent,
        Self::EndsUnconfirmed,
        Self::EndsWithinTransaction,
        Self::ConfirmsBeforeCommit,
        Self::CommitsBeforeReports,
        Self::TrustsDisturbedCommit,
        Self::ForgetsPart,
        Self::IgnoresProgress,
        Self::SendsBehindProgress,
        Self::LooksForTheEnd,
        Self::ForgetsOwed,
        Self::ForgetsSuspects,
        Self::SleepsThroughStop,
        Self::NeverBacksOff,
        Self::KeepsTimeout,
        Self::RetriesUnreadable,
    ];
}

#[cfg(feature = "mutants")]
mod on_this_thread {
    use std::cell::Cell;

    use super::Mutant;

    std::thread_local! {
        static MADE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Makes this mistake on this thread from now on, or none.
    pub fn make(mutant: Option<Mutant>) {
        MADE.set(mutant);
    }

    /// The mistake that is made on this thread.
    pub fn made() -> Option<Mutant> {
        MADE.get()
    }

    pub(crate) fn is(mutant: Mutant) -> bool {
        made() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub(crate) use on_this_thread::is;
#[cfg(feature = "mutants")]
pub use on_this_thread::{made, make};

#[cfg(not(feature = "mutants"))]
#[inline]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}
