//! SQL that creates a missing outbox table: the migration's, under another name, or partitioned by
//! day. An existing table is not changed.

use super::hint_text::qualified;
use crate::wal::quote::{identifier, literal};
use postrider_core::outbox::TableName;

/// Migration, which also creates the publication under its default name.
pub(super) const OUTBOX: &str = include_str!("../migrations/0001_outbox.sql");

const PUBLICATION_MARK: &str = "\n-- Only inserts are messages.";

/// A unique index must contain the partition key.
const PARTITIONED: [(&str, &str); 2] = [
    ("PRIMARY KEY DEFAULT gen_random_uuid()", "NOT NULL DEFAULT gen_random_uuid()"),
    (
        "    CONSTRAINT outbox_row_size",
        "    PRIMARY KEY (id, created_at),\n    CONSTRAINT outbox_row_size",
    ),
];

/// Days after today with a partition in a new table.
pub const DAYS_AHEAD: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutboxPartitions {
    #[default]
    None,
    /// Days (UTC) of `created_at`: today, the next [`DAYS_AHEAD`] days, and a default partition.
    Day,
}

/// An existing table requires no right to create one.
pub(super) fn outbox_table(table: &TableName, partitions: OutboxPartitions) -> String {
    let Some((text, _)) = OUTBOX.split_once(PUBLICATION_MARK) else {
        unreachable!("the migration has its mark before the publication");
    };
    let name = qualified(table);
    let sql = replaced(text, "IF NOT EXISTS outbox (", &format!("{name} ("));
    let sql = match partitions {
        OutboxPartitions::None => sql + &index_by_age(table, &name),
        OutboxPartitions::Day => {
            let default = default_partition(table);
            partitioned(sql) + &first_partitions(table) + &index_by_age(table, &qualified(&default))
        }
    };
    let (schema, relation) = (literal(&table.schema), literal(&table.name));
    format!(
        "DO $setup$\nBEGIN\n    IF EXISTS (\n        SELECT FROM pg_catalog.pg_class c\n        \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n        \
         WHERE n.nspname = {schema} AND c.relname = {relation}\n    ) THEN\n        RETURN;\n    END IF;\n\
         {sql}END\n$setup$;\n"
    )
}

fn partitioned(sql: String) -> String {
    let sql = PARTITIONED.iter().fold(sql, |sql, (from, to)| replaced(&sql, from, to));
    let Some((table, "")) = sql.rsplit_once("\n);\n") else {
        unreachable!("the migration's table ends with its last column");
    };
    format!("{table}\n) PARTITION BY RANGE (created_at);\n")
}

/// Index for deleting old rows. A day's partition is dropped as a whole, and needs none.
fn index_by_age(table: &TableName, on: &str) -> String {
    let name = identifier(&partition_name(&table.name, "by_age"));
    format!("CREATE INDEX IF NOT EXISTS {name} ON {on} (created_at, id);\n")
}

fn default_partition(table: &TableName) -> TableName {
    TableName::new(&table.schema, partition_name(&table.name, "default"))
}

/// The default partition takes all other rows, so that no insert fails.
fn first_partitions(table: &TableName) -> String {
    let parent = qualified(table);
    let default = qualified(&default_partition(table));
    let (schema, stem) = (literal(&table.schema), literal(&partition_name(&table.name, "")));
    format!(
        "CREATE TABLE {default} PARTITION OF {parent} DEFAULT;\n\
         FOR ahead IN 0..{DAYS_AHEAD} LOOP\n    \
         EXECUTE (SELECT pg_catalog.format('CREATE TABLE %I.%I PARTITION OF {} FOR VALUES FROM (%L) TO (%L)', \
         {schema}, {stem} || pg_catalog.to_char(day, 'YYYYMMDD'),\n        \
         pg_catalog.to_char(day, 'YYYY-MM-DD 00:00:00+00'), \
         pg_catalog.to_char(day + interval '1 day', 'YYYY-MM-DD 00:00:00+00'))\n        \
         FROM (SELECT pg_catalog.date_trunc('day', pg_catalog.now() AT TIME ZONE 'UTC') \
         + ahead * interval '1 day' AS day) AS one);\nEND LOOP;\n",
        // Escaped for a literal and for a format.
        parent.replace('%', "%%").replace('\'', "''"),
    )
}

/// Within Postgres's 63 bytes.
pub(super) fn partition_name(table: &str, suffix: &str) -> String {
    /// `_` and eight digits of a day, or `default`.
    const ROOM: usize = 63 - 9;
    let mut end = table.len().min(ROOM);
    while !table.is_char_boundary(end) {
        end -= 1;
    }
    let (stem, _) = table.split_at(end);
    format!("{stem}_{suffix}")
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    let sql = text.replace(from, to);
    assert_ne!(sql, text, "the migration has `{from}`");
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_partitioned_has_the_columns_of_the_other_one() {
        let table = TableName::new("Sales", "it's 100%");
        let plain = outbox_table(&table, OutboxPartitions::None);
        let by_day = outbox_table(&table, OutboxPartitions::Day);
        for column in
            ["id ", "aggregate_type ", "aggregate_id ", "event_type ", "payload ", "created_at "]
        {
            let at = format!("    {column}");
            assert!(plain.contains(&at) && by_day.contains(&at), "{by_day}");
        }
        let index = "CREATE INDEX IF NOT EXISTS \"it's 100%_by_age\" ON \"Sales\".\"it's 100%";
        assert!(plain.contains(&format!("{index}\" (created_at, id);")), "{plain}");
        assert!(by_day.contains(&format!("{index}_default\" (created_at, id);")), "{by_day}");
        for words in [
            "PRIMARY KEY (id, created_at),",
            "\n) PARTITION BY RANGE (created_at);",
            "CREATE TABLE \"Sales\".\"it's 100%_default\" PARTITION OF \"Sales\".\"it's 100%\" DEFAULT;",
            "PARTITION OF \"Sales\".\"it''s 100%%\" FOR VALUES",
        ] {
            assert!(by_day.contains(words), "{by_day}");
        }
        assert!(!plain.contains("PARTITION BY"), "{plain}");
    }

    #[test]
    fn names_of_partitions_are_no_longer_than_names_may_be() {
        assert_eq!(partition_name("outbox", "20261126"), "outbox_20261126");
        let long = partition_name(&"ä".repeat(31), "20261126");
        assert_eq!((long.len(), long.chars().count()), (63, 36));
    }
}
