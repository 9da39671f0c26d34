//! Keeps tables in the shape in which they are read, and detects earlier rewrites.
//!
//! An `ALTER TABLE` that rewrites a table hides all rows from an earlier snapshot (documentation,
//! "Caveats" of concurrency control). A table is therefore locked before the snapshot. If the
//! snapshot comes first, as with a slot's, the table's files at that time are compared with the
//! present ones.

use super::scan::sql_name;
use crate::wal::{Connection, Transport, WalError};
use postrider_core::outbox::TableName;

/// A table or partition with its own rows, and its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFile {
    pub oid: u32,
    /// The file in the transaction's snapshot.
    pub then: u32,
    pub now: u32,
}

/// Locks tables, with their partitions, until the transaction ends, without taking a snapshot.
pub fn lock_tables<'a, T: Transport>(
    connection: &mut Connection<T>,
    tables: impl IntoIterator<Item = &'a TableName>,
) -> Result<(), WalError> {
    let names: Vec<String> = tables.into_iter().map(sql_name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let sql = format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", "));
    connection.simple_query(&sql).map(|_| ())
}

/// Files of these tables and their partitions, in OID order.
pub fn table_files<T: Transport>(
    connection: &mut Connection<T>,
    tables: &[u32],
) -> Result<Vec<TableFile>, WalError> {
    let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
    // The function reads the present catalog, whatever the snapshot is.
    let rows = connection.simple_query(&format!(
        "SELECT c.oid::text, c.relfilenode::text, pg_catalog.pg_relation_filenode(c.oid)::text \
         FROM pg_catalog.unnest(ARRAY[{}]::oid[]) AS named (id) \
         CROSS JOIN LATERAL (SELECT named.id AS id UNION \
             SELECT relid FROM pg_catalog.pg_partition_tree(named.id)) AS part \
         JOIN pg_catalog.pg_class c ON c.oid = part.id AND c.relkind = 'r' ORDER BY c.oid",
        oids.join(", ")
    ))?;
    let malformed = || WalError::Protocol("a malformed answer about a table's files");
    let number = |text: Option<&Option<String>>| {
        text.and_then(|text| text.as_deref()?.parse().ok()).ok_or_else(malformed)
    };
    let file = |row: &Vec<Option<String>>| {
        Ok(TableFile {
            oid: number(row.first())?,
            then: number(row.get(1))?,
            now: number(row.get(2))?,
        })
    };
    rows.iter().map(file).collect()
}
