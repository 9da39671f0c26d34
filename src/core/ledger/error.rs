//! Defines [`LedgerError`]: transactions or confirmations that cannot be right, with a hint for the
//! operator.
//!
//! Each means that a peer violated its protocol or that our code is wrong. The session ends, nothing more
//! is acknowledged, and the next session starts from the slot. This can repeat rows and never loses one.

use crate::lsn::Lsn;

/// A step that would make the ledger's books wrong. A new session fixes all but [`Self::AbortedWithin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Begin inside a transaction; protocol v1 sends transactions one after the other.
    #[error("a transaction began inside another one")]
    AlreadyOpen,
    /// A commit or a record without a Begin before it.
    #[error("a commit or row arrived outside a transaction")]
    NotOpen,
    /// Commit positions rise strictly; this one lies in what was already promised.
    #[error("a transaction ended at {end}, not after {horizon}, which the server had already sent")]
    Backwards {
        /// The commit's end.
        end: Lsn,
        /// The highest end seen before it.
        horizon: Lsn,
    },
    /// A Stream Abort inside a transaction: rows of it that were sent may be among those that it takes back.
    #[error("the server took back a part of transaction {xid} inside a committed transaction")]
    AbortedWithin {
        /// The number of the transaction that is taken back.
        xid: u32,
    },
    /// No such transaction is waiting: never sent, or settled long ago.
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
    /// There is nothing an operator can repair; a defect should be reported.
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
