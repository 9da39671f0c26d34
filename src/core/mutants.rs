//! Deliberate bugs that tests enable to prove that the simulation detects them.
//!
//! Without the feature `mutants` the compiler removes the checks. Tests of other crates use this
//! module.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The watermark passes unconfirmed records.
    SettlesUnconfirmed,
    /// One unconfirmed record does not count.
    CountsOneTooFew,
    /// A keepalive settles everything.
    SettlesKeepalives,
    /// A keepalive settles nothing.
    IgnoresKeepalives,
    /// A refused record counts as stored.
    ForgetsRefused,
    /// An unsent frame is consumed.
    ConsumesUnsent,
    /// The session ignores the budget.
    IgnoresBudget,
    /// The session waits although a frame is buffered.
    WaitsBesideFrames,
    /// No heartbeat.
    StaysSilent,
    /// A drain ends with records unconfirmed.
    EndsUnconfirmed,
    /// A drain ends within a transaction.
    EndsWithinTransaction,
    /// Records count as stored before the commit.
    ConfirmsBeforeCommit,
    /// A transaction commits before its reports arrive.
    CommitsBeforeReports,
    /// A commit is trusted although EndTxn may repeat.
    TrustsDisturbedCommit,
    /// Progress omits the rows of a split transaction.
    ForgetsPart,
    /// Progress is ignored.
    IgnoresProgress,
    /// Records are taken after the progress record.
    SendsBehindProgress,
    /// The session reads ahead although it wants no frame.
    LooksForTheEnd,
    /// A stop is clean although records are unconfirmed.
    ForgetsOwed,
    /// Earlier refusals are forgotten.
    ForgetsSuspects,
    /// A request to stop waits until a pause ends.
    SleepsThroughStop,
    /// Pauses after failures do not grow.
    NeverBacksOff,
    /// The timeout does not grow.
    KeepsTimeout,
    /// An unreadable message is retried forever.
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

    /// Enables a bug on this thread.
    pub fn make(mutant: Option<Mutant>) {
        MADE.set(mutant);
    }

    /// The bug enabled on this thread.
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
