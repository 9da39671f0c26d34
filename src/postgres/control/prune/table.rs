//! Describes a table with old rows to remove, from the catalog alone.
//!
//! A role that does not see every row is refused, because it could not know that all were passed.

use std::time::Duration;

use tokio_postgres::Row;

use super::PruneError;
use crate::control::connect::Client;
use crate::control::error::ControlError;
use crate::control::hint_text::qualified;
use crate::control::inspect::{get, letter};
use crate::wal::quote::identifier;
use postrider_core::outbox::TableName;

const DOING: &str = "looking at the table";

/// Size in bytes: each page reads a table without an index completely.
const UNINDEXED_MAX: i64 = 64 << 20;

/// The first name that the table has counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneColumns {
    pub id: Vec<String>,
    pub age: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneTable {
    pub name: TableName,
    pub oid: u32,
    pub age: String,
    /// Type in SQL syntax.
    pub age_type: String,
    /// Column that distinguishes rows of one age.
    pub id: String,
    pub id_type: String,
    pub is_partitioned: bool,
    /// True if the partitions are ranges of the age.
    pub by_age: bool,
    pub(super) owner: String,
    is_owner: bool,
}

/// Time before which rows are old, by the server's clock.
pub async fn cutoff(client: &Client, older_than: Duration) -> Result<String, PruneError> {
    // No row is older.
    const LONGEST: Duration = Duration::from_hours(24 * 366 * 1000);
    const SQL: &str = "\
        SELECT to_char((now() - $1::float8 * interval '1 second') AT TIME ZONE 'UTC', \
            'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let seconds = older_than.min(LONGEST).as_secs_f64();
    let row = client.run(DOING, client.sql().query_one(SQL, &[&seconds])).await?;
    Ok(get(&row, 0)?)
}

impl PruneTable {
    pub async fn look(
        client: &Client,
        name: &TableName,
        columns: &PruneColumns,
    ) -> Result<Self, PruneError> {
        const SQL: &str = "\
            SELECT c.oid, c.relkind::text, current_database()::text, \
                ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid \
                    AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) \
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
            WHERE n.nspname = $1::text AND c.relname = $2::text";
        let names: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&name.schema, &name.name];
        let found = client.run(DOING, client.sql().query_opt(SQL, &names)).await?;
        let Some(row) = found else {
            let database: String = client.server().database.clone();
            return Err(ControlError::TableMissing { table: name.clone(), database }.into());
        };
        let (oid, kind): (u32, char) = (get(&row, 0)?, letter(&row, 1)?);
        if !matches!(kind, 'r' | 'p') {
            let kind = "neither an ordinary nor a partitioned table";
            return Err(ControlError::TableUnsuitable { table: name.clone(), kind }.into());
        }
        let present: Vec<String> = get(&row, 3)?;
        let find = |wanted: &[String]| {
            let found = wanted.iter().find(|column| present.contains(column));
            found.cloned().ok_or_else(|| ControlError::ColumnsMissing {
                table: name.clone(),
                missing: wanted.first().cloned().into_iter().collect(),
                present: present.clone(),
            })
        };
        let (age, id) = (find(&columns.age)?, find(&columns.id)?);
        let table = Self::with_columns(client, name, oid, (&age, &id)).await?;
        if !matches!(table.age_type.as_str(), "timestamp with time zone" | "date")
            && !table.age_type.starts_with("timestamp")
        {
            let (column, kind) = (table.age, table.age_type);
            return Err(PruneError::AgeUnsuitable { table: name.clone(), column, kind });
        }
        table.permitted(client).await?;
        Ok(table)
    }

    async fn with_columns(
        client: &Client,
        name: &TableName,
        oid: u32,
        (age, id): (&str, &str),
    ) -> Result<Self, PruneError> {
        const SQL: &str = "\
            SELECT format_type(a.atttypid, a.atttypmod), format_type(i.atttypid, i.atttypmod), \
                c.relkind = 'p', coalesce(p.partstrat = 'r' AND p.partattrs[0] = a.attnum, false), \
                pg_get_userbyid(c.relowner)::text, pg_has_role(current_user, c.relowner, 'USAGE') \
            FROM pg_catalog.pg_class c \
            JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = $2::text \
            JOIN pg_catalog.pg_attribute i ON i.attrelid = c.oid AND i.attname = $3::text \
            LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid \
            WHERE c.oid = $1::oid";
        let row = client.run(DOING, client.sql().query_one(SQL, &[&oid, &age, &id])).await?;
        Ok(Self {
            name: name.clone(),
            oid,
            age: age.to_owned(),
            age_type: get(&row, 0)?,
            id: id.to_owned(),
            id_type: get(&row, 1)?,
            is_partitioned: get(&row, 2)?,
            by_age: get(&row, 3)?,
            owner: get(&row, 4)?,
            is_owner: get(&row, 5)?,
        })
    }

    async fn permitted(&self, client: &Client) -> Result<(), PruneError> {
        const SQL: &str = "\
            SELECT current_user::text, pg_catalog.row_security_active(c.oid), \
                has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), \
                has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE') \
            FROM pg_catalog.pg_class c WHERE c.oid = $1::oid";
        let row = client.run(DOING, client.sql().query_one(SQL, &[&self.oid])).await?;
        let (role, hides): (String, bool) = (get(&row, 0)?, get(&row, 1)?);
        let (table, to) = (self.name.clone(), identifier(&role));
        let (schema, name) = (identifier(&table.schema), qualified(&table));
        if !get::<bool>(&row, 2)? {
            let (lacks, grant) = (
                "USAGE on its schema".to_owned(),
                format!("GRANT USAGE ON SCHEMA {schema} TO {to};"),
            );
            return Err(PruneError::Forbidden { table, role, lacks, grant });
        }
        let wanted = ["SELECT", "UPDATE", "DELETE"].into_iter().zip(3..);
        let mut lacks = Vec::new();
        for (privilege, column) in wanted {
            if !get::<bool>(&row, column)? {
                lacks.push(privilege);
            }
        }
        if !lacks.is_empty() {
            let lacks = lacks.join(", ");
            let grant = format!("GRANT {lacks} ON {name} TO {to};");
            return Err(PruneError::Forbidden { table, role, lacks, grant });
        }
        if hides {
            return Err(PruneError::RowsHidden { table, role });
        }
        Ok(())
    }

    pub async fn may_drop(&self, client: &Client) -> Result<(), PruneError> {
        if self.is_owner {
            return Ok(());
        }
        let row = client.sql().query_one("SELECT current_user::text", &[]);
        let role: String = get(&client.run(DOING, row).await?, 0)?;
        let (table, owner) = (self.name.clone(), identifier(&self.owner));
        let lacks =
            format!("ownership: it is `{}`'s, and partitions are dropped by the owner", self.owner);
        let grant = format!("run it as {owner}, or GRANT {owner} TO {};", identifier(&role));
        Err(PruneError::Forbidden { table, role, lacks, grant })
    }

    pub async fn indexed(&self, client: &Client) -> Result<(), PruneError> {
        const SQL: &str = "\
            SELECT pg_catalog.pg_relation_size(a.attrelid), EXISTS ( \
                SELECT FROM pg_catalog.pg_index x \
                JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid \
                JOIN pg_catalog.pg_am m ON m.oid = c.relam \
                WHERE x.indrelid = a.attrelid AND x.indkey[0] = a.attnum AND m.amname = 'btree' \
                    AND x.indisvalid AND x.indpred IS NULL) \
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1::oid AND a.attname = $2::text";
        let row = client.run(DOING, client.sql().query_one(SQL, &[&self.oid, &self.age])).await?;
        let (bytes, is_indexed): (i64, bool) = (get(&row, 0)?, get(&row, 1)?);
        if is_indexed || bytes <= UNINDEXED_MAX {
            return Ok(());
        }
        let columns = format!("{}, {}", identifier(&self.age), identifier(&self.id));
        let (table, column) = (self.name.clone(), self.age.clone());
        Err(PruneError::IndexMissing { table, column, columns })
    }
}

/// Rows are deleted one by one from: the table; its default partition if partitioned by age;
/// otherwise all leaves.
pub async fn leaves(client: &Client, table: &PruneTable) -> Result<Vec<PruneTable>, PruneError> {
    const SQL: &str = "\
        SELECT n.nspname::text, c.relname::text, c.oid \
        FROM pg_catalog.pg_partition_tree($1::oid::regclass) t \
        JOIN pg_catalog.pg_class c ON c.oid = t.relid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relkind = 'r' AND (NOT $2::bool OR EXISTS ( \
            SELECT FROM pg_catalog.pg_partition_tree((SELECT partdefid FROM \
                pg_catalog.pg_partitioned_table WHERE partrelid = $1::oid)::regclass) d \
            WHERE d.relid = c.oid)) \
        ORDER BY 1, 2";
    if !table.is_partitioned {
        return Ok(vec![table.clone()]);
    }
    let (oid, by_age) = (table.oid, table.by_age);
    let rows = client.run(DOING, client.sql().query(SQL, &[&oid, &by_age])).await?;
    let mut leaves = Vec::new();
    for row in &rows {
        let name = table_name(row)?;
        let columns = (table.age.as_str(), table.id.as_str());
        let leaf = PruneTable::with_columns(client, &name, get(row, 2)?, columns).await?;
        leaf.permitted(client).await?;
        leaves.push(leaf);
    }
    Ok(leaves)
}

pub(super) fn table_name(row: &Row) -> Result<TableName, ControlError> {
    Ok(TableName::new(&get::<String>(row, 0)?, &get::<String>(row, 1)?))
}
