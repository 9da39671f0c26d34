//! Converts errors of `verify` and `repair` to a `CommandFailure`. Findings of the comparison are
//! not errors: they are on stdout, with exit code 1.

use crate::codes;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::verify::VerifyError;

impl From<VerifyError> for CommandFailure {
    fn from(error: VerifyError) -> Self {
        let (hint, code) = (error.hint(), codes::verify(&error));
        let exit = match error {
            VerifyError::Wal(error) => return error.into(),
            VerifyError::Reader(error) => return error.into(),
            VerifyError::Topics(error) => return error.into(),
            VerifyError::Pipeline(error) => return error.into(),
            VerifyError::ColumnMissing { .. } | VerifyError::NoTime { .. } => ExitCode::Usage,
            VerifyError::Spill(_) | VerifyError::Stopped => ExitCode::CheckFailed,
        };
        Self::of(exit, code, &error, hint)
    }
}
