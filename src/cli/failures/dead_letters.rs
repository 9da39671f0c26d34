//! Converts errors of the dead-letter commands to a `CommandFailure`. A missing dead-letter topic
//! has its own hint.

use crate::codes;
use crate::dead_letters::DeadLettersError;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use postrider_kafka::ReaderError;
use postrider_patterns::dead_letter::DeadLetterError;

impl From<DeadLettersError> for CommandFailure {
    fn from(error: DeadLettersError) -> Self {
        let hint = error.hint();
        let code = codes::dead_letters(&error);
        let exit = match error {
            DeadLettersError::Topic(DeadLetterError::Reader(error)) => {
                if matches!(error, ReaderError::UnknownTopic(_)) {
                    return Self::of(ExitCode::CheckFailed, code, &error, hint);
                }
                return error.into();
            }
            DeadLettersError::Topic(DeadLetterError::Sink(error)) => return error.into(),
            // Exit code of the cause, with this error's text.
            DeadLettersError::Topic(DeadLetterError::Unconfirmed { ref source, .. }) => {
                Self::from(source.clone()).exit
            }
            DeadLettersError::Topic(
                DeadLetterError::Unread { .. } | DeadLetterError::Silent { .. },
            ) => ExitCode::Unavailable,
            DeadLettersError::Circular(_) | DeadLettersError::Reserved { .. } => ExitCode::Usage,
            _ => ExitCode::CheckFailed,
        };
        Self::of(exit, code, &error, hint)
    }
}

impl From<DeadLetterError> for CommandFailure {
    fn from(error: DeadLetterError) -> Self {
        DeadLettersError::from(error).into()
    }
}
