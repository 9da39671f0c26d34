//! What was committed, in commit order, from a second slot with PostgreSQL's own `test_decoding`:
//! an account of the truth that shares no code with the product.

use super::postgres::Database;

/// A committed transaction that wrote outbox rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The position that may be acknowledged once all of its rows are stored.
    pub end_lsn: u64,
    /// The rows' ids in the order they were written.
    pub ids: Vec<String>,
}

/// Watches one table of one database, whose first column is `id`.
#[derive(Debug)]
pub struct Oracle {
    database: Database,
    table: String,
}

impl Oracle {
    /// Sees what is committed from now on. `table` with its schema.
    pub fn watch(database: &Database, table: &str) -> Self {
        let slot = Self::slot(database);
        database
            .sql()
            .run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"));
        Self { database: database.clone(), table: table.to_owned() }
    }

    /// Everything committed since `watch`; may be asked again. Of a row it reads the id only, for the
    /// rest may be text of any encoding.
    pub fn committed(&self) -> Vec<Committed> {
        let sql = self.database.sql();
        // PostgreSQL 18 tells of large transactions that were rolled back, and test_decoding crashes then.
        sql.run("SET logical_decoding_work_mem = '1GB'");
        let rows = sql.rows(&format!(
            "SELECT lsn - '0/0', coalesce(substring(data FROM $$^table .* INSERT: id\\[[^]]*\\]:'?[^' ]*$$), data) FROM pg_logical_slot_peek_changes('{}', NULL, NULL, \
             'include-xids', '0', 'skip-empty-xacts', '1') \
             WHERE data IN ('BEGIN', 'COMMIT') OR data LIKE 'table {}: INSERT: id%'",
            Self::slot(&self.database),
            self.table
        ));
        let mut committed = Vec::new();
        let mut ids = Vec::new();
        for row in rows {
            let [Some(lsn), Some(data)] = row.as_slice() else { panic!("a NULL from Postgres") };
            match data.as_str() {
                "BEGIN" => ids.clear(),
                "COMMIT" if ids.is_empty() => {}
                "COMMIT" => committed.push(Committed {
                    end_lsn: lsn.parse().unwrap(),
                    ids: std::mem::take(&mut ids),
                }),
                insert => ids.push(id(insert).to_owned()),
            }
        }
        committed
    }

    /// Lets go of the slot, so that it holds back no log for the other tests.
    pub fn close(self) {
        let slot = Self::slot(&self.database);
        self.database.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    }

    fn slot(database: &Database) -> String {
        format!("{}_oracle", database.name())
    }
}

/// The value of the first column in test_decoding's `... INSERT: id[uuid]:'...' ...`.
fn id(insert: &str) -> &str {
    let (_, value) = insert.split_once("]:").unwrap();
    let value = value.trim_start_matches('\'');
    &value[..value.find(['\'', ' ']).unwrap_or(value.len())]
}

#[cfg(test)]
mod tests {
    use super::id;

    #[test]
    fn ids_are_read_whatever_their_type() {
        assert_eq!(id("table public.outbox: INSERT: id[uuid]:'a-b' payload[text]:']:x'"), "a-b");
        assert_eq!(id("table public.outbox: INSERT: id[bigint]:42 payload[text]:''"), "42");
        assert_eq!(id("table public.outbox: INSERT: id[bigint]:42"), "42");
    }
}
