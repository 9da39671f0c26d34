//! Deliberate bugs in the shipped code. Tests enable them to prove that the simulation detects
//! them.
//!
//! Input: the [`Mutant`] that a test enables for its thread, in builds with the feature `mutants`.
//! Output: whether the calling code must misbehave. Without the feature the answer is constantly
//! false, and the compiler removes the check. The module is public because tests of other crates
//! enable bugs.

/// One deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The watermark passes a transaction with unconfirmed records.
    SettlesUnconfirmed,
    /// A transaction counts as confirmed although one record is missing.
    CountsOneTooFew,
    /// A keepalive settles everything before it, confirmed or not.
    SettlesKeepalives,
    /// A keepalive settles nothing, so the log of an idle outbox grows without limit.
    IgnoresKeepalives,
    /// A refused record counts as stored.
    ForgetsRefused,
    /// A frame is consumed although there was no room for its record.
    ConsumesUnsent,
    /// The session takes frames after the budget is used up.
    IgnoresBudget,
    /// The session waits for the socket although a frame is buffered and may be taken.
    WaitsBesideFrames,
    /// No heartbeat: the server ends the stream of an idle outbox.
    StaysSilent,
    /// A drain ends with records unconfirmed.
    EndsUnconfirmed,
    /// A drain ends within a transaction.
    EndsWithinTransaction,
    /// Records count as stored when they are reported, before their Kafka transaction commits.
    ConfirmsBeforeCommit,
    /// A Kafka transaction commits before all reports have arrived.
    CommitsBeforeReports,
    /// The session continues after a commit during which EndTxn may have been sent twice.
    TrustsDisturbedCommit,
    /// Progress omits how many rows of a split transaction it covers.
    ForgetsPart,
    /// A session starts at the slot's position and ignores progress.
    IgnoresProgress,
    /// Records are taken after the progress record.
    SendsBehindProgress,
    /// The session reads ahead although it wants no frame, and finds the stream's end.
    LooksForTheEnd,
    /// The supervisor reports a clean stop although sessions left records unconfirmed.
    ForgetsOwed,
    /// A session starts without the refusals that earlier sessions learned.
    ForgetsSuspects,
    /// A request to stop waits until a pause ends.
    SleepsThroughStop,
    /// Pauses after failures do not grow.
    NeverBacksOff,
    /// The timeout does not grow for a server that is silent again over one piece of work.
    KeepsTimeout,
    /// An unreadable message of the log is retried forever.
    RetriesUnreadable,
}

impl Mutant {
    /// All mutants.
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

    /// Enables this bug on the current thread; `None` disables it.
    pub fn make(mutant: Option<Mutant>) {
        MADE.set(mutant);
    }

    /// The bug that is enabled on the current thread.
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
