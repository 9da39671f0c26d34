//! Defines [`PipelineError`]: why the pipeline ends its session.

use super::mark::CommitId;
use crate::ledger::LedgerError;
use crate::outbox::{OutboxError, TableName};
use crate::pgoutput::{DecodeError, UNREAD_MESSAGE};
use crate::route::{Rejection, RejectionCode};

/// Why a session ends. Nothing unconfirmed was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// The bytes are not pgoutput.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The tables do not match the configuration.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// An impossible begin, commit or confirmation.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A row cannot be delivered, and the policy is to stop.
    #[error("{row} cannot be delivered: {}", .rejection.reason)]
    Rejected {
        /// Table and position, or the record's topic.
        row: String,
        /// Reason.
        rejection: Rejection,
    },
    /// A dead letter cannot be delivered.
    #[error("a dead letter for topic `{topic}` is refused: {}", .rejection.reason)]
    DeadLetterRefused {
        /// Its topic.
        topic: String,
        /// Reason.
        rejection: Rejection,
    },
    /// A row was updated, and the policy is to stop.
    #[error("a row of outbox table {table} was updated")]
    Updated {
        /// Table.
        table: TableName,
    },
    /// The log differs from the log of the delivered rows.
    #[error(
        "the server's log does not have the commit of transaction {} at {}, up to which rows were \
         delivered",
        .delivered.xid, .delivered.lsn
    )]
    OtherLog {
        /// Last delivered commit.
        delivered: CommitId,
    },
    /// The caller submitted the next frame although there was no room for the last one's record.
    /// This bug is detected before the row is lost.
    #[error("a record was neither sent nor refused before the next frame")]
    NotSent,
}

impl PipelineError {
    /// True if only a human can fix the error, not a new session.
    pub const fn is_definite(&self) -> bool {
        match self {
            Self::Rejected { .. }
            | Self::DeadLetterRefused { .. }
            | Self::Updated { .. }
            | Self::Ledger(LedgerError::AbortedWithin { .. }) => true,
            // In another log nothing is settled that could be drained, so the session ends at once.
            Self::OtherLog { .. }
            | Self::Decode(_)
            | Self::Outbox(_)
            | Self::Ledger(_)
            | Self::NotSent => false,
        }
    }

    /// True if every session fails at the current message.
    pub const fn is_of_a_message(&self) -> bool {
        match self {
            Self::Decode(_) | Self::Outbox(_) => true,
            Self::Ledger(error) => matches!(
                error,
                LedgerError::AlreadyOpen | LedgerError::NotOpen | LedgerError::Backwards { .. }
            ),
            Self::Rejected { .. }
            | Self::DeadLetterRefused { .. }
            | Self::Updated { .. }
            | Self::OtherLog { .. }
            | Self::NotSent => false,
        }
    }

    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Decode(error) => error.hint(),
            Self::Ledger(error) => error.hint(),
            Self::Rejected { .. } => Some(
                "correct [route] so that the row can be delivered, or set \
                 route.rejected = \"dead_letter\" to move such rows aside"
                    .to_owned(),
            ),
            Self::DeadLetterRefused { topic, rejection } => Some(match rejection.code {
                RejectionCode::TooLarge => format!(
                    "raise max.message.bytes of topic `{topic}`, or name another one in \
                     dead_letters.topic"
                ),
                _ => format!(
                    "let topic `{topic}` take every record (no compaction, no schema check, no limits on \
                     timestamps), or name another one in dead_letters.topic"
                ),
            }),
            Self::Updated { .. } => Some(
                "an outbox is append-only: insert a new row instead, or set \
                 outbox.on_update = \"ignore\"; publish = 'insert' on the publication keeps \
                 updates out of the stream"
                    .to_owned(),
            ),
            Self::Outbox(_) => Some(UNREAD_MESSAGE.to_owned()),
            Self::NotSent => Some(
                "this is a defect of Postrider; the relay reconnects by itself, and no row was \
                 passed over: report it with the log"
                    .to_owned(),
            ),
            // The gate's error has its own hint.
            Self::OtherLog { .. } => None,
        }
    }
}
