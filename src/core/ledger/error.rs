//! Defines [`LedgerError`]: impossible transactions or confirmations, with a hint for the operator.
//!
//! Each error means that a peer violated its protocol or that this code has a bug. The session
//! ends, acknowledges nothing more, and the next session starts from the slot. This can repeat rows
//! and never loses one.

use crate::lsn::Lsn;

/// A step that would corrupt the ledger's books. A new session fixes every error except
/// [`Self::AbortedWithin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Begin inside a transaction; protocol v1 sends transactions sequentially.
    #[error("a transaction began inside another one")]
    AlreadyOpen,
    /// A commit or a record without a Begin.
    #[error("a commit or row arrived outside a transaction")]
    NotOpen,
    /// A commit position that is not above everything promised; commit positions rise strictly.
    #[error("a transaction ended at {end}, not after {horizon}, which the server had already sent")]
    Backwards {
        /// The commit's end.
        end: Lsn,
        /// The highest end before it.
        horizon: Lsn,
    },
    /// A Stream Abort inside a transaction, which may revoke rows that were already sent.
    #[error("the server took back a part of transaction {xid} inside a committed transaction")]
    AbortedWithin {
        /// Number of the aborted transaction.
        xid: u32,
    },
    /// The ticket's transaction was never sent, or settled long ago.
    #[error("a confirmation came for transaction {transaction}, which is not waiting for one")]
    UnknownTicket {
        /// Session number of the transaction, modulo 2^32.
        transaction: u32,
    },
    /// More confirmations than records.
    #[error("transaction {transaction} has had all its records confirmed already")]
    ConfirmedTwice {
        /// Session number of the transaction, modulo 2^32.
        transaction: u32,
    },
}

impl LedgerError {
    /// The hint to report a defect, because an operator cannot repair anything.
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
