//! Defines [`LedgerError`]: impossible transactions or confirmations.
//!
//! A new session may repeat rows but never loses one.

use crate::lsn::Lsn;

/// A step that would corrupt the ledger. A new session fixes all but [`Self::AbortedWithin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Begin inside a transaction.
    #[error("a transaction began inside another one")]
    AlreadyOpen,
    /// Commit or record without a Begin.
    #[error("a commit or row arrived outside a transaction")]
    NotOpen,
    /// A commit position that is not above everything promised.
    #[error("a transaction ended at {end}, not after {horizon}, which the server had already sent")]
    Backwards {
        /// End.
        end: Lsn,
        /// Highest end before.
        horizon: Lsn,
    },
    /// Stream Abort inside a transaction, which may revoke rows already sent.
    #[error("the server took back a part of transaction {xid} inside a committed transaction")]
    AbortedWithin {
        /// Aborted transaction.
        xid: u32,
    },
    /// The ticket's transaction is not in the ring.
    #[error("a confirmation came for transaction {transaction}, which is not waiting for one")]
    UnknownTicket {
        /// Number modulo 2^32.
        transaction: u32,
    },
    /// More confirmations than records.
    #[error("transaction {transaction} has had all its records confirmed already")]
    ConfirmedTwice {
        /// Number modulo 2^32.
        transaction: u32,
    },
}

impl LedgerError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyOpen | Self::NotOpen | Self::Backwards { .. } => Some(
                "the relay reconnects by itself; if this repeats, check that nothing between the \
                 relay and Postgres alters the replication stream"
                    .to_owned(),
            ),
            Self::AbortedWithin { .. } => Some(
                "only protocol version 1 without streaming is spoken, in which nothing is taken back: check that \
                 nothing between the relay and Postgres alters the replication stream, and report it"
                    .to_owned(),
            ),
            Self::UnknownTicket { .. } | Self::ConfirmedTwice { .. } => Some(
                "this is a defect of Postrider; the relay reconnects by itself, and nothing \
                      unconfirmed is acknowledged: report it with the log"
                    .to_owned(),
            ),
        }
    }
}
