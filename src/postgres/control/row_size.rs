//! Finds tables with a column of unbounded length and no CHECK on it, with the constraint that
//! limits it.
//!
//! The walsender cannot build a row's message of 1 GiB. Once such a row is committed, the slot is
//! stuck for good. Only the catalog is read. PostgreSQL 12 to 18.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect::{Client, sql_error};
use super::error::ControlError;
use super::hint_text::qualified;
use crate::wal::quote::identifier;
use postrider_core::outbox::TableName;

const DOING: &str = "looking for a limit on the size of rows";

/// The limit of `migrations/0001_outbox.sql`, which explains it.
const ROW_BYTES_MAX: u32 = 16 << 20;

/// Columns of unbounded length, and whether a CHECK measures each with `length(..)` or
/// `octet_length(..)`. `pg_column_size(..)` does not count, because it measures the compressed
/// value. A NUMERIC prints as at most 150 kB.
const COLUMNS: &str = "\
    SELECT a.attname::text, t.typcategory = 'S', t.typname = 'bytea', EXISTS ( \
        SELECT FROM pg_catalog.pg_constraint k \
        WHERE k.conrelid = c.oid AND k.contype = 'c' AND a.attnum = ANY (k.conkey) \
            AND pg_catalog.pg_get_constraintdef(k.oid) ~ 'length[(]' \
            AND coalesce((to_jsonb(k)->>'conenforced')::boolean, true)) \
    FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
    WHERE n.nspname = $1::text AND c.relname = $2::text AND a.attnum > 0 AND NOT a.attisdropped \
        AND a.attgenerated = '' AND a.attlen = -1 AND t.typname <> 'numeric' \
        AND NOT (t.typname IN ('varchar', 'bpchar') AND a.atttypmod > 0) \
    ORDER BY a.attnum";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnboundedTable {
    pub table: TableName,
    /// Columns that no CHECK measures.
    pub columns: Vec<String>,
    pub sql: String,
}

/// A missing table needs no limit.
pub async fn unguarded(
    client: &Client,
    tables: &[TableName],
) -> Result<Vec<UnboundedTable>, ControlError> {
    let mut found = Vec::new();
    for table in tables {
        let names: [&(dyn ToSql + Sync); 2] = [&table.schema, &table.name];
        let rows = client.run(DOING, client.sql().query(COLUMNS, &names)).await?;
        let columns: Result<Vec<_>, _> = rows.iter().map(CatalogColumn::read).collect();
        let columns = columns.map_err(|error| ControlError::Connection {
            doing: DOING,
            source: sql_error(&error),
        })?;
        found.extend(judge(table, &columns));
    }
    Ok(found)
}

#[derive(Debug)]
struct CatalogColumn {
    name: String,
    is_text: bool,
    is_bytea: bool,
    is_measured: bool,
}

impl CatalogColumn {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (name, is_text) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Self { name, is_text, is_bytea: row.try_get(2)?, is_measured: row.try_get(3)? })
    }

    fn size(&self) -> String {
        let name = identifier(&self.name);
        match (self.is_text, self.is_bytea) {
            (true, _) => format!("coalesce(octet_length({name}), 0)::bigint"),
            // Two digits per byte.
            (_, true) => format!("2 * coalesce(octet_length({name}), 0)::bigint"),
            _ => format!("coalesce(octet_length({name}::text), 0)::bigint"),
        }
    }
}

fn judge(table: &TableName, columns: &[CatalogColumn]) -> Option<UnboundedTable> {
    let open: Vec<String> =
        columns.iter().filter(|column| !column.is_measured).map(|c| c.name.clone()).collect();
    let sizes: Vec<String> = columns.iter().map(CatalogColumn::size).collect();
    // An existing constraint may measure other columns.
    let instead =
        if open.len() < columns.len() { "DROP CONSTRAINT IF EXISTS outbox_row_size, " } else { "" };
    (!open.is_empty()).then(|| UnboundedTable {
        table: table.clone(),
        columns: open,
        sql: format!(
            "ALTER TABLE {} {instead}ADD CONSTRAINT outbox_row_size CHECK (\n    {} <= {ROW_BYTES_MAX}\n) NOT VALID;",
            qualified(table),
            sizes.join("\n    + ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, is_measured: bool) -> CatalogColumn {
        let (is_text, is_bytea) = (name != "payload", name == "raw");
        CatalogColumn {
            name: name.to_owned(),
            is_text: is_text && !is_bytea,
            is_bytea,
            is_measured,
        }
    }

    #[test]
    fn a_column_without_a_limit_asks_for_one_over_all() {
        let table = TableName::new("Shop", "outbox");
        assert_eq!(judge(&table, &[column("id", true), column("payload", true)]), None);
        let columns = [column("Key", true), column("payload", false), column("raw", false)];
        let found = judge(&table, &columns).unwrap();
        assert_eq!(found.columns, ["payload", "raw"]);
        assert_eq!(
            found.sql,
            "ALTER TABLE \"Shop\".\"outbox\" DROP CONSTRAINT IF EXISTS outbox_row_size, ADD CONSTRAINT outbox_row_size CHECK (\n    \
             coalesce(octet_length(\"Key\"), 0)::bigint\n    \
             + coalesce(octet_length(\"payload\"::text), 0)::bigint\n    \
             + 2 * coalesce(octet_length(\"raw\"), 0)::bigint <= 16777216\n) NOT VALID;"
        );
    }

    #[test]
    fn the_limit_is_the_migrations() {
        const OUTBOX: &str = include_str!("../migrations/0001_outbox.sql");
        const LATER: &str = include_str!("../migrations/0005_outbox_row_size.sql");
        for text in [OUTBOX, LATER] {
            assert!(text.contains("CONSTRAINT outbox_row_size CHECK"), "{text}");
            assert!(text.contains(&format!("<= {ROW_BYTES_MAX}")), "{text}");
        }
    }
}
