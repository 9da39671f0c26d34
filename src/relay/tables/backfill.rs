//! Starts or resumes a backfill, which delivers rows committed before the slot was created, or a
//! repair.
//!
//! Invariant: the transaction that reads the rows first also creates the slot, so each row belongs
//! to the backfill or to the stream. Kafka holds a note of the backfill before the slot is created.
//! Until the backfill has ended, no relay resumes the slot (G1, G6).
//!
//! A later session selects the rows by `xmin` and the recorded snapshot, which lists uncommitted
//! subtransactions too (`SnapBuildInitialSnapshot` in snapbuild.c). Updated rows are left out,
//! because an outbox is only appended to.

use super::TableRun;
use super::error::TableRowsError;
use super::known::{Held, Known, confirmed, in_kafka, same_tables};
use super::repair::is_undrained;
use super::session::{BEGIN, Found, Remaining};
use crate::error::RelayError;
use postrider_core::gate::{GateError, unfinished};
use postrider_core::pipeline::Mark;
use postrider_core::progress::{BackfillProgress, Lineage, Progress, RepairScope};
use postrider_kafka::{failpoint, write_progress};
use postrider_postgres::wal::{Connection, WalError, table_files};

/// First transaction that the current snapshot does not see, in 64 bits.
const NOW: &str = "pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot())";
/// A backfill that was restarted with an existing slot sends all rows.
const NO_SNAPSHOT: &str = "";

#[derive(Debug, Default)]
pub(super) struct Beginning {
    /// `None`: a backfill.
    pub(super) repair: Option<RepairScope>,
    pub(super) replaces: bool,
    pub(super) loses: bool,
    /// Transaction number at which the stream first began, if known.
    pub(super) began: Option<u64>,
}

impl TableRun {
    pub(super) fn backfill(
        &mut self,
        found: &Found,
        restart: bool,
    ) -> Result<Remaining, RelayError> {
        let source = &found.plan.config.source;
        let (connection, lineage) = connect(found)?;
        // The slot is the lock: its holder may end the transactions of an earlier holder.
        let slot = found.inspection.slot.is_some().then(|| Held::take(found)).transpose()?;
        let (known, _) = self.known(found, &lineage)?;
        let is_repair = |begun: &BackfillProgress| begun.repair.is_some();
        match (slot, known) {
            (_, Known::Begun(begun, _) | Known::Intended(begun)) if is_repair(&begun) => {
                Err(GateError::RepairUnfinished { slot: lineage.slot }.into())
            }
            (None, Known::Begun(..)) if restart => {
                self.begin(found, connection, lineage, Beginning::default())
            }
            (slot, Known::Begun(begun, _)) => self.go_on(found, connection, (slot, lineage, begun)),
            (Some(slot), Known::Intended(_)) => {
                slot.release();
                tracing::info!(
                    slot = lineage.slot,
                    "dropping the slot of a backfill that sent nothing"
                );
                let beginning = Beginning { replaces: true, loses: true, ..Beginning::default() };
                self.begin(found, connection, lineage, beginning)
            }
            (Some(slot), Known::Nothing) if restart && !found.plan.keeps_progress() => {
                let begins = confirmed(found);
                let snapshot = NO_SNAPSHOT.to_owned();
                let begun = BackfillProgress { begins, snapshot, ..BackfillProgress::default() };
                self.go_on(found, connection, (Some(slot), lineage, begun))
            }
            (None, Known::Nothing | Known::Intended(_)) => {
                self.begin(found, connection, lineage, Beginning::default())
            }
            (Some(_), Known::Nothing) => {
                Err(TableRowsError::SlotExists { slot: source.slot.clone() }.into())
            }
            (Some(_), Known::Stream(_)) => {
                Err(TableRowsError::Ended { slot: source.slot.clone() }.into())
            }
            (None, Known::Stream(_)) => {
                Err(TableRowsError::Delivered { slot: source.slot.clone() }.into())
            }
        }
    }

    /// Returns the state of the stream, and its first transaction number. Fails if the backfill
    /// began with other tables.
    pub(super) fn known(
        &self,
        found: &Found,
        lineage: &Lineage,
    ) -> Result<(Known, Option<u64>), RelayError> {
        if !found.plan.keeps_progress() {
            let begun = |begun| Known::Begun(begun, true);
            return Ok((self.begun.clone().map_or(Known::Nothing, begun), None));
        }
        let progress = in_kafka(found, lineage)?;
        let has_slot = found.inspection.slot.as_ref().is_some_and(|slot| !slot.is_lost());
        if let Some(progress) = &progress
            && progress.backfill.as_ref().is_some_and(|begun| begun.begins.is_some())
            && has_slot
        {
            same_tables(&progress.lineage, lineage).map_err(|error| {
                match unfinished(progress) {
                    Some(GateError::RepairUnfinished { slot }) => {
                        TableRowsError::TablesChanged { slot, command: "repair" }
                    }
                    _ => error,
                }
            })?;
        }
        let began = progress.as_ref().and_then(Progress::began);
        Ok((Known::of(progress, has_slot), began))
    }

    pub(super) fn begin(
        &mut self,
        found: &Found,
        mut connection: Connection,
        lineage: Lineage,
        beginning: Beginning,
    ) -> Result<Remaining, RelayError> {
        let Beginning { repair, replaces, loses, began } = beginning;
        let source = &found.plan.config.source;
        self.check_unchanged(found)?;
        // A temporary slot shows that a slot can be created, before the existing slot is dropped.
        // Changes committed after its start are not lost: the new slot delivers them.
        let is_alive = found.inspection.slot.as_ref().is_some_and(|slot| !slot.is_lost());
        let temporary =
            if replaces && is_alive { self.make_temporary(&mut connection, found)? } else { None };
        let before = temporary.as_ref().map(|made| made.begins);
        if replaces && is_alive && !loses && is_undrained(found, &self.runtime, before) {
            return Err(TableRowsError::Undrained { slot: lineage.slot }.into());
        }
        let intended =
            BackfillProgress { repair: repair.clone(), began, ..BackfillProgress::default() };
        note(found, &lineage, intended)?;
        failpoint::pass("backfill_intended");
        if replaces {
            connection.drop_slot(&lineage.slot)?;
            failpoint::pass("repair_slot_dropped");
        }
        let begins = if let Some(made) = temporary {
            made.keep_as(&mut connection, &lineage.slot)?
        } else {
            connection.simple_query(BEGIN)?;
            self.make_slot(&mut connection, found)?
        };
        failpoint::pass("backfill_slot_made");
        let snapshot = connection.snapshot()?;
        tracing::info!(slot = source.slot, at = %begins, "created the slot; reading the rows \
                                                          committed before it");
        let files = table_files(&mut connection, &found.oids())?;
        let files = files.iter().map(|file| (file.oid, file.then)).collect();
        let begun =
            BackfillProgress { begins: Some(begins), snapshot, files, cursor: None, repair, began };
        self.begun = Some(begun.clone());
        let slot = Some(Held::take(found)?);
        let backfill = Some(begun.clone());
        let remaining = Remaining { connection, slot, lineage, backfill };
        // Another command may have created a slot since.
        self.check_held(found, &remaining)?;
        note(found, &remaining.lineage, begun)?;
        Ok(remaining)
    }

    pub(super) fn go_on(
        &mut self,
        found: &Found,
        mut connection: Connection,
        (slot, lineage, begun): (Option<Held>, Lineage, BackfillProgress),
    ) -> Result<Remaining, RelayError> {
        let confirmed = confirmed(found);
        let Some(begins) = begun.begins else {
            unreachable!("a backfill that has begun has a slot")
        };
        if confirmed != Some(begins) {
            let slot = lineage.slot;
            return Err(TableRowsError::SlotMoved { slot, confirmed, begins }.into());
        }
        connection.simple_query(BEGIN)?;
        self.begun = Some(begun.clone());
        tracing::info!(slot = lineage.slot, at = %begins, "resuming with the rows from before the \
                                                           slot");
        Ok(Remaining { connection, slot, lineage, backfill: Some(begun) })
    }
}

pub(super) fn connect(found: &Found) -> Result<(Connection, Lineage), WalError> {
    let mut connection = Connection::open(&found.plan.config.source.connect, &found.params)?;
    let identity = connection.identify_system()?;
    let (system, timeline) = (identity.system_id, identity.timeline);
    let lineage = Lineage { system, timeline, ..found.plan.lineage(&found.inspection) };
    Ok((connection, lineage))
}

fn note(found: &Found, lineage: &Lineage, backfill: BackfillProgress) -> Result<(), RelayError> {
    if found.plan.keeps_progress() {
        let (lineage, mark) = (lineage.clone(), Mark::default());
        write_progress(&found.plan.kafka, &Progress { lineage, mark, backfill: Some(backfill) })?;
    }
    Ok(())
}

/// `None`: the connection sees only rows committed before the slot.
pub(super) fn visible(remaining: &mut Remaining) -> Result<Option<String>, WalError> {
    let Some(backfill) = &remaining.backfill else { return Ok(None) };
    let now = remaining.connection.snapshot()?;
    let is_all = backfill.snapshot.is_empty() || backfill.snapshot == now;
    Ok((!is_all).then(|| committed_in(&backfill.snapshot)))
}

/// Refuses a rewritten table, whose rows can no longer be placed before the slot.
pub(super) fn check_files(found: &Found, remaining: &mut Remaining) -> Result<(), RelayError> {
    let Some(backfill) = &remaining.backfill else { return Ok(()) };
    for file in table_files(&mut remaining.connection, &found.oids())? {
        let is_other = |(oid, then): &(u32, u32)| *oid == file.oid && *then != file.now;
        if backfill.files.iter().any(is_other) {
            let slot = remaining.lineage.slot.clone();
            let command = if backfill.repair.is_some() { "repair" } else { "backfill" };
            return Err(TableRowsError::Rewritten { oid: file.oid, slot, command }.into());
        }
    }
    Ok(())
}

/// SQL condition: the row's transaction had committed in this snapshot.
///
/// A visible row's transaction began before the current snapshot. An `xmin` that seems to lie ahead
/// is therefore over 2^31 transactions old. Numbers below 3 belong to the system.
pub(super) fn committed_in(snapshot: &str) -> String {
    let distance = distance();
    format!(
        "xmin::text::bigint < 3 OR {distance} >= 0 OR \
         pg_catalog.txid_visible_in_snapshot({NOW} + {distance}, '{snapshot}'::pg_catalog.txid_snapshot)"
    )
}

/// SQL condition: the row's transaction has a lower 64-bit number than `xid`.
pub(super) fn written_before(xid: u64) -> String {
    let distance = distance();
    format!("xmin::text::bigint < 3 OR {distance} >= 0 OR {NOW} + {distance} < {xid}")
}

/// SQL for the distance from [`NOW`] to `xmin`, from -2^31 to 2^31 - 1.
fn distance() -> String {
    format!(
        "(((xmin::text::bigint - ({NOW} & 4294967295)) + 6442450944) % 4294967296 - 2147483648)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_is_part_of_the_condition() {
        let sql = committed_in("10:20:10,14");
        assert!(sql.contains("'10:20:10,14'::pg_catalog.txid_snapshot"), "{sql}");
    }
}
