//! What a failure of Postgres or of an effect means: wait, hold less, or count an attempt.
//!
//! Enters: an error, with all that it was made of. Leaves: whether the database is away or another
//! transaction in the way, and a text for logs and dead letters. What always holds: of an error of
//! Postgres only codes and names are told, since its message and detail may quote the row; only an
//! error that ends the session, such as a login that is refused, is no statement's and told in full. Pure.

use std::error::Error;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// Longest chain of errors that is followed.
const CAUSES_MAX: usize = 16;

/// Classes of SQLSTATE that say nothing about the statement: connection, insufficient resources,
/// system error. Source: PostgreSQL's documentation, appendix A.
const AWAY_CLASSES: [&str; 3] = ["08", "53", "58"];

/// The same of other classes: a server that shuts down, crashed, or starts, a session that the
/// server ended, a server that is a standby; a table, column, function or right that is missing: a
/// migration that is late makes no dead letters. What else class 42 has is the effect's doing.
const AWAY_CODES: [SqlState; 9] = [
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

/// A lock that was not had in time; a statement that took longer than `statement_timeout`, or that
/// somebody cancelled: a storage that stands still does that to any statement.
const IN_THE_WAY_CODES: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

/// The class of a serialization failure and of a deadlock.
const ROLLBACK_CLASS: &str = "40";

/// In class 40 and yet about the statement: a deferred constraint that the commit found violated.
const VIOLATED_AT_COMMIT: SqlState = SqlState::T_R_INTEGRITY_CONSTRAINT_VIOLATION;

/// What passes by itself and says nothing about the message at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passing {
    /// The database is away: nothing works now.
    Away,
    /// Another transaction holds what this one wants, or the database is too slow for it. One that
    /// wants less may get through.
    InTheWay,
}

/// Whether an error will pass; `None`: it is of the statement, or of the effect.
pub(super) fn passing(error: &(dyn Error + 'static)) -> Option<Passing> {
    causes(error).find_map(|cause| {
        let error = cause.downcast_ref::<tokio_postgres::Error>()?;
        match error.as_db_error() {
            Some(db) => passing_code(db.code()),
            None => (error.is_closed() || source_is_io(error)).then_some(Passing::Away),
        }
    })
}

fn passing_code(code: &SqlState) -> Option<Passing> {
    let class = code.code().get(..2).unwrap_or_default();
    if IN_THE_WAY_CODES.contains(code) || (class == ROLLBACK_CLASS && *code != VIOLATED_AT_COMMIT) {
        return Some(Passing::InTheWay);
    }
    (AWAY_CODES.contains(code) || AWAY_CLASSES.contains(&class)).then_some(Passing::Away)
}

fn source_is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// Whether a prepared statement does not fit its tables any more. A new session prepares it anew.
pub(super) fn is_outdated(error: &(dyn Error + 'static)) -> bool {
    let codes = causes(error).filter_map(|cause| cause.downcast_ref::<DbError>());
    codes.into_iter().any(|db| *db.code() == SqlState::FEATURE_NOT_SUPPORTED)
}

/// What may be said of an error.
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

/// A client's error prints those it was made of as well, the server's words among them.
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
    struct Outer(#[source] std::io::Error);

    #[test]
    fn what_passes_is_known_by_its_code_and_by_nothing_else() {
        let of = |code: &str| passing_code(&SqlState::from_code(code));
        for away in
            ["57P01", "57P02", "57P03", "53300", "08006", "25006", "42P01", "42501", "42883"]
        {
            assert_eq!(of(away), Some(Passing::Away), "{away}");
        }
        for in_the_way in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(of(in_the_way), Some(Passing::InTheWay), "{in_the_way}");
        }
        for own in ["23505", "22P02", "40002", "42704", "42804", "P0001", "XX000", "25P02"] {
            assert_eq!(of(own), None, "{own}");
        }
        // An effect's own trouble with files is not the database's.
        assert_eq!(passing(&Outer(std::io::Error::other("disk"))), None);
    }

    #[test]
    fn each_cause_is_told_once() {
        let error = Outer(std::io::Error::other("disk"));
        assert_eq!(describe(&error), "the ledger is not balanced: disk");
    }
}
