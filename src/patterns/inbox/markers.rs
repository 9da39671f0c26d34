//! The markers of processed messages: inserts into `processed_messages`. Invariant: of all
//! transactions that insert one marker, at most one commits.

use std::collections::HashSet;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement, Transaction};
use uuid::Uuid;

/// Returns ids only if some had a marker. A row per id took 0.5 ms of the 13 ms of a batch of 200.
const INSERT: &str = "\
    WITH inserted AS ( \
        INSERT INTO processed_messages (consumer, message_id) \
        SELECT $1, id FROM unnest($2) AS id ON CONFLICT DO NOTHING RETURNING message_id \
    ) \
    SELECT count(*), txid_current_if_assigned(), \
    CASE WHEN count(*) < cardinality($2) THEN array_agg(message_id) END FROM inserted";

const INSERT_TYPES: [Type; 2] = [Type::TEXT, Type::UUID_ARRAY];

#[derive(Debug)]
pub(super) struct Inserted {
    pub(super) fresh: HashSet<Uuid>,
    pub(super) xact: Option<i64>,
}

pub(super) async fn prepare_insert(client: &Client) -> Result<Statement, Error> {
    client.prepare_typed(INSERT, &INSERT_TYPES).await
}

/// Waits for another transaction that has inserted one of the markers. The ids are sorted and
/// unique, so two consumers do not deadlock.
pub(super) async fn insert(
    tx: &Transaction<'_>,
    statement: &Statement,
    consumer: &str,
    ids: &[Uuid],
) -> Result<Inserted, Error> {
    let row = tx.query_one(statement, &[&consumer, &ids]).await?;
    let count: i64 = row.try_get(0)?;
    if count == 0 {
        return Ok(Inserted { fresh: HashSet::new(), xact: None });
    }
    let some: Option<Vec<Uuid>> = row.try_get(2)?;
    let fresh = some.map_or_else(|| ids.iter().copied().collect(), HashSet::from_iter);
    Ok(Inserted { fresh, xact: row.try_get(1)? })
}
