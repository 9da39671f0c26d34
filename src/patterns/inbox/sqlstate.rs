//! Classifies errors from Postgres and from a message's handler (`Effects`) by SQLSTATE: transient, or caused
//! by the message itself, so that a retry cannot help.
//!
//! Input: an error with its causes. Output: whether the database is unavailable (a missing table or privilege
//! counts as that, so that a late migration makes no dead letters) or there is contention; whether a prepared
//! statement is outdated; a text for logs and dead letters. Invariant: for a Postgres error the text has only
//! SQLSTATE and names, since message and detail may quote the row; only a FATAL error, such as a refused login,
//! cannot contain row data, so its message is included. No I/O.

use std::error::Error;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// Longest chain of errors that is followed.
const CAUSES_MAX: usize = 16;

/// Classes of SQLSTATE that say nothing about the statement: connection, insufficient resources,
/// system error. Source: PostgreSQL's documentation, appendix A.
const UNAVAILABLE_CLASSES: [&str; 3] = ["08", "53", "58"];

/// The same in other classes: a server that shuts down, crashed, or starts, a session that the server
/// ended, a standby; a missing table, column, function or privilege, so that a late migration makes no dead
/// letters. Other errors of class 42 are failures of the effect.
const UNAVAILABLE_CODES: [SqlState; 9] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::IDLE_SESSION_TIMEOUT,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::UNDEFINED_TABLE,
    SqlState::UNDEFINED_COLUMN,
    SqlState::UNDEFINED_FUNCTION,
    SqlState::INSUFFICIENT_PRIVILEGE,
];

/// A lock timeout; a statement that was cancelled, by `statement_timeout` or by request: stalled storage does
/// that to any statement.
const CONTENTION_CODES: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

/// The class of a serialization failure and of a deadlock.
const ROLLBACK_CLASS: &str = "40";

/// In class 40 and yet about the statement: a deferred constraint that the commit found violated.
const VIOLATED_AT_COMMIT: SqlState = SqlState::T_R_INTEGRITY_CONSTRAINT_VIOLATION;

/// A transient failure, which says nothing about the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transient {
    /// The database is unavailable.
    Unavailable,
    /// Another transaction holds a lock, or the database is slow. A smaller transaction may succeed.
    Contention,
}

/// Whether an error is transient; `None`: it is a failure of the statement or the effect.
pub(super) fn transient(error: &(dyn Error + 'static)) -> Option<Transient> {
    causes(error).find_map(|cause| {
        let error = cause.downcast_ref::<tokio_postgres::Error>()?;
        match error.as_db_error() {
            Some(db) => transient_code(db.code()),
            None => (error.is_closed() || source_is_io(error)).then_some(Transient::Unavailable),
        }
    })
}

fn transient_code(code: &SqlState) -> Option<Transient> {
    let class = code.code().get(..2).unwrap_or_default();
    if CONTENTION_CODES.contains(code) || (class == ROLLBACK_CLASS && *code != VIOLATED_AT_COMMIT) {
        return Some(Transient::Contention);
    }
    (UNAVAILABLE_CODES.contains(code) || UNAVAILABLE_CLASSES.contains(&class))
        .then_some(Transient::Unavailable)
}

fn source_is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// Whether a prepared statement is outdated because its table changed. A new session prepares it again.
pub(super) fn is_outdated(error: &(dyn Error + 'static)) -> bool {
    let codes = causes(error).filter_map(|cause| cause.downcast_ref::<DbError>());
    codes.into_iter().any(|db| *db.code() == SqlState::FEATURE_NOT_SUPPORTED)
}

/// The error and its causes, without data of rows.
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

/// An error of the client prints its causes as well, including the server's message.
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
    fn transient_errors_are_known_by_their_code_alone() {
        let of = |code: &str| transient_code(&SqlState::from_code(code));
        for away in
            ["57P01", "57P02", "57P03", "53300", "08006", "25006", "42P01", "42501", "42883"]
        {
            assert_eq!(of(away), Some(Transient::Unavailable), "{away}");
        }
        for in_the_way in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(of(in_the_way), Some(Transient::Contention), "{in_the_way}");
        }
        for own in ["23505", "22P02", "40002", "42704", "42804", "P0001", "XX000", "25P02"] {
            assert_eq!(of(own), None, "{own}");
        }
        // An I/O error of an effect is not one of the database.
        assert_eq!(transient(&EffectError(std::io::Error::other("disk"))), None);
    }

    #[test]
    fn each_cause_is_printed_once() {
        let error = EffectError(std::io::Error::other("disk"));
        assert_eq!(describe(&error), "the ledger is not balanced: disk");
    }
}
