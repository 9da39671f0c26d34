//! Converts `RelayError` to a `CommandFailure`: exit code, error code, text and hint.

use crate::codes::{self, ErrorCode};
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use postrider_relay::RelayError;

impl From<RelayError> for CommandFailure {
    fn from(error: RelayError) -> Self {
        let hint = error.hint();
        let (exit, code) = match error {
            // Both codes of the cause, with this error's text.
            RelayError::DeadLetters(ref cause) => {
                (Self::from(cause.clone()).exit, codes::sink(cause))
            }
            RelayError::Wal(error) => return error.into(),
            RelayError::Control(error) => return error.into(),
            RelayError::TableRows(ref cause) => {
                (ExitCode::of_number(error.class().exit_code()), codes::table_rows(cause))
            }
            RelayError::Gate(ref cause) => (ExitCode::Position, codes::gate(cause)),
            RelayError::Compare(error) => return error.into(),
            RelayError::Topics(error) => return error.into(),
            RelayError::Sink(error) => return error.into(),
            RelayError::Pipeline(error) => return error.into(),
            RelayError::Route(error) => return error.into(),
            RelayError::GaveUp { seconds, last } => {
                let because = format!("gave up after {seconds} s without progress");
                return Self::from(*last).why(because);
            }
            RelayError::UnreadMessage { ref cause, .. } => {
                let code = match &**cause {
                    RelayError::Wal(error) => codes::wal(error),
                    RelayError::Pipeline(error) => codes::pipeline(error),
                    other => unreachable!("{other} is about no message"),
                };
                (ExitCode::Unavailable, code)
            }
            RelayError::Unreadable { .. } => (ExitCode::Position, ErrorCode::R008),
            RelayError::SlotHeld { .. } => (ExitCode::Held, ErrorCode::SLOT_HELD),
            RelayError::BrokersAway { .. } => (ExitCode::Unavailable, ErrorCode::K020),
            RelayError::NothingStored { .. } => (ExitCode::Unavailable, ErrorCode::K021),
            RelayError::GraceExpired { .. } => (ExitCode::Unavailable, ErrorCode::X011),
            RelayError::Aborted { .. } => (ExitCode::CheckFailed, ErrorCode::X012),
            RelayError::Refused { .. } => (ExitCode::Unavailable, ErrorCode::BATCH_REFUSED),
            RelayError::NoAnswer => (ExitCode::Unavailable, ErrorCode::P057),
            RelayError::SourceChanged => (ExitCode::Unavailable, ErrorCode::P054),
            RelayError::Thread => (ExitCode::CheckFailed, ErrorCode::X014),
        };
        Self::of(exit, code, &error, hint)
    }
}
