//! Verdicts on an [`Inspection`].
//!
//! Enters: the snapshot and what is wanted. Leaves: everything that forbids a run, in the order in
//! which it should be mended, and everything that merely harms. Pure. Called by `preflight`, which
//! stops at the first refusal and logs the warnings.

use super::error::ControlError;
use super::inspect::{Inspection, PublicationFacts, Requirements, TableFacts};
use super::remedy::UNLOGGED_PART;
use super::slot::SlotFacts;
use crate::outbox::{TableName, Wanted};

/// The first server version whose pgoutput sends logical messages.
const MESSAGES_SINCE: i32 = 140_000;

impl Inspection {
    /// Why the relay cannot run here; empty if it can. A held slot is not among them, see
    /// [`Inspection::held`].
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
        self.judge_publication(wanted, &mut refusals);
        match &self.slot {
            None => refusals.push(ControlError::SlotMissing {
                slot: wanted.slot.clone(),
                others: self.others.slots.clone(),
            }),
            Some(slot) => refusals.extend(judge_slot(&wanted.slot, slot, &server.database)),
        }
        refusals
    }

    /// PostgreSQL streams from no slot that a standby copies, and advises another one (55000), which would
    /// pass over rows.
    pub(super) fn unstreamable(&self, wanted: &Requirements) -> Option<ControlError> {
        let is_copy = self.slot.as_ref().is_some_and(|slot| slot.synced);
        let slot = || wanted.slot.clone();
        is_copy.then(|| ControlError::StandbyReached { slot: slot(), what: "only has a copy of" })
    }

    fn judge_publication(&self, wanted: &Requirements, refusals: &mut Vec<ControlError>) {
        let publication = &wanted.publication;
        let Some(facts) = &self.publication else {
            refusals.push(ControlError::PublicationMissing {
                publication: publication.clone(),
                tables: wanted.tables.clone(),
                slot: wanted.slot.clone(),
                slot_exists: self.slot.is_some(),
                others: self.others.publications.clone(),
            });
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
            let hidden = needed(table, wanted)
                .filter(|column| {
                    !published.columns.is_empty() && !published.columns.contains(column)
                })
                .collect::<Vec<_>>();
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

    /// A slot that has delivered other tables so far would be read for new ones: as after a typo in
    /// source.tables, which would lose the rows of the others.
    fn leaves_out(&self, facts: &PublicationFacts, wanted: &Requirements) -> Option<ControlError> {
        self.slot.as_ref()?;
        let tables = wanted.tables.iter().zip(&self.tables);
        let is_new = |table: &Option<TableFacts>| match table {
            // Its partitions are the others.
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

    /// The refusal of a relay that does not want to wait: another session has the slot.
    pub fn held(&self, wanted: &Requirements) -> Option<ControlError> {
        let slot = self.slot.as_ref()?;
        Some(ControlError::SlotHeld {
            slot: wanted.slot.clone(),
            pid: slot.active_pid?,
            holder: slot.holder.clone(),
        })
    }

    /// What harms without forbidding: a lowercase sentence each, with its remedy.
    pub fn warnings(&self, wanted: &Requirements) -> Vec<(String, String)> {
        let mut warnings = Vec::new();
        if let Some(publication) = &self.publication {
            let name = crate::wal::quote::identifier(&wanted.publication);
            if publication.other_changes {
                warnings.push((
                    format!(
                        "publication `{}` sends UPDATE, DELETE or TRUNCATE too, which wastes decoding",
                        wanted.publication
                    ),
                    format!(
                        "if nobody else subscribes to it: ALTER PUBLICATION {name} SET (publish = \
                         'insert');"
                    ),
                ));
            }
            if publication.others > 0 {
                warnings.push(unread(&wanted.publication, publication));
            }
        }
        let status = self.slot.as_ref().and_then(|slot| slot.wal_status.as_deref());
        if status == Some("unreserved") {
            warnings.push((
                format!("replication slot `{}` is about to be lost", wanted.slot),
                "let the relay catch up without a pause, or raise max_slot_wal_keep_size"
                    .to_owned(),
            ));
        }
        if self.server.is_sql_ascii() {
            warnings.push((
                "the database is SQL_ASCII: values are passed on as the bytes they are".to_owned(),
                "consumers must know their encoding".to_owned(),
            ));
        }
        warnings
    }
}

/// The slot moves past what a relay does not read, and its rows never come again.
fn unread(name: &str, publication: &PublicationFacts) -> (String, String) {
    let others = others(publication);
    let warning = format!(
        "publication `{name}` has tables that source.tables does not name ({others}): their rows are \
         acknowledged undelivered"
    );
    let help = format!(
        "add those that are outboxes to source.tables, before anything is committed in them; if none \
         is, a publication of the relay's own saves decoding: create it, let the relay deliver what \
         was committed before that (it is lost otherwise), then set source.publication in place of {}",
        crate::wal::quote::identifier(name)
    );
    (warning, help)
}

/// The tables of a publication that are not read, as far as their names are known.
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

/// What a relation is that cannot be an outbox, by `relkind` and `relpersistence`.
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

/// The table's own names of the columns that are needed.
fn needed<'a>(
    table: &'a TableFacts,
    wanted: &'a Requirements,
) -> impl Iterator<Item = String> + 'a {
    let required = wanted.columns.iter().filter(|column| column.required);
    required.filter_map(|column| own_name(table, column).cloned())
}

/// Under which name the table has the column.
fn own_name<'a>(table: &TableFacts, column: &'a Wanted) -> Option<&'a String> {
    std::iter::once(&column.name).chain(&column.aliases).find(|name| table.columns.contains(name))
}

fn judge_slot(name: &str, slot: &SlotFacts, database: &str) -> Option<ControlError> {
    let foreign = |what| Some(ControlError::SlotForeign { slot: name.to_owned(), what });
    match slot.plugin.as_deref() {
        None => return foreign("it is a physical slot".to_owned()),
        Some("pgoutput") => {}
        Some(plugin) => return foreign(format!("its plugin is `{plugin}`")),
    }
    if let Some(other) = slot.database.as_deref().filter(|other| *other != database) {
        return foreign(format!("it belongs to database `{other}`"));
    }
    let lost = slot.wal_status.as_deref() == Some("lost");
    if !lost && slot.invalidation.is_none() {
        return slot.two_phase.then(|| ControlError::SlotTwoPhase { slot: name.to_owned() });
    }
    let reason =
        slot.invalidation.clone().unwrap_or_else(|| "the log it needs was removed".to_owned());
    Some(ControlError::SlotLost { slot: name.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::inspect::{Others, PartFacts, PublicationFacts, Published, ServerFacts};
    use super::*;
    use crate::lsn::Lsn;

    fn wanted() -> Requirements {
        Requirements {
            slot: "postrider".to_owned(),
            publication: "postrider".to_owned(),
            tables: vec![TableName::new("public", "outbox")],
            columns: vec![
                Wanted::required("id"),
                Wanted::required("event_type"),
                Wanted::optional("traceparent"),
            ],
            messages: false,
            create: false,
        }
    }

    fn good() -> Inspection {
        Inspection {
            server: ServerFacts {
                version_num: 150_000,
                encoding: "UTF8".to_owned(),
                wal_level: "logical".to_owned(),
                wal_sender_timeout: Duration::from_mins(1),
                in_recovery: false,
                database: "shop".to_owned(),
                role: "relay".to_owned(),
                may_replicate: true,
                system: None,
            },
            tables: vec![Some(TableFacts {
                oid: 1,
                kind: 'r',
                persistence: 'p',
                columns: vec!["id".to_owned(), "type".to_owned()],
                not_null: Vec::new(),
                parts: Vec::new(),
                published: Some(Published {
                    filters_rows: false,
                    columns: Vec::new(),
                    member: Some(3),
                }),
            })],
            publication: Some(PublicationFacts {
                oid: 2,
                xid: 700,
                inserts: true,
                other_changes: false,
                via_partition_root: false,
                others: 0,
                first_others: Vec::new(),
            }),
            slot: Some(SlotFacts {
                plugin: Some("pgoutput".to_owned()),
                database: Some("shop".to_owned()),
                active_pid: None,
                holder: String::new(),
                confirmed_flush: Some(Lsn::new(1)),
                restart: Some(Lsn::new(1)),
                wal_status: Some("reserved".to_owned()),
                invalidation: None,
                synced: false,
                two_phase: false,
            }),
            others: Others::default(),
        }
    }

    /// The only refusal after a change for the worse.
    fn refusal(worsen: impl FnOnce(&mut Inspection)) -> ControlError {
        let mut inspection = good();
        worsen(&mut inspection);
        let mut refusals = inspection.refusals(&wanted());
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        refusals.remove(0)
    }

    fn table(inspection: &mut Inspection) -> &mut TableFacts {
        inspection.tables[0].as_mut().unwrap()
    }

    #[test]
    fn a_good_database_is_not_refused() {
        assert_eq!(good().refusals(&wanted()), []);
        assert_eq!(good().warnings(&wanted()), []);
        assert_eq!(good().held(&wanted()), None);
    }

    #[test]
    fn each_fault_is_refused_with_a_hint() {
        type Worsen = fn(&mut Inspection);
        let faults: [(Worsen, u8); 12] = [
            (|i| i.server.wal_level = "replica".to_owned(), 78),
            (|i| i.server.may_replicate = false, 77),
            (|i| i.tables[0] = None, 78),
            (|i| table(i).kind = 'v', 78),
            (|i| table(i).persistence = 'u', 78),
            (|i| table(i).columns = vec!["id".to_owned()], 78),
            (|i| table(i).published = None, 78),
            (|i| table(i).published.as_mut().unwrap().filters_rows = true, 78),
            (|i| table(i).published.as_mut().unwrap().columns = vec!["id".to_owned()], 78),
            (|i| i.publication.as_mut().unwrap().inserts = false, 78),
            (|i| i.slot.as_mut().unwrap().database = Some("mail".to_owned()), 78),
            (|i| i.slot.as_mut().unwrap().wal_status = Some("lost".to_owned()), 70),
        ];
        for (worsen, exit_code) in faults {
            let refusal = refusal(worsen);
            assert_eq!(refusal.exit_code(), exit_code, "{refusal}");
            assert!(refusal.hint().is_some(), "{refusal}");
        }
        let missing = refusal(|i| i.slot = None);
        let slot = "postrider".to_owned();
        assert_eq!(missing, ControlError::SlotMissing { slot, others: Vec::new() });
    }

    #[test]
    fn g1_a_part_whose_rows_never_come_is_refused() {
        let part = |name: &str, is_partition, kind, persistence| PartFacts {
            name: TableName::new("public", name),
            is_partition,
            kind,
            persistence,
        };
        for (bad, word) in [
            (part("p1", true, 'r', 'u'), "unlogged"),
            (part("p1", true, 'f', 'p'), "foreign"),
            (part("p1", false, 'r', 'p'), "inheritance"),
        ] {
            let refusal = refusal(|i| table(i).parts = vec![bad]);
            assert_eq!(refusal.exit_code(), 78);
            assert!(refusal.to_string().contains(word), "{refusal}");
            assert!(refusal.hint().unwrap().contains("re-send"), "{refusal}");
        }
        let mut inspection = good();
        let listed = part("outbox", false, 'r', 'p');
        table(&mut inspection).parts = vec![part("p1", true, 'r', 'p'), listed];
        assert_eq!(inspection.refusals(&wanted()), []);
    }

    /// What the slot has delivered so far would be acknowledged and not delivered.
    #[test]
    fn g1_new_tables_do_not_take_the_place_of_those_that_the_slot_delivers() {
        let with_others = |i: &mut Inspection| {
            let publication = i.publication.as_mut().unwrap();
            (publication.others, publication.first_others) =
                (2, vec![TableName::new("public", "letters")]);
        };
        let mut inspection = good();
        with_others(&mut inspection);
        assert_eq!(inspection.refusals(&wanted()), []);
        let (warning, _) = inspection.warnings(&wanted()).remove(0);
        assert!(warning.contains("public.letters, ..") && warning.contains("undelivered"));
        table(&mut inspection).published = None;
        let refusals = inspection.refusals(&wanted());
        assert!(
            matches!(refusals.as_slice(), [ControlError::TablesLeftOut { .. }]),
            "{refusals:?}"
        );
        inspection.tables[0] = None;
        let refusals = inspection.refusals(&wanted());
        assert!(
            matches!(
                refusals.as_slice(),
                [ControlError::TableMissing { .. }, ControlError::TablesLeftOut { .. }]
            ),
            "{refusals:?}"
        );
        inspection.slot = None;
        let refusals = inspection.refusals(&wanted());
        assert!(!refusals.iter().any(|one| matches!(one, ControlError::TablesLeftOut { .. })));
    }

    #[test]
    fn a_publication_that_came_after_the_slot_is_a_lost_position() {
        let late = refusal(|i| i.publication = None);
        assert_eq!(late.exit_code(), 70);
        assert!(late.hint().unwrap().contains("pg_drop_replication_slot"), "{late}");
    }

    #[test]
    fn a_partitioned_table_must_be_published_via_its_root() {
        let refusal = refusal(|i| {
            table(i).kind = 'p';
            table(i).published = None;
        });
        assert!(refusal.hint().unwrap().contains("publish_via_partition_root"), "{refusal}");
    }

    #[test]
    fn a_held_slot_is_told_apart() {
        let mut inspection = good();
        inspection.slot.as_mut().unwrap().active_pid = Some(7);
        assert_eq!(inspection.refusals(&wanted()), []);
        assert_eq!(inspection.held(&wanted()).unwrap().exit_code(), 75);
    }

    #[test]
    fn what_only_costs_is_a_warning() {
        let mut inspection = good();
        inspection.publication.as_mut().unwrap().other_changes = true;
        inspection.publication.as_mut().unwrap().others = 9;
        inspection.server.encoding = "SQL_ASCII".to_owned();
        inspection.slot.as_mut().unwrap().wal_status = Some("unreserved".to_owned());
        assert_eq!(inspection.warnings(&wanted()).len(), 4);
    }
}
