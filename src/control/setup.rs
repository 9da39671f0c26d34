//! `postrider setup`: the SQL that makes a database ready, to be shown or run.
//!
//! Enters: names. Leaves: a [`SetupPlan`] whose steps can be run any number of times. Always holds:
//! the table comes before its publication and the publication before the slot; what exists is
//! completed, never replaced.

use std::fmt::Write as _;

use super::connect::Client;
use super::error::{ControlError, create_publication, qualified};
use super::preflight::create_missing_slot;
use crate::outbox::TableName;
use crate::wal::quote::{identifier, literal};

/// The migration, which also creates the publication under its default name.
const OUTBOX: &str = include_str!("../../migrations/0001_outbox.sql");

/// Where the migration's second part begins.
const PUBLICATION_MARK: &str = "\n-- Only inserts are messages.";

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupStep {
    /// Such as ``publication `postrider` ``.
    pub object: String,
    /// SQL that does nothing if the object is already as it should be.
    pub sql: String,
    creates_slot: Option<String>,
}

/// The steps in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupPlan {
    /// See [`SetupStep`].
    pub steps: Vec<SetupStep>,
}

impl SetupPlan {
    /// Plans for these names. With `existing_tables` the tables are the application's own and are
    /// only published.
    pub fn new(slot: &str, publication: &str, tables: &[TableName], existing_tables: bool) -> Self {
        let mut steps = Vec::new();
        if !existing_tables {
            for table in tables {
                steps.push(SetupStep {
                    object: format!("table {table}"),
                    sql: outbox_table(table),
                    creates_slot: None,
                });
            }
        }
        steps.push(SetupStep {
            object: format!("publication `{publication}`"),
            sql: publish(publication, tables),
            creates_slot: None,
        });
        let name = literal(slot);
        steps.push(SetupStep {
            object: format!("replication slot `{slot}`"),
            sql: format!(
                "SELECT pg_catalog.pg_create_logical_replication_slot({name}, 'pgoutput')\n\
                 WHERE NOT EXISTS (\n    SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {name}\n);\n"
            ),
            creates_slot: Some(slot.to_owned()),
        });
        Self { steps }
    }

    /// The whole plan as a script for psql.
    pub fn script(&self) -> String {
        let steps: Vec<_> = self.steps.iter().map(|step| step.sql.as_str()).collect();
        steps.join("\n")
    }

    /// Runs the steps. Stops at the first error; running again continues.
    pub async fn run(&self, client: &Client) -> Result<(), ControlError> {
        for step in &self.steps {
            match &step.creates_slot {
                Some(slot) => {
                    let found = super::inspect::slot(client, slot).await?;
                    if found.is_none() {
                        create_missing_slot(client, slot).await?;
                    }
                }
                None => client.run("setting up", client.sql().batch_execute(&step.sql)).await?,
            }
        }
        Ok(())
    }
}

/// The migration's table under another name.
fn outbox_table(table: &TableName) -> String {
    let (text, _) = OUTBOX.split_once(PUBLICATION_MARK).unwrap_or((OUTBOX, ""));
    text.replace("IF NOT EXISTS outbox (", &format!("IF NOT EXISTS {} (", qualified(table)))
}

/// Creates the publication, or adds the tables that it lacks.
fn publish(publication: &str, tables: &[TableName]) -> String {
    let (name, quoted) = (literal(publication), identifier(publication));
    let mut sql = format!(
        "DO $$\nBEGIN\n    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = {name}) THEN\n        \
         {}\n",
        create_publication(publication, tables)
    );
    for table in tables {
        let (schema, relation) = (literal(&table.schema), literal(&table.name));
        sql += if tables.len() == 1 { "    ELSIF" } else { "    END IF;\n    IF" };
        // Writing to a string cannot fail.
        let _ = write!(
            sql,
            " NOT EXISTS (\n        SELECT FROM pg_catalog.pg_publication_tables\n        \
             WHERE pubname = {name} AND schemaname = {schema} AND tablename = {relation}\n    ) THEN\n        \
             ALTER PUBLICATION {quoted} ADD TABLE {};\n",
            qualified(table)
        );
    }
    sql + "    END IF;\nEND\n$$;\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_the_migration_and_the_slot() {
        let plan =
            SetupPlan::new("postrider", "postrider", &[TableName::new("public", "outbox")], false);
        let [outbox, publication, slot] = plan.steps.as_slice() else { panic!("three steps") };
        let start = "CREATE TABLE IF NOT EXISTS \"public\".\"outbox\" (";
        assert!(outbox.sql.contains(start), "{}", outbox.sql);
        assert!(!outbox.sql.contains("PUBLICATION postrider"), "{}", outbox.sql);
        assert!(
            OUTBOX.contains(
                "CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')"
            )
        );
        let start =
            "CREATE PUBLICATION \"postrider\" FOR TABLE \"public\".\"outbox\" WITH (publish";
        assert!(publication.sql.contains(start), "{}", publication.sql);
        assert!(slot.sql.contains("pg_create_logical_replication_slot('postrider', 'pgoutput')"));
    }

    #[test]
    fn other_names_are_quoted() {
        let plan = SetupPlan::new("s", "P'1", &[TableName::new("Sales", "out\"box")], false);
        let script = plan.script();
        assert!(
            script.contains("CREATE TABLE IF NOT EXISTS \"Sales\".\"out\"\"box\" ("),
            "{script}"
        );
        assert!(script.contains("pubname = 'P''1'"), "{script}");
        assert!(script.contains("CREATE PUBLICATION \"P'1\" FOR TABLE"), "{script}");
        let plan =
            SetupPlan::new("s", "p", &[TableName::new("a", "b"), TableName::new("a", "c")], true);
        assert_eq!(plan.steps.len(), 2);
        assert_eq!(plan.steps[0].sql.matches("ADD TABLE").count(), 2);
    }
}
