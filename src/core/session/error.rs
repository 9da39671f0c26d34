//! Defines [`SessionError`]: why a session failed.
//!
//! Causes: an error of the pipeline or the sink, a silent server, a request to end at once, or
//! records that were not confirmed within the grace period. The caller supplies the sink's error
//! type.

use crate::pipeline::PipelineError;

/// Why a session failed. The session is dropped, and nothing unconfirmed was acknowledged.
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
        /// Whole seconds of silence.
        seconds: u64,
    },
    /// A request to end at once.
    #[error("aborted with {records} unconfirmed records")]
    Aborted {
        /// Number of unconfirmed records.
        records: u64,
    },
    /// Records were not confirmed within the grace period.
    #[error("{records} records were not confirmed in time")]
    GraceExpired {
        /// Number of unconfirmed records.
        records: u64,
    },
}
