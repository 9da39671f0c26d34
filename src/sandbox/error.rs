//! Errors of starting and stopping temporary servers, with their fixes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why a temporary server cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No folder contains both `initdb` and `postgres`.
    #[error("no PostgreSQL server binaries found (looked in {})", .looked_in.join(", "))]
    NoPostgres {
        /// Searched places.
        looked_in: Vec<String>,
    },
    /// Root may not run servers, and no other account exists.
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
    /// A program ended unexpectedly.
    #[error("{program} ended early ({status}): {log}")]
    Ended {
        /// Name of the program.
        program: String,
        /// Exit status.
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
    /// Exact fix, if known.
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

    /// Maps an I/O error to [`SandboxError::File`].
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> SandboxError {
        let path = path.into();
        move |source| SandboxError::File { action, path, source }
    }
}
