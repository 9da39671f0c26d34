//! Refuses a window of time by a column that has no time zone.
//!
//! Input: a connection, a table and the configuration. Output: an error if the column of a row's time is a `timestamp`
//! without zone: which moment its values are depends on who wrote them, so that rows would be left out, or taken, by
//! surprise.

use super::error::TableRowsError;
use crate::error::RelayError;
use postrider_postgres::wal::{Connection, literal};

/// See the module's documentation. `table`: its name, and its OID.
pub fn refuse_without_zone(
    connection: &mut Connection,
    (table, oid): (&str, u32),
    column: &str,
) -> Result<(), RelayError> {
    const TIMESTAMP: &str = "'timestamp'::pg_catalog.regtype";
    let rows = connection.simple_query(&format!(
        "SELECT 1 FROM pg_catalog.pg_attribute WHERE attrelid = {oid} AND attname = {} AND atttypid = {TIMESTAMP}",
        literal(column)
    ))?;
    if rows.is_empty() {
        return Ok(());
    }
    let (table, column) = (table.to_owned(), column.to_owned());
    Err(TableRowsError::TimeWithoutZone { table, column }.into())
}
