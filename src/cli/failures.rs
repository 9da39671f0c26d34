//! From the rooms' errors to failures: the one place that knows codes and exit codes.
//!
//! Codes are stable: a number is never used again for something else.

use super::broker::BrokerCommandError;
use super::exit::ExitCode;
use super::failure::{Failure, Finding};
use super::tail::TailError;
use crate::config::{ConfigError, Mistake, Place};
use crate::kafka::{ReaderError, SettingsError, SinkError};
use crate::telemetry::HttpError;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let hint = error.hint();
        match error {
            ConfigError::Mistakes(mistakes) => Self {
                exit: ExitCode::Config,
                findings: mistakes.into_iter().map(Finding::from).collect(),
            },
            error @ ConfigError::Unreadable { .. } => {
                Self::of(ExitCode::Config, "PR-C001", &error, hint)
            }
        }
    }
}

impl From<Mistake> for Finding {
    fn from(mistake: Mistake) -> Self {
        let Mistake { kind, place, help } = mistake;
        let code = kind.code();
        let (what, excerpt) = match place {
            Place::File(excerpt) => (kind.to_string(), Some(excerpt)),
            Place::Named(name) => (format!("{name}: {kind}"), None),
            Place::Nowhere => (kind.to_string(), None),
        };
        Self { code, what, why: None, excerpt, help }
    }
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        let code = match error {
            HttpError::Bind { .. } => "PR-H001",
            HttpError::Serve(_) => "PR-H002",
        };
        let hint = error.hint();
        Self::of(ExitCode::Config, code, &error, hint)
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        let hint = error.hint();
        Self::of(ExitCode::Config, "PR-K001", &error, hint)
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        let (exit, code) = match error {
            SinkError::Settings(error) => return error.into(),
            SinkError::Fatal(_) => (ExitCode::Unavailable, "PR-K002"),
            SinkError::Authentication(_) => (ExitCode::Permission, "PR-K003"),
            SinkError::Tls(_) => (ExitCode::Config, "PR-K004"),
            SinkError::UnknownTopic { .. } => (ExitCode::Unavailable, "PR-K005"),
            SinkError::Unauthorised { .. } => (ExitCode::Permission, "PR-K006"),
            SinkError::BatchRefused { .. } => (ExitCode::Unavailable, "PR-K007"),
            SinkError::Delivery { .. } => (ExitCode::Unavailable, "PR-K008"),
        };
        let hint = error.hint();
        Self::of(exit, code, &error, hint)
    }
}

impl From<ReaderError> for Failure {
    fn from(error: ReaderError) -> Self {
        let (exit, code) = match error {
            ReaderError::Settings(error) => return error.into(),
            ReaderError::NoEntry(error) => return error.into(),
            ReaderError::Unreachable { .. } => (ExitCode::Unavailable, "PR-K010"),
            ReaderError::UnknownTopic(_) => (ExitCode::CheckFailed, "PR-K005"),
            ReaderError::UnknownPartition { .. } => (ExitCode::CheckFailed, "PR-K011"),
            ReaderError::Unauthorised(_) => (ExitCode::Permission, "PR-K006"),
            ReaderError::OffsetGone(_) => (ExitCode::CheckFailed, "PR-K012"),
            ReaderError::Late { .. } => (ExitCode::CheckFailed, "PR-K013"),
            ReaderError::Client(_) => (ExitCode::Unavailable, "PR-K014"),
        };
        let hint = error.hint();
        Self::of(exit, code, &error, hint)
    }
}

impl From<TailError> for Failure {
    fn from(error: TailError) -> Self {
        let hint = error.hint();
        match error {
            TailError::Reader(ReaderError::UnknownTopic(topic)) => {
                let error = ReaderError::UnknownTopic(topic);
                Self::of(ExitCode::CheckFailed, "PR-K005", &error, hint)
            }
            TailError::Reader(error) => error.into(),
            TailError::NoBrokers => Self::of(ExitCode::Usage, "PR-K015", &error, hint),
            TailError::Output(_) => Self::of(ExitCode::CheckFailed, "PR-X001", &error, hint),
        }
    }
}

impl From<BrokerCommandError> for Failure {
    fn from(error: BrokerCommandError) -> Self {
        let hint = error.hint();
        Self::of(ExitCode::CheckFailed, "PR-K016", &error, hint)
    }
}
