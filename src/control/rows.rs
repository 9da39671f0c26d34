//! The newest rows of a table, as the stream would have printed them.
//!
//! Enters: a [`Client`] and a table. Leaves: its columns and rows. Always holds: nothing is written
//! and nothing locked beyond what a SELECT does. Called by `postrider route --from-database`.

use tokio_postgres::SimpleQueryMessage;

use super::connect::Client;
use super::error::{ControlError, qualified};
use super::inspect::get;
use crate::outbox::TableName;
use crate::wal::quote::identifier;

const DOING: &str = "reading rows";

/// Columns, and rows from the oldest to the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestRows {
    /// In the table's order; generated ones are not sent, and not here.
    pub columns: Vec<RowColumn>,
    /// Values in the order of the columns; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

/// A column as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowColumn {
    /// Its name.
    pub name: String,
    /// Its type; for a domain over a built-in type, that type.
    pub type_oid: u32,
    /// `pg_attribute.atttypmod`.
    pub modifier: i32,
    /// Whether it may be NULL.
    pub is_nullable: bool,
}

/// What the replication session asks for too, so that text is the same.
const SETTINGS: &str = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; \
    SET extra_float_digits = 3; SET bytea_output = 'hex'";

// Objects of the system have OIDs below 16384 (`FirstNormalObjectId`).
const COLUMNS: &str = "\
    SELECT a.attname::text, \
        CASE WHEN t.typtype = 'd' AND t.typbasetype < 16384 THEN t.typbasetype ELSE t.oid END, \
        a.atttypmod, NOT a.attnotnull \
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
    WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped \
        AND a.attgenerated = '' ORDER BY a.attnum";

/// Up to `limit` rows. The newest are taken to be those that lie last in the table, as they do in
/// one that is only appended to.
pub async fn newest_rows(
    client: &Client,
    table: &TableName,
    limit: u32,
) -> Result<NewestRows, ControlError> {
    client.run(DOING, client.sql().batch_execute(SETTINGS)).await?;
    let name = qualified(table);
    let mut columns = Vec::new();
    for row in &client.run(DOING, client.sql().query(COLUMNS, &[&name])).await? {
        columns.push(RowColumn {
            name: get(row, 0)?,
            type_oid: get(row, 1)?,
            modifier: get(row, 2)?,
            is_nullable: get(row, 3)?,
        });
    }
    if columns.is_empty() {
        return Err(ControlError::TableMissing {
            table: table.clone(),
            database: get(
                &client
                    .run(DOING, client.sql().query_one("SELECT current_database()::text", &[]))
                    .await?,
                0,
            )?,
        });
    }
    let list: Vec<String> = columns.iter().map(|column| identifier(&column.name)).collect();
    let sql = format!("SELECT {} FROM {name} ORDER BY ctid DESC LIMIT {limit}", list.join(", "));
    // The simple protocol prints values as the stream does.
    let found = client.run(DOING, client.sql().simple_query(&sql)).await?;
    let mut rows = Vec::new();
    for message in &found {
        if let SimpleQueryMessage::Row(row) = message {
            rows.push((0..columns.len()).map(|at| row.get(at).map(str::to_owned)).collect());
        }
    }
    rows.reverse();
    Ok(NewestRows { columns, rows })
}
