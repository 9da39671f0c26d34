//! Rejects a time window on a column without a time zone. The moment of such a value depends on its
//! writer, so a window could include or exclude rows unexpectedly.

use super::error::TableRowsError;
use crate::error::RelayError;
use postrider_postgres::wal::{Connection, literal};

/// `table`: the name and the OID.
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
