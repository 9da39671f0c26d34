//! Defines [`SessionError`]: why a session failed.
//!
//! An error of the pipeline or of the sink, a server that does not answer, a request to end at once, or
//! records that were not confirmed within the grace period. The caller supplies the type of the sink's
//! errors.

use crate::pipeline::PipelineError;

/// After any of these the session is dropped; nothing unconfirmed was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError<E> {
    /// See there.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The sink is no longer usable.
    #[error("the sink is no longer usable")]
    Sink(E),
    /// The server has not answered for so long.
    #[error("the server has not answered for {seconds} s")]
    Silent {
        /// Whole ones.
        seconds: u64,
    },
    /// The request to end at once.
    #[error("aborted with {records} unconfirmed records")]
    Aborted {
        /// How many records were unconfirmed.
        records: u64,
    },
    /// What was sent was not confirmed in time.
    #[error("{records} records were not confirmed in time")]
    GraceExpired {
        /// How many records were unconfirmed.
        records: u64,
    },
}
