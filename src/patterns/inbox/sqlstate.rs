//! Classifies errors by SQLSTATE: did the message cause the error, or possibly the database?
//!
//! Invariant: no code alone says that the database is unavailable, because one message's statement
//! may cause any of them. The text of a Postgres error has only SQLSTATE and names, because message
//! and detail may quote the row. A FATAL error cannot, so its message is included.

use std::error::Error;
use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

use super::Failure;

const CAUSES_MAX: usize = 16;

/// Connection, resources and system errors. One message's statement may also cause them for ever: a
/// missing foreign server gives 08001. Source: PostgreSQL's documentation, appendix A.
const PASSING_CLASSES: [&str; 3] = ["08", "53", "58"];

/// The server shuts down, crashed, starts, or ended a session.
const PASSING_CODES: [SqlState; 4] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::IDLE_SESSION_TIMEOUT,
];

/// States that last until somebody changes the message or the database, such as a sort over
/// `temp_file_limit`, a standby, or a missing table. If every message misses it, a migration is
/// late.
const UNCLEAR_CODES: [SqlState; 6] = [
    SqlState::CONFIGURATION_LIMIT_EXCEEDED,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::UNDEFINED_TABLE,
    SqlState::UNDEFINED_COLUMN,
    SqlState::UNDEFINED_FUNCTION,
    SqlState::INSUFFICIENT_PRIVILEGE,
];

/// Stalled storage may cancel any statement.
const CONTENTION_CODES: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

/// Class of serialization failures and deadlocks.
const ROLLBACK_CLASS: &str = "40";

/// In class 40, but caused by the statement: COMMIT found a violated deferred constraint.
const VIOLATED_AT_COMMIT: SqlState = SqlState::T_R_INTEGRITY_CONSTRAINT_VIOLATION;

/// The panic's message is not repeated.
#[derive(Debug, thiserror::Error)]
#[error("the effects panicked")]
pub(super) struct EffectPanicked;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    Message,
    /// The message, but a missing row, saga or subject may come within minutes.
    Early,
    /// The message if others succeed; the database if none does.
    Unclear,
    /// As `Unclear`, but the failure may pass by itself within minutes: a full disk, a lost
    /// session.
    Passing,
    /// Another transaction holds a lock, or the database is slow.
    Contention,
    Dependency,
}

impl FailureCause {
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Poison(_) => Self::Message,
            Failure::Unavailable(_) => Self::Dependency,
            Failure::Technical(source) => Self::of_error(&**source),
        }
    }

    pub(super) fn of_error(error: &(dyn Error + 'static)) -> Self {
        if causes(error).any(<dyn Error>::is::<EffectPanicked>) {
            return Self::Message;
        }
        let found = causes(error).find_map(|cause| {
            let error = cause.downcast_ref::<tokio_postgres::Error>()?;
            match error.as_db_error() {
                Some(db) => Some(Self::of_code(db.code())),
                // The consumer's own connection is alive, so this one is the application's.
                None if error.is_closed() || source_is_io(error) => Some(Self::Passing),
                None => Some(Self::Message),
            }
        });
        found.unwrap_or(Self::Early)
    }

    /// The session that crashes the server has no answer; the server sends 57P02 to all others.
    pub(super) fn of_lost_session(error: &(dyn Error + 'static)) -> Self {
        let mut codes = causes(error).filter_map(|cause| cause.downcast_ref::<DbError>());
        let is_anothers = codes.any(|db| *db.code() == SqlState::CRASH_SHUTDOWN);
        if is_anothers { Self::Contention } else { Self::Passing }
    }

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

pub(super) fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::Poison(reason) | Failure::Unavailable(reason) => reason.clone(),
        Failure::Technical(source) => describe(&**source),
    }
}

fn source_is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// Whether a prepared statement is outdated because its table changed.
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

/// The client's errors also print their causes, including the server's message.
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
