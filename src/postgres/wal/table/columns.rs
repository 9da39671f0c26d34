//! The columns of a table that a replication stream sends, from the catalog.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowColumn {
    pub name: String,
    /// Type; for a domain over a built-in type, that type.
    pub type_oid: u32,
    pub modifier: i32,
    pub is_nullable: bool,
}

/// Query for the sent columns of a table, with SQL for its OID.
///
/// The stream names a domain's innermost type (`logicalrep_write_typ` in
/// `replication/logical/proto.c`). System objects have OIDs below 16384 (`FirstNormalObjectId`).
pub(crate) fn columns_sql(table_oid: &str) -> String {
    sql(table_oid, "AND a.attgenerated = ''")
}

/// Query that includes generated columns.
pub(in crate::wal) fn all_columns_sql(table_oid: &str) -> String {
    sql(table_oid, "")
}

fn sql(table_oid: &str, condition: &str) -> String {
    format!(
        "WITH RECURSIVE type AS ( \
             SELECT a.attnum, t.oid, t.typtype, t.typbasetype \
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = {table_oid} AND a.attnum > 0 AND NOT a.attisdropped \
                 {condition} \
             UNION ALL \
             SELECT type.attnum, t.oid, t.typtype, t.typbasetype \
             FROM type JOIN pg_catalog.pg_type t ON type.typtype = 'd' AND t.oid = type.typbasetype) \
         SELECT a.attname::text, CASE WHEN type.oid < 16384 THEN type.oid ELSE a.atttypid END, \
             a.atttypmod, NOT a.attnotnull \
         FROM type JOIN pg_catalog.pg_attribute a \
             ON a.attrelid = {table_oid} AND a.attnum = type.attnum \
         WHERE type.typtype <> 'd' ORDER BY a.attnum"
    )
}
