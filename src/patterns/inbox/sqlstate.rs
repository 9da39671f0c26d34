//! Classifies errors from Postgres and from a message's handler (`Effects`) by SQLSTATE. The
//! message may have caused the error, now or for good, or possibly the database, so that other
//! messages must decide.
//!
//! Input: an error with its causes. Output: a `FailureCause`; whether a prepared statement is
//! outdated; a text for logs and dead letters.
//!
//! Invariant: no code alone says that the database is unavailable, because one message's statement
//! may cause any of them in a live session. The text of a Postgres error has only SQLSTATE and
//! names, because message and detail may quote the row. A FATAL error, such as a refused login,
//! cannot contain row data, so its message is included. No I/O.

use std::error::Error;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

use super::Failure;

/// Maximum length of an error's chain of causes.
const CAUSES_MAX: usize = 16;

/// SQLSTATE classes that may have nothing to do with the statement: connection, insufficient
/// resources, system error. A full disk may affect only statements that need a new page, and only
/// for minutes. One message's statement may also cause them for ever: a missing foreign server
/// gives 08001. Source: PostgreSQL's documentation, appendix A.
const PASSING_CLASSES: [&str; 3] = ["08", "53", "58"];

/// Such codes in other classes: the server shuts down, crashed, or is starting, or it ended a
/// session. If the consumer's own session is affected, its end shows this.
const PASSING_CODES: [SqlState; 4] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::IDLE_SESSION_TIMEOUT,
];

/// Codes of a state that lasts until somebody changes it, in the message or in the database.
/// Examples are a sort over `temp_file_limit`, a standby, and a missing table, column, function or
/// privilege. If every message misses it, a migration is late. Other errors of class 42 are
/// failures of the effect.
const UNCLEAR_CODES: [SqlState; 6] = [
    SqlState::CONFIGURATION_LIMIT_EXCEEDED,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::UNDEFINED_TABLE,
    SqlState::UNDEFINED_COLUMN,
    SqlState::UNDEFINED_FUNCTION,
    SqlState::INSUFFICIENT_PRIVILEGE,
];

/// A lock timeout, or a statement that `statement_timeout` or a request cancelled. Stalled storage
/// does this to any statement.
const CONTENTION_CODES: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

/// Class of a serialization failure and of a deadlock.
const ROLLBACK_CLASS: &str = "40";

/// A code of class 40 that concerns the statement: the commit found a violated deferred constraint.
const VIOLATED_AT_COMMIT: SqlState = SqlState::T_R_INTEGRITY_CONSTRAINT_VIOLATION;

/// The effects panicked, in a program that is built to unwind. The panic's message is not repeated.
#[derive(Debug, thiserror::Error)]
#[error("the effects panicked")]
pub(super) struct EffectPanicked;

/// Cause of a failure, as far as one error shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    /// The message: its statement or its effect cannot succeed.
    Message,
    /// The message, but a missing dependency may come within minutes: a row that it refers to, its
    /// saga, or the subject of an application's error.
    Early,
    /// The message if others succeed; the database if none does.
    Unclear,
    /// As `Unclear`, but the failure may pass by itself within minutes, and may affect only some
    /// statements: a full disk, a lost session.
    Passing,
    /// Another transaction holds a lock, or the database is slow. A smaller transaction may
    /// succeed.
    Contention,
    /// A dependency of the application is unavailable, as its effect reports.
    Dependency,
}

impl FailureCause {
    /// Returns the cause of a failure in a live session.
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Poison(_) => Self::Message,
            Failure::Unavailable(_) => Self::Dependency,
            Failure::Technical(source) => Self::of_error(&**source),
        }
    }

    /// Returns the cause of an error alone.
    pub(super) fn of_error(error: &(dyn Error + 'static)) -> Self {
        if causes(error).any(<dyn Error>::is::<EffectPanicked>) {
            return Self::Message;
        }
        let found = causes(error).find_map(|cause| {
            let error = cause.downcast_ref::<tokio_postgres::Error>()?;
            match error.as_db_error() {
                Some(db) => Some(Self::of_code(db.code())),
                // The connection is the application's own, because the consumer's is alive.
                None if error.is_closed() || source_is_io(error) => Some(Self::Passing),
                None => Some(Self::Message),
            }
        });
        found.unwrap_or(Self::Early)
    }

    /// Returns the cause of a failure that ended the consumer's session. A session that crashes its
    /// server process does not get an answer. The server sends 57P02 to all other sessions.
    pub(super) fn of_lost_session(error: &(dyn Error + 'static)) -> Self {
        let mut codes = causes(error).filter_map(|cause| cause.downcast_ref::<DbError>());
        let is_anothers = codes.any(|db| *db.code() == SqlState::CRASH_SHUTDOWN);
        if is_anothers { Self::Contention } else { Self::Passing }
    }

    /// Whether other messages must show the cause of the failure.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Unclear | Self::Passing)
    }

    fn of_code(code: &SqlState) -> Self {
        let class = code.code().get(..2).unwrap_or_default();
        let is_rollback = class == ROLLBACK_CLASS && *code != VIOLATED_AT_COMMIT;
        if is_rollback || CONTENTION_CODES.contains(code) {
            Self::Contention
        } else if UNCLEAR_CODES.contains(code) {
            Self::Unclear
        } else if *code == SqlState::FOREIGN_KEY_VIOLATION {
            Self::Early
        } else if PASSING_CODES.contains(code) || PASSING_CLASSES.contains(&class) {
            Self::Passing
        } else {
            Self::Message
        }
    }
}

/// Describes the failure, without data of rows.
pub(super) fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::Poison(reason) | Failure::Unavailable(reason) => reason.clone(),
        Failure::Technical(source) => describe(&**source),
    }
}

fn source_is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// Whether a prepared statement is outdated because its table changed. A new session prepares it
/// again.
pub(super) fn is_outdated(error: &(dyn Error + 'static)) -> bool {
    let codes = causes(error).filter_map(|cause| cause.downcast_ref::<DbError>());
    codes.into_iter().any(|db| *db.code() == SqlState::FEATURE_NOT_SUPPORTED)
}

/// Describes the error and its causes, without data of rows.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        if !text.is_empty() {
            text.push_str(": ");
        }
        if let Some(db) = cause.downcast_ref::<DbError>() {
            text.push_str(&named(db));
            break;
        }
        let _ = write!(text, "{}", first_words(cause));
    }
    text
}

/// Returns the first part of an error. The client's errors also print their causes, including the
/// server's message.
fn first_words(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    let tail = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    text.strip_suffix(&tail).filter(|_| !tail.is_empty()).unwrap_or(&text).to_owned()
}

fn named(db: &DbError) -> String {
    if db.parsed_severity() == Some(Severity::Fatal) {
        return format!("{} (SQLSTATE {})", db.message(), db.code().code());
    }
    let mut text = format!("SQLSTATE {}", db.code().code());
    let names = [("constraint", db.constraint()), ("table", db.table()), ("column", db.column())];
    for (what, name) in names {
        if let Some(name) = name {
            let _ = write!(text, ", {what} {name}");
        }
    }
    text
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let source = |error: &&'e (dyn Error + 'static)| (*error).source();
    std::iter::successors(Some(error), source).take(CAUSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the ledger is not balanced")]
    struct EffectError(#[source] std::io::Error);

    #[test]
    fn a_code_tells_whose_failure_it_may_be() {
        let of = |code: &str| FailureCause::of_code(&SqlState::from_code(code));
        for unclear in ["53400", "25006", "42P01", "42501", "42883"] {
            assert_eq!(of(unclear), FailureCause::Unclear, "{unclear}");
        }
        for passing in ["57P01", "57P03", "53100", "53200", "53300", "58030", "08006"] {
            assert_eq!(of(passing), FailureCause::Passing, "{passing}");
        }
        for in_the_way in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(of(in_the_way), FailureCause::Contention, "{in_the_way}");
        }
        assert_eq!(of("23503"), FailureCause::Early);
        for own in [
            "23505", "23502", "23514", "22P02", "40002", "42704", "42804", "P0001", "XX000",
            "25P02",
        ] {
            assert_eq!(of(own), FailureCause::Message, "{own}");
        }
        // An I/O error of an effect is not a database error.
        let failure = Failure::technical(EffectError(std::io::Error::other("disk")));
        assert_eq!(FailureCause::of(&failure), FailureCause::Early);
        assert_eq!(FailureCause::of(&Failure::technical(EffectPanicked)), FailureCause::Message);
        assert_eq!(FailureCause::of(&Failure::unavailable("no bank")), FailureCause::Dependency);
    }

    #[test]
    fn each_cause_is_printed_once() {
        let error = EffectError(std::io::Error::other("disk"));
        assert_eq!(describe(&error), "the ledger is not balanced: disk");
    }
}
