//! Why a temporary server of the demo or the tests could not be started or stopped, and how to fix it.
//!
//! [`SandboxError`] names the situation, with the end of the server's log where there is one; `hint` is the
//! remedy. Every error is about this machine, none about data.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A situation in which a temporary server cannot be started or stopped. All are about this
/// machine, none about the product's data.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No folder holds both `initdb` and `postgres`.
    #[error("no PostgreSQL server binaries found (looked in {})", .looked_in.join(", "))]
    NoPostgres {
        /// Every place that was looked at.
        looked_in: Vec<String>,
    },
    /// Root may not run servers, and there is no account to run them as.
    #[error("a server may not run as root, and neither `postgres` nor `nobody` is in /etc/passwd")]
    NoAccount,
    /// A file operation failed.
    #[error("cannot {action} `{}`", path.display())]
    File {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("cannot start `{}`", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A program ended although it should have gone on, or failed.
    #[error("{program} ended early ({status}): {log}")]
    Ended {
        /// The program's name.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of what it wrote.
        log: String,
    },
    /// A server did not become ready, or did not stop, in time.
    #[error("{program} did not {what} within {limit:?}: {log}")]
    TimedOut {
        /// The program's name.
        program: String,
        /// What was awaited, as a verb.
        what: &'static str,
        /// How long was waited.
        limit: Duration,
        /// The end of what it wrote.
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
    /// The exact remedy, where one is known.
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

    /// Builds a [`SandboxError::File`] from an I/O error; made for `map_err`.
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> SandboxError {
        let path = path.into();
        move |source| SandboxError::File { action, path, source }
    }
}
