//! Defines [`SessionError`]: why a session failed.

use crate::pipeline::PipelineError;

/// Why a session failed. Nothing unconfirmed was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError<E> {
    /// The pipeline failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The sink is no longer usable.
    #[error("the sink is no longer usable")]
    Sink(E),
    /// The server did not answer.
    #[error("the server has not answered for {seconds} s")]
    Silent {
        /// Silence.
        seconds: u64,
    },
    /// A request to end at once.
    #[error("aborted with {records} unconfirmed records")]
    Aborted {
        /// Unconfirmed records.
        records: u64,
    },
    /// Records were late.
    #[error("{records} records were not confirmed in time")]
    GraceExpired {
        /// Unconfirmed records.
        records: u64,
    },
}
