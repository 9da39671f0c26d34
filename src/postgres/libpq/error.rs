//! Errors in a connection string, environment or service file. Invariant: errors contain no values,
//! except checked names and paths, because a mistyped string may contain part of the password
//! anywhere.

use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectInfoError {
    #[error("unknown connection parameter{}", name.as_deref().map(|n| format!(" `{n}`")).unwrap_or_default())]
    UnknownParameter {
        /// Name, if it resembles a known one.
        name: Option<String>,
        suggestion: Option<&'static str>,
    },
    #[error("the connection string is malformed at character {at}: {problem}")]
    Syntax {
        problem: &'static str,
        /// Position, from 1.
        at: usize,
    },
    #[error("the connection string is {what}")]
    ForeignUrl {
        /// The program, and the part that is not supported.
        what: &'static str,
        /// The correct form.
        help: &'static str,
    },
    #[error("connection parameter `{parameter}` must be {expected}")]
    InvalidValue {
        parameter: &'static str,
        expected: &'static str,
        /// The permitted word that it resembles.
        suggestion: Option<&'static str>,
    },
    /// A connection string, or a text with a password, instead of a name or a path.
    #[error(
        "connection parameter `{parameter}` must be {expected}, and looks like a connection string or \
         has a password in it"
    )]
    NotAName { parameter: &'static str, variable: &'static str, expected: &'static str },
    /// A parameter that cannot be ignored without weakening the connection.
    #[error("connection parameter `{parameter}` is not supported: {reason}")]
    Unsupported { parameter: &'static str, reason: &'static str },
    #[error("{given} `{parameter}` values for {hosts} hosts")]
    ListLength {
        /// `port` or `hostaddr`.
        parameter: &'static str,
        given: usize,
        hosts: usize,
    },
    /// No service file contains the service.
    #[error("service `{service}` is not defined in {}", list(.files))]
    UnknownService { service: String, files: Vec<PathBuf> },
    #[error("service file {}, line {line}: {problem}", .path.display())]
    ServiceSyntax {
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        problem: &'static str,
    },
    #[error("cannot read {}: {reason}", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("no database user is given and the system does not name one")]
    NoUser,
}

impl ConnectInfoError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownParameter { suggestion: Some(known), .. }
            | Self::InvalidValue { suggestion: Some(known), .. } => {
                Some(format!("did you mean `{known}`?"))
            }
            Self::NotAName { parameter, variable, expected } => Some(format!(
                "write a connection string into source.url (for `shop`: --database-url); `{parameter}`, or \
                 {variable}, takes {expected} alone"
            )),
            Self::Syntax { .. } => Some(
                "in a URL the characters / ? # @ : % of a password are written %2F %3F %23 %40 %3A %25; \
                 write host=.. user=.. dbname=.. or postgres://user@host:5432/database"
                    .to_owned(),
            ),
            Self::ForeignUrl { help, .. } => Some((*help).to_owned()),
            Self::ListLength { parameter, .. } => {
                Some(format!("give one `{parameter}` for all hosts, or one for each"))
            }
            Self::UnknownService { service, .. } => {
                Some(format!("add a section [{service}], or set PGSERVICEFILE"))
            }
            Self::NoUser => Some("set `user` in the connection string, or PGUSER".to_owned()),
            _ => None,
        }
    }
}

fn list(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() { "any service file".to_owned() } else { names.join(" or ") }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectInfoWarning {
    /// Others can read the password file, so it is ignored (as in libpq).
    PasswordFileExposed {
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// The password file cannot be read, so it is ignored (as in libpq).
    PasswordFileUnreadable {
        path: PathBuf,
        reason: String,
    },
    PasswordFileNotPlain {
        path: PathBuf,
    },
}

impl std::fmt::Display for ConnectInfoWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PasswordFileExposed { path, mode } => write!(
                f,
                "password file {path} is ignored: others may read it (mode {mode:04o}); \
                 run: chmod 0600 {path}",
                path = path.display()
            ),
            Self::PasswordFileUnreadable { path, reason } => {
                write!(f, "password file {} cannot be read: {reason}", path.display())
            }
            Self::PasswordFileNotPlain { path } => {
                write!(f, "password file {} is ignored: it is not a plain file", path.display())
            }
        }
    }
}
