//! Reads which columns of a table identify its rows, and which are numbers, from the catalog.

use super::connect::Client;
use super::error::ControlError;
use super::inspect::get;
use postrider_core::outbox::TableName;

const DOING: &str = "looking at a table's columns";

/// Columns of each unique index over all rows. Deferrable and incomplete indexes, and indexes with
/// another collation, do not count.
pub async fn unique_columns(
    client: &Client,
    table: &TableName,
) -> Result<Vec<Vec<String>>, ControlError> {
    const SQL: &str = "\
        SELECT array_agg(a.attname::text ORDER BY a.attnum) \
        FROM pg_catalog.pg_index i \
        JOIN pg_catalog.pg_class c ON c.oid = i.indrelid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place) \
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum \
        WHERE n.nspname = $1::text AND c.relname = $2::text AND i.indisunique AND i.indisvalid \
            AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL \
            AND k.place <= i.indnkeyatts \
        GROUP BY i.indexrelid HAVING bool_and(i.indcollation[k.place - 1] = a.attcollation)";
    let rows = client.run(DOING, client.sql().query(SQL, &[&table.schema, &table.name])).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

pub async fn is_number(
    client: &Client,
    table_oid: u32,
    column: &str,
) -> Result<bool, ControlError> {
    const SQL: &str = "\
        SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute \
            WHERE attrelid = $1::oid AND attname = $2::text \
                AND atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype))";
    let row = client.run(DOING, client.sql().query_one(SQL, &[&table_oid, &column])).await?;
    get(&row, 0)
}
