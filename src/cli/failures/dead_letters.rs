//! What ended a command on dead letters, as a failure.

use crate::cli::codes;
use crate::cli::dead_letters::DeadLettersError;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::kafka::ReaderError;

impl From<DeadLettersError> for Failure {
    fn from(error: DeadLettersError) -> Self {
        let hint = error.hint();
        let code = codes::dead_letters(&error);
        let exit = match error {
            DeadLettersError::Reader(ReaderError::UnknownTopic(topic)) => {
                let error = ReaderError::UnknownTopic(topic);
                return Self::of(ExitCode::CheckFailed, code, &error, hint);
            }
            DeadLettersError::Reader(error) => return error.into(),
            DeadLettersError::Sink(error) => return error.into(),
            // The exit code of the cause, with its own words before it.
            DeadLettersError::Unconfirmed { ref source, .. } => Self::from(source.clone()).exit,
            DeadLettersError::Unread { .. } | DeadLettersError::Silent { .. } => {
                ExitCode::Unavailable
            }
            DeadLettersError::Circular(_) | DeadLettersError::Reserved { .. } => ExitCode::Usage,
            _ => ExitCode::CheckFailed,
        };
        Self::of(exit, code, &error, hint)
    }
}
