//! Why tables and topics could not be compared, and what the operator can do about it.
//!
//! Input: errors of the database, the brokers, the routing and the folder for temporary files. Output:
//! [`CompareError`] with its hint. What the comparison finds is no error.

use super::sorter::SpillError;
use postrider_core::pgoutput::DecodeError;
use postrider_core::pipeline::PipelineError;
use postrider_kafka::{ReaderError, TopicsError};
use postrider_postgres::wal::{Class, WalError};

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The database.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The brokers.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// What the brokers say about topics.
    #[error(transparent)]
    Topics(#[from] TopicsError),
    /// The routing of a row.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The disk.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// A table lacks a column that was named.
    #[error("table {table} has no column `{column}`")]
    ColumnMissing {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The option that names it.
        option: &'static str,
    },
    /// `--since` or `--until` is no time.
    #[error("{option} {text} is no time")]
    NoTime {
        /// The option.
        option: &'static str,
        /// As typed.
        text: String,
    },
    /// A signal.
    #[error("stopped by a signal before there was a verdict")]
    Stopped,
}

impl From<DecodeError> for CompareError {
    fn from(error: DecodeError) -> Self {
        Self::Wal(error.into())
    }
}

impl CompareError {
    /// What it means for the next step.
    pub fn class(&self) -> Class {
        match self {
            Self::Wal(error) => error.class(),
            Self::Topics(error) if error.is_permission() => Class::Permission,
            Self::Reader(ReaderError::Unauthorised(_) | ReaderError::NoEntry(_)) => {
                Class::Permission
            }
            Self::Topics(TopicsError::Settings(_))
            | Self::Reader(ReaderError::Settings(_))
            | Self::Pipeline(_)
            | Self::Spill(_)
            | Self::ColumnMissing { .. }
            | Self::NoTime { .. } => Class::Configuration,
            // What a topic is, and whether brokers answer, may be another the next time.
            Self::Topics(_) | Self::Reader(_) | Self::Stopped => Class::Transient,
        }
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Wal(error) => error.hint(),
            Self::Reader(error) => error.hint(),
            Self::Topics(error) => error.hint(),
            Self::Pipeline(error) => error.hint(),
            Self::Spill(error) => Some(error.hint()),
            Self::ColumnMissing { option, .. } => Some(format!("name another column with {option}")),
            Self::NoTime { .. } => Some(
                "write a duration that it is ago, such as 2h, or a time as Postgres reads it, such as \
                 '2026-11-26 10:00+00'"
                    .to_owned(),
            ),
            Self::Stopped => None,
        }
    }
}
