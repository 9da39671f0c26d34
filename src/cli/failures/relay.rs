//! Maps errors of the relay to codes.

use crate::codes;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use postrider_relay::RelayError;

impl From<RelayError> for CommandFailure {
    fn from(error: RelayError) -> Self {
        let hint = error.hint();
        let (exit, code) = match error {
            // The exit code and the code of the cause, with our own words.
            RelayError::DeadLetters(ref cause) => {
                (Self::from(cause.clone()).exit, codes::sink(cause))
            }
            RelayError::Wal(error) => return error.into(),
            RelayError::Control(error) => return error.into(),
            RelayError::Gate(ref cause) => (ExitCode::Position, codes::gate(cause)),
            RelayError::Topics(error) => return error.into(),
            RelayError::Sink(error) => return error.into(),
            RelayError::Pipeline(error) => return error.into(),
            RelayError::Route(error) => return error.into(),
            RelayError::GaveUp { seconds, last } => {
                let because = format!("gave up after {seconds} s without progress");
                return Self::from(*last).why(because);
            }
            RelayError::SlotHeld { .. } => (ExitCode::Held, "PR-P009"),
            RelayError::BrokersAway { .. } => (ExitCode::Unavailable, "PR-K020"),
            RelayError::NothingStored { .. } => (ExitCode::Unavailable, "PR-K021"),
            RelayError::GraceExpired { .. } => (ExitCode::Unavailable, "PR-X011"),
            RelayError::Aborted { .. } => (ExitCode::CheckFailed, "PR-X012"),
            RelayError::Refused { .. } => (ExitCode::Unavailable, "PR-K007"),
            RelayError::NoAnswer => (ExitCode::Unavailable, "PR-P057"),
            RelayError::SourceChanged => (ExitCode::Unavailable, "PR-P054"),
            RelayError::Thread => (ExitCode::CheckFailed, "PR-X014"),
        };
        Self::of(exit, code, &error, hint)
    }
}
