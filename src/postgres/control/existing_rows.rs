//! Counts the rows that a table had before the slot was created. Invariant: a table that cannot be
//! read completely counts as non-empty, unless it has no pages.

use std::fmt;

use super::connect::Client;
use super::error::ControlError;
use super::hint_text::qualified;
use super::inspect::get;
use postrider_core::outbox::TableName;

const DOING: &str = "counting rows";

/// Limit above which the exact number does not matter.
const COUNTED_MAX: i64 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsBefore {
    Counted(i64),
    /// More than the counting limit.
    Many,
    /// The role may not read the table, which has pages.
    Unknown {
        role: String,
    },
    /// Row-level security restricts the role, and the table has pages.
    Hidden {
        role: String,
    },
}

impl fmt::Display for RowsBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(1) => write!(f, "1 row"),
            Self::Counted(rows) => write!(f, "{rows} rows"),
            Self::Many => write!(f, "more than {COUNTED_MAX} rows"),
            Self::Unknown { role } => {
                write!(f, "rows, or had some (role `{role}` may not read it)")
            }
            Self::Hidden { role } => {
                write!(f, "rows, or had some (row-level security may hide them from role `{role}`)")
            }
        }
    }
}

pub(super) async fn rows_before(
    client: &Client,
    tables: &[TableName],
) -> Result<Vec<(TableName, RowsBefore)>, ControlError> {
    const SQL: &str = "\
        SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), \
            pg_relation_size(c.oid) + (SELECT coalesce(sum(pg_relation_size(t.relid)), 0) \
                FROM pg_catalog.pg_partition_tree(c.oid) t) > 0, \
            current_user::text, pg_catalog.row_security_active(c.oid) \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = $1::text AND c.relname = $2::text AND c.relkind IN ('r', 'p')";
    let mut found = Vec::new();
    for table in tables {
        let names: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&table.schema, &table.name];
        let Some(row) = client.run(DOING, client.sql().query_opt(SQL, &names)).await? else {
            continue;
        };
        let (readable, has_pages): (bool, bool) = (get(&row, 0)?, get(&row, 1)?);
        if !has_pages {
            continue;
        }
        if !readable {
            found.push((table.clone(), RowsBefore::Unknown { role: get(&row, 2)? }));
            continue;
        }
        if get(&row, 3)? {
            found.push((table.clone(), RowsBefore::Hidden { role: get(&row, 2)? }));
            continue;
        }
        let name = qualified(table);
        let sql = format!("SELECT count(*) FROM (SELECT FROM {name} LIMIT {COUNTED_MAX} + 1) AS r");
        let row = client.run(DOING, client.sql().query_one(&sql, &[])).await?;
        match get(&row, 0)? {
            0 => {}
            rows if rows > COUNTED_MAX => found.push((table.clone(), RowsBefore::Many)),
            rows => found.push((table.clone(), RowsBefore::Counted(rows))),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_in_words() {
        assert_eq!(RowsBefore::Counted(1).to_string(), "1 row");
        assert_eq!(RowsBefore::Counted(20).to_string(), "20 rows");
        assert_eq!(RowsBefore::Many.to_string(), "more than 1000000 rows");
        let unknown = RowsBefore::Unknown { role: "r".to_owned() };
        assert!(unknown.to_string().contains("role `r` may not read it"));
        let hidden = RowsBefore::Hidden { role: "r".to_owned() };
        assert!(hidden.to_string().contains("may hide them from role `r`"));
    }
}
