//! The tables and functions of the library, as SQL that may be run again.
//!
//! Input: which pieces a service uses, and a schema. Output: their tables, indexes and functions in that
//! schema. Invariant: each piece stands alone; running one again, also over what an earlier version made,
//! changes nothing that is right; several processes may run them at once. A service with migrations of its own
//! copies [`Piece::sql`] into one of them instead.
//!
//! The library's statements name tables without a schema, so the schema must be in the `search_path` of the
//! sessions that use it (`options=-csearch_path=public,messaging` in the URL). The functions find their tables
//! from any session, since each keeps the `search_path` that it was made with.
//!
//! ```no_run
//! # async fn start(client: &mut tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
//! use postrider_patterns::migrations::{Piece, migrate};
//!
//! migrate(client, "public", &[Piece::Outbox, Piece::Inbox]).await?;
//! # Ok(())
//! # }
//! ```

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

const OUTBOX: &str = include_str!("migrations/0001_outbox.sql");
const ROW_SIZE: &str = include_str!("migrations/0005_outbox_row_size.sql");
const APPLICATION: &str = include_str!("migrations/0003_application.sql");

/// Of the advisory lock that processes take which migrate at the same time: "postride" in ASCII.
const LOCK: i64 = 0x706f_7374_7269_6465;

/// A part of the library with tables of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// `outbox` with its publication, `outbox_sequences` and `outbox_append`.
    Outbox,
    /// `idempotency_keys` and `idempotency_claim`.
    Idempotency,
    /// `processed_messages`, `consumer_offsets` and `inbox_mark`.
    Inbox,
    /// `sagas`, `saga_history` and `saga_timers`; a saga's events are rows of [`Piece::Outbox`].
    Saga,
}

impl Piece {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Outbox, Self::Idempotency, Self::Inbox, Self::Saga];

    /// Its statements, for the schema that `search_path` begins with.
    pub fn sql(self) -> String {
        match self {
            Self::Outbox => [OUTBOX, section(1), ROW_SIZE].join("\n"),
            Self::Idempotency => section(2).to_owned(),
            Self::Inbox => section(3).to_owned(),
            Self::Saga => section(4).to_owned(),
        }
    }
}

/// A section of the migration that has one for each piece, each after a line `-- 1. ..`.
fn section(number: u8) -> &'static str {
    let starts_at = |number: u8| APPLICATION.find(&format!("\n-- {number}. "));
    let end = starts_at(number + 1).unwrap_or(APPLICATION.len());
    let section = starts_at(number).and_then(|start| APPLICATION.get(start..end));
    let Some(section) = section else { unreachable!("the migration has a section for each piece") };
    section
}

/// Makes the pieces in the schema, and the schema if it does not exist, in one transaction. Needs CREATE on the
/// database for a new schema and for the outbox's publication, else on the schema alone.
///
/// `CREATE INDEX` keeps writers away until it is done; where a table is large, see `docs/patterns/cleaning-up.md`.
pub async fn migrate(client: &mut Client, schema: &str, pieces: &[Piece]) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    let exists = transaction
        .query_typed("SELECT FROM pg_namespace WHERE nspname = $1", &[(&schema, Type::NAME)])
        .await?;
    if exists.is_empty() {
        transaction.batch_execute(&format!("CREATE SCHEMA {quoted}")).await?;
    }
    transaction.batch_execute(&format!("SET LOCAL search_path TO {quoted}")).await?;
    for piece in pieces {
        transaction.batch_execute(&piece.sql()).await?;
    }
    transaction.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_has_its_tables_and_no_other_ones() {
        for (piece, own) in [
            (Piece::Outbox, "outbox_sequences ("),
            (Piece::Idempotency, "idempotency_keys ("),
            (Piece::Inbox, "processed_messages ("),
            (Piece::Inbox, "consumer_offsets ("),
            (Piece::Saga, "saga_history ("),
        ] {
            for other in Piece::ALL {
                let makes = other.sql().contains(&format!("CREATE TABLE IF NOT EXISTS {own}"));
                assert_eq!(makes, other == piece, "{own} in {other:?}");
            }
        }
    }
}
