//! Checks an [`Inspection`] of the database against the relay's requirements.
//!
//! Output: errors in the order in which to fix them, and warnings. No I/O.

use super::error::ControlError;
use super::hint_text::{UNLOGGED_PART, qualified};
use super::inspect::{
    Inspection, PublicationFacts, Published, Requirements, STANDBY_STREAMS_SINCE, TableFacts,
};
use super::slot::SlotFacts;
use postrider_core::outbox::{TableName, Wanted};

/// First version whose pgoutput sends logical messages.
const MESSAGES_SINCE: i32 = 140_000;
/// First version that publishes generated columns.
const GENERATED_SINCE: i32 = 180_000;

/// A problem that does not forbid a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceWarning {
    pub about: WarningAbout,
    /// A lowercase sentence.
    pub what: String,
    pub help: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarningAbout {
    OtherChanges,
    UnreadTables,
    Unreserved,
    SqlAscii,
}

impl Inspection {
    /// [`Inspection::held`] reports a slot in use.
    pub fn refusals(&self, wanted: &Requirements) -> Vec<ControlError> {
        let mut refusals = Vec::from_iter(self.unstreamable(wanted));
        let server = &self.server;
        if server.wal_level != "logical" {
            refusals.push(ControlError::WalLevel { current: server.wal_level.clone() });
        }
        if wanted.messages && server.version_num < MESSAGES_SINCE {
            refusals.push(ControlError::MessagesUnknown { version: server.version_num / 10_000 });
        }
        if !server.may_replicate {
            refusals.push(ControlError::RoleMayNotReplicate { role: server.role.clone() });
        }
        for (name, facts) in wanted.tables.iter().zip(&self.tables) {
            match facts {
                None => refusals.push(ControlError::TableMissing {
                    table: name.clone(),
                    database: server.database.clone(),
                }),
                Some(facts) => refusals.extend(judge_table(name, facts, wanted)),
            }
        }
        let mut slot = match &self.slot {
            None => Some(ControlError::SlotMissing {
                slot: wanted.slot.clone(),
                others: self.others.slots.clone(),
            }),
            Some(slot) => judge_slot(&wanted.slot, slot, &server.database),
        };
        // First, because hints about a publication may advise dropping the slot.
        refusals.extend(slot.take_if(|slot| matches!(slot, ControlError::SlotForeign { .. })));
        self.judge_publication(wanted, &mut refusals);
        refusals.extend(slot);
        refusals
    }

    /// The slot, if it streams this database's changes.
    pub(super) fn own_slot(&self) -> Option<&SlotFacts> {
        let database = Some(self.server.database.as_str());
        self.slot.as_ref().filter(|slot| slot.database.as_deref() == database)
    }

    /// PostgreSQL refuses to stream from a synchronised slot, and advises another slot (55000),
    /// which would skip rows. Before 16 it refuses all streams in recovery (0A000).
    pub(super) fn unstreamable(&self, wanted: &Requirements) -> Option<ControlError> {
        let is_copy = self.slot.as_ref()?.synced;
        let is_early = self.server.in_recovery && self.server.version_num < STANDBY_STREAMS_SINCE;
        let what = match (is_copy, is_early) {
            (true, _) => "only has a copy of",
            (false, true) => "cannot stream from",
            (false, false) => return None,
        };
        Some(ControlError::StandbyReached { slot: wanted.slot.clone(), what })
    }

    fn judge_publication(&self, wanted: &Requirements, refusals: &mut Vec<ControlError>) {
        let publication = &wanted.publication;
        let Some(facts) = &self.publication else {
            refusals.push(ControlError::PublicationMissing {
                publication: publication.clone(),
                tables: wanted.tables.clone(),
                slot: wanted.slot.clone(),
                slot_exists: self.own_slot().is_some(),
                others: self.others.publications.clone(),
            });
            self.judge_generated(wanted, refusals);
            return;
        };
        if !facts.inserts {
            refusals
                .push(ControlError::PublicationWithoutInserts { publication: publication.clone() });
        }
        let left_out = self.leaves_out(facts, wanted);
        let leaves_out = left_out.is_some();
        refusals.extend(left_out);
        for (name, table) in wanted.tables.iter().zip(&self.tables) {
            let Some(table) = table else { continue };
            let (publication, name) = (publication.clone(), name.clone());
            let Some(published) = &table.published else {
                if leaves_out {
                    continue;
                }
                let partitioned = table.kind == 'p' && !facts.via_partition_root;
                refusals.push(ControlError::PublicationLacksTable {
                    publication,
                    table: name,
                    partitioned,
                });
                continue;
            };
            let hidden: Vec<_> = needed(table, wanted)
                .filter(|column| !self.sends(table, published, column))
                .collect();
            if published.filters_rows {
                refusals.push(ControlError::PublicationFiltersRows {
                    publication: publication.clone(),
                    table: name.clone(),
                });
            }
            if !hidden.is_empty() {
                refusals.push(ControlError::PublicationHidesColumns {
                    publication,
                    table: name,
                    columns: hidden,
                });
            }
        }
    }

    /// A publication made by `setup` omits generated columns.
    fn judge_generated(&self, wanted: &Requirements, refusals: &mut Vec<ControlError>) {
        for (name, table) in wanted.tables.iter().zip(&self.tables) {
            let Some(table) = table else { continue };
            let columns: Vec<_> =
                needed(table, wanted).filter(|column| table.generated.contains(column)).collect();
            if !columns.is_empty() {
                refusals.push(ControlError::PublicationHidesColumns {
                    publication: wanted.publication.clone(),
                    table: name.clone(),
                    columns,
                });
            }
        }
    }

    fn sends(&self, table: &TableFacts, published: &Published, column: &String) -> bool {
        if self.server.version_num < GENERATED_SINCE && table.generated.contains(column) {
            return false;
        }
        published.columns.is_empty() || published.columns.contains(column)
    }

    /// A slot that delivered other tables would lose their rows, for example after a typo in
    /// source.tables.
    fn leaves_out(&self, facts: &PublicationFacts, wanted: &Requirements) -> Option<ControlError> {
        self.own_slot()?;
        let tables = wanted.tables.iter().zip(&self.tables);
        let is_new = |table: &Option<TableFacts>| match table {
            // The other tables are its partitions.
            Some(table) if table.kind == 'p' && !facts.via_partition_root => false,
            Some(table) => table.published.is_none(),
            None => true,
        };
        let new: Vec<_> =
            tables.filter(|(_, facts)| is_new(facts)).map(|(name, _)| name.clone()).collect();
        (facts.others > 0 && !new.is_empty()).then(|| ControlError::TablesLeftOut {
            slot: wanted.slot.clone(),
            publication: wanted.publication.clone(),
            others: others(facts),
            tables: listed(&new),
        })
    }

    /// Refusal for a relay that does not wait.
    pub fn held(&self, wanted: &Requirements) -> Option<ControlError> {
        let slot = self.slot.as_ref()?;
        Some(ControlError::SlotHeld {
            slot: wanted.slot.clone(),
            pid: slot.active_pid?,
            holder: slot.holder.clone(),
        })
    }

    pub fn warnings(&self, wanted: &Requirements) -> Vec<SourceWarning> {
        let mut warnings = Vec::new();
        if let Some(publication) = &self.publication {
            let name = crate::wal::quote::identifier(&wanted.publication);
            if publication.other_changes {
                warnings.push(SourceWarning {
                    about: WarningAbout::OtherChanges,
                    what: format!(
                        "publication `{}` also publishes UPDATE, DELETE or TRUNCATE, which are \
                         decoded for nothing",
                        wanted.publication
                    ),
                    help: format!(
                        "if nobody else subscribes to it: ALTER PUBLICATION {name} SET (publish = \
                         'insert');"
                    ),
                });
            }
            if publication.others > 0 {
                warnings.push(unread(&wanted.publication, publication));
            }
        }
        let status = self.slot.as_ref().and_then(|slot| slot.wal_status.as_deref());
        if status == Some("unreserved") {
            warnings.push(SourceWarning {
                about: WarningAbout::Unreserved,
                what: format!("replication slot `{}` is about to be lost", wanted.slot),
                help: "let the relay catch up without a pause, or raise max_slot_wal_keep_size"
                    .to_owned(),
            });
        }
        if self.server.is_sql_ascii() {
            warnings.push(SourceWarning {
                about: WarningAbout::SqlAscii,
                what: "the database is SQL_ASCII: values are sent as the bytes that are stored"
                    .to_owned(),
                help: "consumers must know their encoding".to_owned(),
            });
        }
        warnings
    }
}

/// The slot skips rows of unread tables for good.
fn unread(name: &str, publication: &PublicationFacts) -> SourceWarning {
    let others = others(publication);
    let what = format!(
        "publication `{name}` has tables that source.tables does not name ({others}): their rows are \
         acknowledged undelivered"
    );
    let dropped: Vec<_> = publication.first_others.iter().map(qualified).collect();
    let dropped = dropped.join(", ");
    let quoted = crate::wal::quote::identifier(name);
    let help = format!(
        "add those that are outboxes to source.tables, before anything is committed in them; if \
         none is, and nobody else subscribes: ALTER PUBLICATION {quoted} DROP TABLE {dropped}; otherwise a publication of the outbox alone saves decoding: create it, let the relay \
         deliver what was committed before that (it is lost otherwise), then set \
         source.publication to it instead of {quoted}"
    );
    SourceWarning { about: WarningAbout::UnreadTables, what, help }
}

fn others(facts: &PublicationFacts) -> String {
    let names = listed(&facts.first_others);
    let all = i64::try_from(facts.first_others.len()).is_ok_and(|known| known == facts.others);
    if all { names } else { format!("{names}, ..") }
}

fn listed(tables: &[TableName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn judge_table(
    name: &TableName,
    facts: &TableFacts,
    wanted: &Requirements,
) -> Option<ControlError> {
    if let Some(kind) = unsuitable(facts.kind, facts.persistence) {
        return Some(ControlError::TableUnsuitable { table: name.clone(), kind });
    }
    for part in &facts.parts {
        let kind = match (part.is_partition, part.kind, part.persistence) {
            (false, ..) if !wanted.tables.contains(&part.name) => "an inheritance child",
            (true, 'f', _) => "a foreign partition",
            (true, _, 'u') => UNLOGGED_PART,
            _ => continue,
        };
        let (table, part) = (name.clone(), part.name.clone());
        return Some(ControlError::PartUnsuitable { table, part, kind });
    }
    let missing: Vec<_> = wanted
        .columns
        .iter()
        .filter(|column| column.required && own_name(facts, column).is_none())
        .map(|column| column.name.clone())
        .collect();
    if missing.is_empty() {
        return None;
    }
    let present = facts.columns.clone();
    Some(ControlError::ColumnsMissing { table: name.clone(), missing, present })
}

/// Kind of a relation that cannot be an outbox, by `relkind` and `relpersistence`.
pub(super) const fn unsuitable(kind: char, persistence: char) -> Option<&'static str> {
    Some(match (kind, persistence) {
        ('r' | 'p', 'p') => return None,
        ('r' | 'p', 'u') => "unlogged",
        ('r' | 'p', _) => "temporary",
        ('v' | 'm', _) => "a view",
        ('f', _) => "a foreign table",
        _ => "not a table",
    })
}

fn needed<'a>(
    table: &'a TableFacts,
    wanted: &'a Requirements,
) -> impl Iterator<Item = String> + 'a {
    let required = wanted.columns.iter().filter(|column| column.required);
    required.filter_map(|column| own_name(table, column).cloned())
}

fn own_name<'a>(table: &TableFacts, column: &'a Wanted) -> Option<&'a String> {
    std::iter::once(&column.name).chain(&column.aliases).find(|name| table.columns.contains(name))
}

fn judge_slot(name: &str, slot: &SlotFacts, database: &str) -> Option<ControlError> {
    let foreign = |what| {
        let (slot, database) = (name.to_owned(), database.to_owned());
        Some(ControlError::SlotForeign { slot, what, database })
    };
    match slot.plugin.as_deref() {
        None => return foreign("it is a physical slot".to_owned()),
        Some("pgoutput") => {}
        Some(plugin) => return foreign(format!("its plugin is `{plugin}`")),
    }
    if let Some(other) = slot.database.as_deref().filter(|other| *other != database) {
        return foreign(format!("it belongs to database `{other}`"));
    }
    if let Some(unfinished) = slot.unfinished(name) {
        return Some(unfinished);
    }
    if !slot.is_lost() {
        return slot.two_phase.then(|| ControlError::SlotTwoPhase { slot: name.to_owned() });
    }
    let reason = slot.invalidation.clone().unwrap_or_else(|| "wal_removed".to_owned());
    Some(ControlError::SlotLost { slot: name.to_owned(), reason })
}

#[cfg(test)]
pub(super) mod tests;
