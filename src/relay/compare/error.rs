//! Errors that prevent a comparison of tables with topics. Differences that the comparison finds
//! are not errors.

use super::sorter::SpillError;
use postrider_core::pgoutput::DecodeError;
use postrider_core::pipeline::PipelineError;
use postrider_kafka::{ReaderError, TopicsError};
use postrider_postgres::wal::{Class, WalError};

/// Reason why the comparison does not have a verdict.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error(transparent)]
    Reader(#[from] ReaderError),
    #[error(transparent)]
    Topics(#[from] TopicsError),
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The table lacks a column that an option names.
    #[error("table {table} has no column `{column}`")]
    ColumnMissing {
        table: String,
        column: String,
        /// Option that names the column.
        option: &'static str,
    },
    /// `--since` or `--until` is not a valid time.
    #[error("{option} {text} is not a time")]
    NoTime {
        option: &'static str,
        /// As typed by the user.
        text: String,
    },
    #[error("stopped by a signal before there was a verdict")]
    Stopped,
}

impl From<DecodeError> for CompareError {
    fn from(error: DecodeError) -> Self {
        Self::Wal(error.into())
    }
}

impl CompareError {
    /// Decides about retries and the exit status.
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
            // The state of topics and brokers may change before the next attempt.
            Self::Topics(_) | Self::Reader(_) | Self::Stopped => Class::Transient,
        }
    }

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
