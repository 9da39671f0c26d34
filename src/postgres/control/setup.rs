//! `postrider setup`: creates outbox table, publication and slot, or prints the SQL for it.
//!
//! Invariant: table, publication and slot are created in this order. Existing objects are
//! completed, never replaced. Everything that `postrider run` would refuse is refused before a slot
//! is created. Existing rows are skipped only on request.

use std::fmt::Write as _;

use super::connect::Client;
use super::error::ControlError;
use super::existing_rows::{RowsBefore, rows_before};
use super::hint_text::{create_publication, qualified};
use super::inspect::{FAILOVER_SLOTS_SINCE, Inspection, NewSlot, Requirements, inspect};
use super::outbox_table::{OutboxPartitions, outbox_table};
use super::preflight::OWN_AND_CREATE;
use super::preflight::{FAILOVER_ARGUMENT, create_missing_publication, create_missing_slot};
use super::standby::StandbyError;
use crate::wal::Class;
use crate::wal::quote::{identifier, literal};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;

const DOING: &str = "setting up";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetupChoices {
    /// The application's own tables are published but not created.
    pub existing_tables: bool,
    /// Existing rows need not be delivered.
    pub from_now: bool,
    pub without_slot: bool,
    pub partitions: OutboxPartitions,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupStep {
    /// Object, for example ``publication `postrider` ``.
    pub object: String,
    /// SQL without effect on a correct object.
    pub sql: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub object: String,
    pub became: Became,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    Created,
    Added,
    Existed,
}

impl Made {
    pub const fn new(object: String, created: bool) -> Self {
        Self { object, became: if created { Became::Created } else { Became::Existed } }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeSlot {
    pub start: Lsn,
    pub left_behind: Vec<(TableName, RowsBefore)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupPlan {
    pub steps: Vec<SetupStep>,
    wanted: Requirements,
    choices: SetupChoices,
}

impl SetupPlan {
    pub fn new(wanted: Requirements, choices: SetupChoices) -> Self {
        let Requirements { slot, publication, tables, .. } = &wanted;
        let mut steps = Vec::new();
        if !choices.existing_tables {
            for table in tables {
                steps.push(SetupStep {
                    object: named(table),
                    sql: outbox_table(table, choices.partitions),
                });
            }
        }
        steps.push(SetupStep {
            object: format!("publication `{publication}`"),
            sql: publish(publication, tables, slot),
        });
        if !choices.without_slot {
            let guarded = if choices.from_now { &[][..] } else { tables.as_slice() };
            let object = format!("replication slot `{slot}`");
            steps.push(SetupStep { object, sql: make_slot(&wanted, guarded) });
        }
        Self { steps, wanted, choices }
    }

    pub fn script(&self) -> String {
        let steps: Vec<_> = self.steps.iter().map(|step| step.sql.as_str()).collect();
        steps.join("\n")
    }

    /// Refuses what `run` would refuse and this plan cannot create.
    pub async fn look(&self, client: &Client) -> Result<Inspection, ControlError> {
        let now = inspect(client, &self.wanted).await?;
        if let Some(refusal) = self.unmendable(&now) {
            return Err(refusal);
        }
        if !self.choices.from_now {
            let leaves = self.leaves(&now);
            if let Some((table, rows)) = rows_before(client, &leaves).await?.into_iter().next() {
                let rows = rows.to_string();
                return Err(ControlError::RowsBefore { table, rows });
            }
        }
        Ok(now)
    }

    /// Stops at the first error; another run continues.
    pub async fn make_tables(&self, client: &Client) -> Result<Vec<Made>, ControlError> {
        let before = self.look(client).await?;
        let mut made = Vec::new();
        for (table, facts) in self.wanted.tables.iter().zip(&before.tables) {
            if facts.is_none() {
                self.make_table(client, table, &before).await?;
            }
            made.push(Made::new(named(table), facts.is_none()));
        }
        // A new table may lack columns of the configuration.
        let between = inspect(client, &self.wanted).await?;
        if let Some(refusal) = self.unmendable(&between) {
            return Err(refusal);
        }
        made.extend(self.complete_publication(client, &between).await?);
        Ok(made)
    }

    /// Requires that only the slot is missing.
    pub async fn ready_for_slot(&self, client: &Client) -> Result<Inspection, ControlError> {
        let now = inspect(client, &self.wanted).await?;
        let is_slot = |refusal: &ControlError| matches!(refusal, ControlError::SlotMissing { .. });
        match now.refusals(&self.wanted).into_iter().find(|refusal| !is_slot(refusal)) {
            Some(refusal) => Err(refusal),
            None => Ok(now),
        }
    }

    pub async fn make_slot(&self, client: &Client) -> Result<Option<MadeSlot>, ControlError> {
        let now = inspect(client, &self.wanted).await?;
        if now.slot.is_some() {
            return Ok(None);
        }
        if !now.server.may_replicate {
            return Err(ControlError::RoleMayNotReplicate { role: now.server.role });
        }
        let Some(start) = create_missing_slot(client, &self.wanted, &now.server).await? else {
            return Ok(None);
        };
        // Checked last, because rows may have been written before the slot's start.
        let left_behind = rows_before(client, &self.wanted.tables).await?;
        Ok(Some(MadeSlot { start, left_behind }))
    }

    pub fn finds_slot(&self, now: &Inspection) -> bool {
        now.own_slot().is_some()
    }

    pub const fn lacks_slot(&self, now: &Inspection) -> bool {
        now.slot.is_none() && !self.choices.without_slot
    }

    fn unmendable(&self, now: &Inspection) -> Option<ControlError> {
        let mendable = |refusal: &ControlError| match refusal {
            ControlError::TableMissing { .. } => !self.choices.existing_tables,
            ControlError::SlotForeign { .. }
            | ControlError::SlotLost { .. }
            | ControlError::SlotTwoPhase { .. } => self.choices.without_slot,
            ControlError::SlotMissing { .. }
            | ControlError::PublicationMissing { slot_exists: false, .. }
            | ControlError::PublicationLacksTable { partitioned: false, .. }
            // Only the slot needs the right, and another role may create it.
            | ControlError::RoleMayNotReplicate { .. } => true,
            _ => false,
        };
        let refusals = now.refusals(&self.wanted);
        let refused = (now.slot.is_none() && !self.choices.without_slot)
            .then(|| self.wanted.refuses_slot_on(&now.server))
            .flatten();
        let is_complete = refusals.iter().all(|refusal| match refusal {
            ControlError::RoleMayNotReplicate { .. } => true,
            ControlError::SlotMissing { .. } => self.choices.without_slot || refused.is_none(),
            _ => false,
        });
        if let Some(refusal) = refusals.into_iter().find(|refusal| !mendable(refusal)) {
            return Some(refusal);
        }
        if let Some(refusal @ StandbyError::NoStandby { .. }) = refused {
            return Some(refusal.into());
        }
        let object = || self.wanted.publication.clone();
        (now.server.in_recovery && !is_complete).then(|| {
            StandbyError::ReadOnly { object: object(), wanted: self.wanted.wants_standby() }.into()
        })
    }

    pub fn partitioned_otherwise<'a>(&'a self, now: &'a Inspection) -> Vec<&'a TableName> {
        let tables = self.wanted.tables.iter().zip(&now.tables);
        let wants_days = self.choices.partitions == OutboxPartitions::Day;
        let others = tables.filter(|(_, facts)| {
            wants_days && facts.as_ref().is_some_and(|facts| !facts.is_partitioned())
        });
        others.map(|(name, _)| name).collect()
    }

    fn leaves(&self, now: &Inspection) -> Vec<TableName> {
        let tables = self.wanted.tables.iter().zip(&now.tables);
        let leaves = tables.filter(|(_, facts)| {
            let facts = facts.as_ref();
            // If a slot exists, a newly published table is read from now on.
            facts.is_some_and(|facts| match now.own_slot() {
                None => !self.choices.without_slot,
                Some(_) => facts.published.is_none(),
            })
        });
        leaves.map(|(name, _)| name.clone()).collect()
    }

    async fn make_table(
        &self,
        client: &Client,
        table: &TableName,
        now: &Inspection,
    ) -> Result<(), ControlError> {
        let sql = outbox_table(table, self.choices.partitions);
        let made = client.run(DOING, client.sql().batch_execute(&sql)).await;
        allowed(made, || ControlError::CreationForbidden {
            object: named(table),
            needs: now.needs("CREATE on the schema", self.lacks_slot(now)),
            sql:
                "`postrider setup --no-slot` (or `postrider setup --no-slot --print | psql`), then \
                  this command again"
                    .to_owned(),
        })
    }

    async fn complete_publication(
        &self,
        client: &Client,
        now: &Inspection,
    ) -> Result<Vec<Made>, ControlError> {
        let Requirements { publication, tables, .. } = &self.wanted;
        let object = format!("publication `{publication}`");
        if now.publication.is_none() {
            let needs = now.needs(OWN_AND_CREATE, self.lacks_slot(now));
            create_missing_publication(client, &self.wanted, needs).await?;
            return Ok(vec![Made::new(object, true)]);
        }
        let facts = tables.iter().zip(&now.tables);
        let lacks = |facts: &super::TableFacts| facts.published.is_none();
        let missing = facts.filter(|(_, facts)| facts.as_ref().is_some_and(lacks));
        let missing: Vec<&TableName> = missing.map(|(table, _)| table).collect();
        if missing.is_empty() {
            return Ok(vec![Made::new(object, false)]);
        }
        let name = identifier(publication);
        let list: Vec<String> = missing.iter().map(|table| qualified(table)).collect();
        let sql = format!("ALTER PUBLICATION {name} ADD TABLE {};", list.join(", "));
        let added = client.run(DOING, client.sql().batch_execute(&sql)).await;
        allowed(added, || ControlError::CreationForbidden {
            object: format!("what publication `{publication}` lacks"),
            needs: "to own the publication and the tables".to_owned(),
            sql: sql.clone(),
        })?;
        let added = |table: &TableName| format!("{} to {object}", named(table));
        let added = missing.into_iter().map(added);
        Ok(added.map(|object| Made { object, became: Became::Added }).collect())
    }
}

fn allowed(
    done: Result<(), ControlError>,
    forbidden: impl FnOnce() -> ControlError,
) -> Result<(), ControlError> {
    match done {
        Err(error) if error.class() == Class::Permission => Err(forbidden()),
        done => done,
    }
}

fn named(table: &TableName) -> String {
    format!("table {table}")
}

fn pairs(tables: &[TableName]) -> String {
    let pair =
        |table: &TableName| format!("({}, {})", literal(&table.schema), literal(&table.name));
    tables.iter().map(pair).collect::<Vec<_>>().join(", ")
}

/// SQL for the publication, unless a slot delivers other tables with it.
fn publish(publication: &str, tables: &[TableName], slot: &str) -> String {
    let (name, quoted) = (literal(publication), identifier(publication));
    let wanted = pairs(tables);
    let mut sql = format!(
        "DO $$\nBEGIN\n    \
         IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {}\n        \
         AND database = pg_catalog.current_database()) AND (\n        \
         SELECT count(*) FILTER (WHERE (schemaname, tablename) IN ({wanted})) < {}\n            \
         AND count(*) FILTER (WHERE (schemaname, tablename) NOT IN ({wanted})) > 0\n        \
         FROM pg_catalog.pg_publication_tables WHERE pubname = {name}\n    ) THEN\n        \
         RAISE EXCEPTION 'the slot delivers other tables by this publication'\n            \
         USING HINT = 'name them in source.tables too: their rows would be acknowledged undelivered';\n    \
         END IF;\n    \
         IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = {name}) THEN\n        \
         {}\n",
        literal(slot),
        tables.len(),
        create_publication(publication, tables)
    );
    for table in tables {
        let (schema, relation) = (literal(&table.schema), literal(&table.name));
        sql += if tables.len() == 1 { "    ELSIF" } else { "    END IF;\n    IF" };
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

/// SQL for the slot, unless the publication lacks a table or a table has rows. A role without the
/// right gets a notice, and the script continues.
///
/// A separate statement creates the slot. Within PL/pgSQL it fails with "snapshot reference is not
/// owned by resource owner TopTransaction" if another session commits DDL at that time (measured).
/// The arguments depend on the server, so the statement is prepared first, and has no effect until
/// then.
fn make_slot(wanted: &Requirements, guarded: &[TableName]) -> String {
    let (name, publication) = (literal(&wanted.slot), literal(&wanted.publication));
    let (tables, count) = (pairs(&wanted.tables), wanted.tables.len());
    let another = literal(&format!("set source.slot to another name, such as {}_", wanted.slot));
    let mut sql = format!(
        "PREPARE postrider_slot AS SELECT NULL::pg_lsn AS lsn WHERE false;\n\
         DO $$\nDECLARE\n    relation oid;\n    has_rows boolean;\nBEGIN\n    \
         IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {name}\n        \
         AND database IS DISTINCT FROM pg_catalog.current_database())\n    THEN\n        \
         RAISE EXCEPTION 'slot % is not of this database, and slots of a cluster share their names', {name}\n            \
         USING HINT = {another} || pg_catalog.current_database();\n    END IF;\n    \
         IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {name}) THEN\n        \
         RETURN;\n    END IF;\n    \
         IF (SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_tables WHERE pubname = {publication}\n        \
         AND (schemaname, tablename) IN ({tables})) < {count}\n    THEN\n        \
         RAISE EXCEPTION 'the replication slot was not made: publication % lacks a table', {publication}\n            \
         USING HINT = 'a slot reads by a publication that is older than itself; see the errors before this one';\n    \
         END IF;\n    \
         IF NOT EXISTS (\n        SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = current_user\n        \
         AND (r.rolsuper OR r.rolreplication)\n    ) AND NOT EXISTS (\n        \
         SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'rds_replication'\n        \
         AND pg_catalog.pg_has_role(r.oid, 'member')\n    ) THEN\n        \
         RAISE WARNING 'the replication slot was not made: role % may not replicate', current_user\n            \
         USING HINT = 'run postrider setup as the role of the relay, which makes it';\n        \
         RETURN;\n    END IF;\n"
    );
    for table in guarded {
        let (schema, relation, quoted) =
            (literal(&table.schema), literal(&table.name), qualified(table));
        let _ = write!(
            sql,
            "    SELECT c.oid, pg_catalog.pg_relation_size(c.oid) + (\n        \
             SELECT coalesce(pg_catalog.sum(pg_catalog.pg_relation_size(t.relid)), 0)\n        \
             FROM pg_catalog.pg_partition_tree(c.oid) t\n    ) > 0\n    \
             INTO relation, has_rows\n    FROM pg_catalog.pg_class c\n    \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace\n    \
             WHERE n.nspname = {schema} AND c.relname = {relation};\n    \
             IF has_rows AND pg_catalog.has_table_privilege(relation, 'SELECT')\n        \
             AND pg_catalog.has_schema_privilege({schema}, 'USAGE')\n        \
             AND NOT pg_catalog.row_security_active(relation)\n    THEN\n        \
             has_rows := EXISTS (SELECT FROM {quoted});\n    END IF;\n    \
             IF has_rows THEN\n        \
             RAISE EXCEPTION 'table % has rows, which a new slot does not deliver', {relation}\n            \
             USING HINT = 'postrider setup --print --from-now leaves them behind';\n    END IF;\n"
        );
    }
    let create = |failover: &str| {
        literal(&format!(
            "PREPARE postrider_slot AS SELECT lsn FROM \
             pg_catalog.pg_create_logical_replication_slot({name}, 'pgoutput'{failover})"
        ))
    };
    let plain = create("");
    let made = if wanted.new_slot == NewSlot::Failover {
        format!(
            "CASE WHEN pg_catalog.current_setting('server_version_num')::int >= {FAILOVER_SLOTS_SINCE}\n        \
             THEN {}\n        ELSE {plain} END",
            create(FAILOVER_ARGUMENT)
        )
    } else {
        plain
    };
    let _ = writeln!(
        sql,
        "    DEALLOCATE postrider_slot;\n    EXECUTE {made};\nEND\n$$;\n\
         EXECUTE postrider_slot;\nDEALLOCATE postrider_slot;"
    );
    sql
}

#[cfg(test)]
mod tests {
    use super::super::outbox_table::OUTBOX;
    use super::*;

    fn plan(slot: &str, publication: &str, tables: &[TableName], owned: bool) -> SetupPlan {
        let wanted = Requirements {
            slot: slot.to_owned(),
            publication: publication.to_owned(),
            tables: tables.to_vec(),
            columns: Vec::new(),
            messages: false,
            create: false,
            new_slot: NewSlot::Failover,
        };
        SetupPlan::new(wanted, SetupChoices { existing_tables: owned, ..SetupChoices::default() })
    }

    #[test]
    fn the_plan_is_the_migration_and_the_slot() {
        let plan = plan("postrider", "postrider", &[TableName::new("public", "outbox")], false);
        let [outbox, publication, slot] = plan.steps.as_slice() else { panic!("three steps") };
        let start = "CREATE TABLE \"public\".\"outbox\" (";
        assert!(outbox.sql.contains(start), "{}", outbox.sql);
        assert!(!outbox.sql.contains("PUBLICATION postrider"), "{}", outbox.sql);
        let words = |sql: &str| sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let made = create_publication("postrider", &[TableName::new("public", "outbox")]);
        assert!(publication.sql.contains(&made), "{}", publication.sql);
        let unquoted = made.replace("\"public\".", "").replace('"', "");
        assert!(words(OUTBOX).contains(&unquoted), "the migration makes another: {unquoted}");
        let create = "pg_create_logical_replication_slot(''postrider'', ''pgoutput''";
        assert!(slot.sql.contains(&format!("{create})")), "{}", slot.sql);
        assert!(slot.sql.contains(&format!("{create}, failover => true)")), "{}", slot.sql);
    }

    #[test]
    fn other_names_are_quoted() {
        let quoted = [TableName::new("Sales", "out\"box")];
        let script = plan("s", "P'1", &quoted, false).script();
        assert!(script.contains("CREATE TABLE \"Sales\".\"out\"\"box\" ("), "{script}");
        assert!(script.contains("pubname = 'P''1'"), "{script}");
        assert!(script.contains("CREATE PUBLICATION \"P'1\" FOR TABLE"), "{script}");
        let tables = [TableName::new("a", "b"), TableName::new("a", "c")];
        let plan = plan("s", "p", &tables, true);
        assert_eq!(plan.steps.len(), 2);
        assert_eq!(plan.steps[0].sql.matches("ADD TABLE").count(), 2);
    }
}
