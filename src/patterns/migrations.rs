//! Creates the tables and functions of the library, with SQL that may be run again.
//!
//! Invariant: a repeated run changes and locks only objects that differ. Several processes may
//! migrate concurrently. A service with its own migrations copies [`Piece::sql`] instead.
//!
//! Sessions need the schema in their `search_path`:
//! `ALTER ROLE app SET search_path = public, messaging`. Each function keeps the `search_path` that
//! it was created with, so migrate again after `ALTER SCHEMA .. RENAME`. If the outbox is not in
//! `public`, name it in the relay's `source.tables`.
//!
//! ```no_run
//! # use postrider_patterns::migrations::MigrateError;
//! # async fn start(client: &mut tokio_postgres::Client) -> Result<(), MigrateError> {
//! use postrider_patterns::migrations::{Piece, migrate};
//!
//! migrate(client, "public", &[Piece::Outbox, Piece::Inbox]).await?;
//! # Ok(())
//! # }
//! ```

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, IsolationLevel, Transaction};

use crate::table_error::TableFault;

const OUTBOX: &str = include_str!("migrations/0001_outbox.sql");
const ROW_SIZE: &str = include_str!("migrations/0005_outbox_row_size.sql");
const APPLICATION: &str = include_str!("migrations/0003_application.sql");

const FUNCTIONS: u8 = 5;

/// Advisory lock that serializes migrations: "postride" in ASCII.
const LOCK: i64 = 0x706f_7374_7269_6465;

/// Start of a table's comment. The version and a hash of the statements follow.
const COMMENT: &str = "postrider ";

/// A part of the library with its own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// `outbox` with its publication, `outbox_sequences`, `outbox_append` and `outbox_tombstone`.
    Outbox,
    /// `idempotency_keys`, `idempotency_begin`, `idempotency_finish` and `idempotency_claim`.
    Idempotency,
    /// `processed_messages`, `consumer_offsets`, `consumer_sequences` and `inbox_mark`.
    Inbox,
    /// `sagas`, `saga_history` and `saga_timers`. Also needs [`Piece::Outbox`].
    Saga,
}

impl Piece {
    /// All pieces.
    pub const ALL: [Self; 4] = [Self::Outbox, Self::Idempotency, Self::Inbox, Self::Saga];

    /// The comment on the last table says which version created them.
    const fn tables(self) -> &'static [&'static str] {
        match self {
            Self::Outbox => &["outbox", "outbox_sequences"],
            Self::Idempotency => &["idempotency_keys"],
            Self::Inbox => &["consumer_offsets", "consumer_sequences", "processed_messages"],
            Self::Saga => &["saga_history", "saga_timers", "sagas"],
        }
    }

    const fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Outbox => &["outbox_append", "outbox_append_all", "outbox_tombstone"],
            Self::Idempotency => &["idempotency_begin", "idempotency_claim", "idempotency_finish"],
            Self::Inbox => &["inbox_mark"],
            Self::Saga => &[],
        }
    }

    /// Statements that create the piece in the first schema of the `search_path`.
    pub fn sql(self) -> String {
        match self {
            Self::Outbox => [OUTBOX, section(1), ROW_SIZE, section(FUNCTIONS)].join("\n"),
            Self::Idempotency => [section(2), section(FUNCTIONS)].join("\n"),
            Self::Inbox => [section(3), section(FUNCTIONS)].join("\n"),
            Self::Saga => section(4).to_owned(),
        }
    }
}

/// Reason why the tables were not created. Nothing was changed, unless the connection ended during
/// COMMIT. [`migrate`] may be called again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Another session holds a lock on a table that must change.
    #[error("another session has locked a table that the migration changes")]
    Busy(#[source] Error),
    /// The role may not create or change an object of the pieces.
    #[error("the role may not create or change the tables of the library")]
    Forbidden(#[source] Error),
    /// A statement failed for another reason, or the connection ended.
    #[error("a statement of the migration failed")]
    Database(#[source] Error),
}

impl MigrateError {
    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Busy(_) => Some(
                "end the transactions that use the tables, or wait for their end, and migrate again: \
                 SELECT pid, usename, query FROM pg_stat_activity WHERE xact_start < now() - interval '5 s'",
            ),
            Self::Forbidden(_) => Some(
                "GRANT CREATE ON SCHEMA <schema> TO <role>; for a new schema or the outbox's \
                 publication GRANT CREATE ON DATABASE <database> TO <role>; the role must own \
                 the objects that an earlier version created: ALTER TABLE <table> OWNER TO \
                 <role>; ALTER FUNCTION <function> OWNER TO <role>",
            ),
            Self::Database(_) => None,
        }
    }

    /// Error of Postgres, with its SQLSTATE.
    pub fn database(&self) -> &Error {
        match self {
            Self::Busy(error) | Self::Forbidden(error) | Self::Database(error) => error,
        }
    }
}

impl From<Error> for MigrateError {
    fn from(error: Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Busy => Self::Busy(error),
            TableFault::Forbidden => Self::Forbidden(error),
            _ => Self::Database(error),
        }
    }
}

/// Each piece has one section, which follows a line `-- 1. ..`.
fn section(number: u8) -> &'static str {
    let starts_at = |number: u8| APPLICATION.find(&format!("\n-- {number}. "));
    let end = starts_at(number + 1).unwrap_or(APPLICATION.len());
    let section = starts_at(number).and_then(|start| APPLICATION.get(start..end));
    let Some(section) = section else { unreachable!("the migration has a section for each piece") };
    section
}

/// Creates the schema and the pieces in one transaction.
///
/// If a piece is current or newer, the call does nothing, so a service may call it at every start,
/// with any role. To create or change a piece, the role needs CREATE on the schema and must own its
/// tables. A new schema and the outbox's publication need CREATE on the database. A role that may
/// call an earlier function of a piece may also call its new functions.
///
/// Errors: [`MigrateError::Busy`] after 5 s if another session holds a lock on a table that must
/// change. `CREATE INDEX` blocks writers; for large tables see `docs/patterns/cleaning-up.md`.
pub async fn migrate(
    client: &mut Client,
    schema: &str,
    pieces: &[Piece],
) -> Result<(), MigrateError> {
    // READ COMMITTED shows commits of other processes from before the lock was acquired.
    let level = IsolationLevel::ReadCommitted;
    let transaction = client.build_transaction().isolation_level(level).start().await?;
    transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    let exists = transaction
        .query_typed("SELECT FROM pg_namespace WHERE nspname = $1", &[(&schema, Type::NAME)])
        .await?;
    if exists.is_empty() {
        transaction.batch_execute(&format!("CREATE SCHEMA {quoted}")).await?;
    }
    // A statement that waits for a lock blocks every later statement on the table.
    let settings = format!("SET LOCAL search_path TO {quoted}; SET LOCAL lock_timeout = '5s'");
    transaction.batch_execute(&settings).await?;
    for piece in pieces {
        create(&transaction, schema, *piece).await?;
    }
    Ok(transaction.commit().await?)
}

async fn create(transaction: &Transaction<'_>, schema: &str, piece: Piece) -> Result<(), Error> {
    let (sql, tables) = (piece.sql(), piece.tables());
    let Some(last) = tables.last() else { unreachable!("a piece has a table") };
    // The functions keep the name of the schema.
    let made_by = format!("{schema}\n{sql}");
    let state = transaction
        .query_typed_one(
            "SELECT (SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest($1) AS name) \
                 AND (SELECT count(DISTINCT proname) FROM pg_proc \
                     WHERE pronamespace = quote_ident(current_schema())::regnamespace AND proname = ANY($2)) = cardinality($2), \
                 obj_description(to_regclass($3), 'pg_class'), \
                 left(encode(sha256(convert_to($4, 'UTF8')), 'hex'), 16)",
            &[
                (&tables, Type::TEXT_ARRAY),
                (&piece.functions(), Type::TEXT_ARRAY),
                (last, Type::TEXT),
                (&made_by, Type::TEXT),
            ],
        )
        .await?;
    let (comment, hash): (Option<String>, String) = (state.try_get(1)?, state.try_get(2)?);
    let current = format!("{COMMENT}{} {hash}", env!("CARGO_PKG_VERSION"));
    if comment.as_deref().is_some_and(is_of_later_version)
        || state.try_get(0)? && comment.as_deref() == Some(&current)
    {
        return Ok(());
    }
    transaction.batch_execute(&sql).await?;
    if comment.is_none_or(|comment| comment.starts_with(COMMENT)) {
        transaction.batch_execute(&format!("COMMENT ON TABLE {last} IS '{current}'")).await?;
    }
    Ok(())
}

fn is_of_later_version(comment: &str) -> bool {
    let version = comment.strip_prefix(COMMENT).and_then(|rest| rest.split(' ').next());
    version.and_then(numbers) > numbers(env!("CARGO_PKG_VERSION"))
}

fn numbers(version: &str) -> Option<[u32; 3]> {
    let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_version_is_told_by_its_numbers() {
        for (comment, is_later) in [
            ("postrider 999.0.0 0123456789abcdef", true),
            ("postrider 0.0.1 0123456789abcdef", false),
            (concat!("postrider ", env!("CARGO_PKG_VERSION"), " 0123456789abcdef"), false),
            ("postrider 0123456789abcdef", false),
            ("999.0.0 of something else", false),
        ] {
            assert_eq!(is_of_later_version(comment), is_later, "{comment}");
        }
    }

    #[test]
    fn each_piece_has_its_tables_and_no_other_ones() {
        for (piece, own) in [
            (Piece::Outbox, "outbox_sequences ("),
            (Piece::Idempotency, "idempotency_keys ("),
            (Piece::Inbox, "processed_messages ("),
            (Piece::Inbox, "consumer_offsets ("),
            (Piece::Inbox, "consumer_sequences ("),
            (Piece::Saga, "saga_history ("),
        ] {
            assert!(piece.tables().contains(&own.trim_end_matches(" (")), "{own}");
            for other in Piece::ALL {
                let makes = other.sql().contains(&format!("CREATE TABLE IF NOT EXISTS {own}"));
                assert_eq!(makes, other == piece, "{own} in {other:?}");
            }
        }
    }
}
