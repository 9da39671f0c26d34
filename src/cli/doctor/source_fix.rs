//! The literal steps that fix a refusal or warning about server, publication, tables and slot.
//!
//! Invariant: no step gives up a row that can still be delivered. If a person must decide, the
//! list of steps is empty.

use super::check::{Lack, identifier};
use super::fix::Fix;
use postrider_core::outbox::TableName;
use postrider_postgres::control::{
    ControlError, Inspection, Requirements, WarningAbout, slot_of_database,
};

pub(super) fn steps(refusal: &ControlError, inspection: &Inspection, wanted: &Requirements) -> Fix {
    let sql = Fix::sql(refusal.remedy().join(" "));
    match refusal {
        ControlError::WalLevel { .. } => sql.then_restart(),
        ControlError::TableMissing { .. } | ControlError::TablesLeftOut { .. } => {
            let others = first_others(inspection);
            if !others.is_empty() {
                Fix::config(tables_line(&present(inspection, wanted), others))
            } else if inspection.slot.is_none() {
                granted_setup(inspection)
            } else {
                Fix::default()
            }
        }
        ControlError::PartUnsuitable { part, .. } if sql.text().is_empty() => {
            let publication = identifier(&wanted.publication);
            let publish = format!("ALTER PUBLICATION {publication} ADD TABLE {};", qualified(part));
            let line = tables_line(&wanted.tables, std::slice::from_ref(part));
            let config = Fix::config(line);
            Fix::sql(publish).and(config)
        }
        ControlError::PublicationMissing { slot_exists: false, .. }
        | ControlError::SlotMissing { .. } => granted_setup(inspection),
        ControlError::RoleMayNotReplicate { .. } => Fix::sql(inspection.grants(true).join(" ")),
        ControlError::SlotForeign { slot, database, .. } => {
            let other = slot_of_database(slot, database);
            Fix::config(format!("source.slot = \"{other}\"")).and(setup())
        }
        ControlError::SlotLost { .. } => Fix::postrider("postrider repair --execute"),
        _ => sql,
    }
}

pub(super) fn advised(about: WarningAbout, inspection: &Inspection, wanted: &Requirements) -> Fix {
    let publication = identifier(&wanted.publication);
    match about {
        WarningAbout::OtherChanges => {
            Fix::sql(format!("ALTER PUBLICATION {publication} SET (publish = 'insert');"))
        }
        WarningAbout::UnreadTables => {
            let others: Vec<_> = first_others(inspection).iter().map(qualified).collect();
            Fix::sql(format!("ALTER PUBLICATION {publication} DROP TABLE {};", others.join(", ")))
        }
        WarningAbout::Unreserved | WarningAbout::SqlAscii => Fix::default(),
    }
}

/// If the slot exists, a missing table or publication was renamed or dropped, and a new one lacks
/// the data that the slot must send.
pub(super) fn lack(refusal: &ControlError, inspection: &Inspection) -> Option<Lack> {
    let is_absent = match refusal {
        ControlError::TableMissing { .. } => inspection.slot.is_none(),
        ControlError::PublicationMissing { slot_exists: false, .. }
        | ControlError::PublicationLacksTable { partitioned: false, .. }
        | ControlError::SlotMissing { .. } => true,
        _ => false,
    };
    is_absent.then_some(Lack::Source)
}

/// Setup, preceded by the grants that the role lacks.
fn granted_setup(inspection: &Inspection) -> Fix {
    let grants = inspection.grants(true);
    if grants.is_empty() { setup() } else { Fix::sql(grants.join(" ")).and(setup()) }
}

fn setup() -> Fix {
    Fix::postrider("postrider setup")
}

fn first_others(inspection: &Inspection) -> &[TableName] {
    inspection.publication.as_ref().map_or(&[], |facts| &facts.first_others)
}

fn present(inspection: &Inspection, wanted: &Requirements) -> Vec<TableName> {
    let tables = wanted.tables.iter().zip(&inspection.tables);
    let there =
        tables.filter(|(_, facts)| facts.as_ref().is_some_and(|facts| facts.published.is_some()));
    there.map(|(name, _)| name.clone()).collect()
}

fn tables_line(tables: &[TableName], others: &[TableName]) -> String {
    let names: Vec<_> =
        tables.iter().chain(others).map(|table| format!("{:?}", table.to_string())).collect();
    format!("source.tables = [{}]", names.join(", "))
}

fn qualified(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}
