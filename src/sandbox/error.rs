//! Errors of starting and stopping temporary servers of the demo and the tests, with their fixes.
//!
//! [`SandboxError`] names the situation and, if there is a log, its last lines; `hint` returns the
//! fix. All errors concern this machine, not data.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why a temporary server cannot be started or stopped. All reasons concern this machine,
/// not the product's data.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No folder contains both `initdb` and `postgres`.
    #[error("no PostgreSQL server binaries found (looked in {})", .looked_in.join(", "))]
    NoPostgres {
        /// All searched places.
        looked_in: Vec<String>,
    },
    /// Root may not run servers, and no other account exists for them.
    #[error("a server may not run as root, and neither `postgres` nor `nobody` is in /etc/passwd")]
    NoAccount,
    /// A file operation failed.
    #[error("cannot {action} `{}`", path.display())]
    File {
        /// Attempted action, as a verb.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start `{}`", program.display())]
    Spawn {
        /// Path of the program.
        program: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A program ended unexpectedly, or failed.
    #[error("{program} ended early ({status}): {log}")]
    Ended {
        /// Name of the program.
        program: String,
        /// Exit status of the program.
        status: String,
        /// Last lines of its output.
        log: String,
    },
    /// A server did not become ready, or did not stop, in time.
    #[error("{program} did not {what} within {limit:?}: {log}")]
    TimedOut {
        /// Name of the program.
        program: String,
        /// Awaited event, as a verb.
        what: &'static str,
        /// Length of the wait.
        limit: Duration,
        /// Last lines of its output.
        log: String,
    },
    /// No port could be bound on loopback.
    #[error("no free port on 127.0.0.1 between {first} and {last}")]
    NoPort {
        /// First port tried.
        first: u16,
        /// Last port tried.
        last: u16,
    },
}

impl SandboxError {
    /// Returns the exact fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoPostgres { .. } => Some(
                "apt-get install postgresql, or point POSTRIDER_PG_BIN to the folder that holds \
                 initdb and postgres"
                    .to_owned(),
            ),
            Self::NoAccount => Some("useradd --system postgres".to_owned()),
            Self::Spawn { program, .. } if program.ends_with("redis-server") => {
                Some("apt-get install redis-server".to_owned())
            }
            Self::File { .. }
            | Self::Spawn { .. }
            | Self::Ended { .. }
            | Self::TimedOut { .. }
            | Self::NoPort { .. } => None,
        }
    }

    /// Creates a [`SandboxError::File`] from an I/O error, for use in `map_err`.
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> SandboxError {
        let path = path.into();
        move |source| SandboxError::File { action, path, source }
    }
}
