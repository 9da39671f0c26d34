//! Begins a backfill, or goes on with one: which rows are those of before the slot.
//!
//! Input: the database, and the progress in Kafka. Output: a connection that sees the rows, the slot, held, and how
//! far the rows are delivered ([`Remaining`]). Invariant: the slot is made in the transaction that reads the rows
//! first, so that each committed row is of the backfill or of the stream, and never of both; that one has begun is
//! known in Kafka before the slot is made, and until it has ended no relay carries on with the slot (G1, G6).
//!
//! A later session sees other rows than the first one. What had committed before the slot it knows by the number of
//! the transaction that wrote a row (`xmin`) and the snapshot that was noted: that of a slot lists each number that
//! had not committed, those of subtransactions too (`SnapBuildInitialSnapshot` in snapbuild.c). A row that was
//! updated meanwhile has the number of its update, and is left out: an outbox is appended to.

use std::time::Duration;

use super::TableRun;
use super::error::TableRowsError;
use super::session::{BEGIN, Found, Remaining};
use crate::bootstrap::tell;
use crate::error::RelayError;
use postrider_config::Delivery;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::{BackfillProgress, Lineage, Progress};
use postrider_kafka::{
    ensure_progress_topic, failpoint, fence_off, newest_progress, write_progress,
};
use postrider_postgres::control::SlotFacts;
use postrider_postgres::wal::{Connection, Stream, WalError, table_files};

/// Of a backfill that is begun anew with a slot that is there: all rows are sent.
const NO_SNAPSHOT: &str = "";
/// How long a slot may take to be free that is not read.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

impl TableRun {
    /// See the module's documentation.
    pub(super) fn backfill(
        &mut self,
        found: &Found,
        restart: bool,
    ) -> Result<Remaining, RelayError> {
        let source = &found.plan.config.source;
        let mut connection = Connection::open(&source.connect, &found.params)?;
        let identity = connection.identify_system()?;
        let (system, timeline) = (identity.system_id, identity.timeline);
        let lineage = Lineage { system, timeline, ..found.plan.lineage(&found.inspection) };
        // The slot is the lock: who has it may end the transactions of whoever had it before.
        let slot = found.inspection.slot.is_some().then(|| hold(found)).transpose()?;
        let known = if found.plan.keeps_progress() {
            in_kafka(found, &lineage)?
        } else {
            self.begun.clone().map_or(Known::Nothing, Known::Begun)
        };
        match (slot, known) {
            (None, Known::Begun(_)) if restart => self.begin(found, connection, lineage),
            (slot, Known::Begun(begun)) => self.go_on(found, connection, (slot, lineage, begun)),
            (Some(slot), Known::Intended) => {
                // Whether or not it is in the slot's way, it sends nothing any more.
                let _ = slot.finish(RELEASE_LIMIT);
                connection.drop_slot(&lineage.slot)?;
                tracing::info!(
                    slot = lineage.slot,
                    "dropped the slot of a backfill that sent nothing"
                );
                self.begin(found, connection, lineage)
            }
            (Some(slot), Known::Nothing) if restart && !found.plan.keeps_progress() => {
                let begins = confirmed(found);
                let snapshot = NO_SNAPSHOT.to_owned();
                let begun = BackfillProgress { begins, snapshot, ..BackfillProgress::default() };
                self.go_on(found, connection, (Some(slot), lineage, begun))
            }
            (None, Known::Nothing | Known::Intended) => self.begin(found, connection, lineage),
            (Some(_), Known::Nothing | Known::Stream) => {
                Err(TableRowsError::SlotExists { slot: source.slot.clone() }.into())
            }
            (None, Known::Stream) => {
                Err(TableRowsError::Delivered { slot: source.slot.clone() }.into())
            }
        }
    }

    /// Makes the slot, and reads what had committed before it.
    fn begin(
        &mut self,
        found: &Found,
        mut connection: Connection,
        lineage: Lineage,
    ) -> Result<Remaining, RelayError> {
        let source = &found.plan.config.source;
        let intended = BackfillProgress::default();
        if found.plan.keeps_progress() {
            let (lineage, mark) = (lineage.clone(), Mark::default());
            let progress = Progress { lineage, mark, backfill: Some(intended) };
            write_progress(&found.plan.kafka, &progress)?;
        }
        failpoint::pass("backfill_intended");
        connection.simple_query(BEGIN)?;
        let begins = self.make_slot(&mut connection, found)?;
        failpoint::pass("backfill_slot_made");
        let snapshot = connection.snapshot()?;
        tracing::info!(slot = source.slot, at = %begins, "made the slot; reading what committed before it");
        let files = table_files(&mut connection, &found.oids())?;
        let files = files.iter().map(|file| (file.oid, file.then)).collect();
        let begun = BackfillProgress { begins: Some(begins), snapshot, files, cursor: None };
        if found.plan.keeps_progress() {
            let (lineage, mark) = (lineage.clone(), Mark::default());
            let progress = Progress { lineage, mark, backfill: Some(begun.clone()) };
            write_progress(&found.plan.kafka, &progress)?;
        }
        self.begun = Some(begun.clone());
        let slot = Some(hold(found)?);
        // The transaction sees just the rows of before the slot: no condition is needed.
        let backfill = Some(begun);
        Ok(Remaining { connection, slot, lineage, backfill })
    }

    /// Goes on with one, by a snapshot of now.
    fn go_on(
        &mut self,
        found: &Found,
        mut connection: Connection,
        (slot, lineage, begun): (Option<Stream>, Lineage, BackfillProgress),
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
        tracing::info!(slot = lineage.slot, at = %begins, "going on with the backfill");
        Ok(Remaining { connection, slot, lineage, backfill: Some(begun) })
    }
}

/// What Kafka holds of the stream.
enum Known {
    Nothing,
    /// A backfill was about to make the slot, and has sent nothing.
    Intended,
    Begun(BackfillProgress),
    /// Rows of the slot were delivered, or it was made by `setup`.
    Stream,
}

fn in_kafka(found: &Found, lineage: &Lineage) -> Result<Known, RelayError> {
    let kafka = &found.plan.kafka;
    tell(&ensure_progress_topic(kafka)?);
    if found.plan.config.kafka.delivery == Delivery::ExactlyOnce {
        fence_off(kafka, lineage)?;
    }
    let Some(progress) = newest_progress(kafka, &lineage.key())? else { return Ok(Known::Nothing) };
    Ok(match progress.backfill {
        Some(backfill) if backfill.begins.is_some() => {
            if progress.lineage.tables != lineage.tables && found.inspection.slot.is_some() {
                let slot = lineage.slot.clone();
                return Err(TableRowsError::TablesChanged { slot }.into());
            }
            Known::Begun(backfill)
        }
        Some(_) => Known::Intended,
        // `setup` was about to make the slot.
        None if progress.mark == Mark::default() && found.inspection.slot.is_none() => {
            Known::Nothing
        }
        None => Known::Stream,
    })
}

/// Where the slot is.
fn confirmed(found: &Found) -> Option<Lsn> {
    found.inspection.slot.as_ref().and_then(|slot: &SlotFacts| slot.confirmed_flush)
}

/// The condition for rows of before the slot, where the connection sees others too.
pub(super) fn visible(remaining: &mut Remaining) -> Result<Option<String>, WalError> {
    let Some(backfill) = &remaining.backfill else { return Ok(None) };
    let now = remaining.connection.snapshot()?;
    let is_all = backfill.snapshot.is_empty() || backfill.snapshot == now;
    Ok((!is_all).then(|| committed_in(&backfill.snapshot)))
}

/// Refuses a table that was rewritten since the backfill began: its rows are not seen any more in the slot's snapshot,
/// or not known to be of before it.
pub(super) fn check_files(found: &Found, remaining: &mut Remaining) -> Result<(), RelayError> {
    let Some(backfill) = &remaining.backfill else { return Ok(()) };
    for file in table_files(&mut remaining.connection, &found.oids())? {
        let is_other = |(oid, then): &(u32, u32)| *oid == file.oid && *then != file.now;
        if backfill.files.iter().any(is_other) {
            let slot = remaining.lineage.slot.clone();
            return Err(TableRowsError::Rewritten { oid: file.oid, slot }.into());
        }
    }
    Ok(())
}

/// Takes the slot as a relay would, so that none carries on with it meanwhile.
fn hold(found: &Found) -> Result<Stream, WalError> {
    let source = &found.plan.config.source;
    let connection = Connection::open(&source.connect, &found.params)?;
    let started = connection.start(&source.slot, &source.publication, Lsn::ZERO);
    started.map_err(|refused| refused.error)
}

/// SQL for: the transaction that wrote the row had committed in this snapshot.
///
/// `xmin` has 32 bits. A visible row's transaction has begun before the snapshot of now ends, so that one which
/// seems to lie ahead of that is from more than 2^31 transactions before it, and numbers below 3 are of the
/// system's own.
fn committed_in(snapshot: &str) -> String {
    const NOW: &str = "pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot())";
    // How far `xmin` lies from there, from -2^31 to 2^31 - 1.
    let distance = format!(
        "(((xmin::text::bigint - ({NOW} & 4294967295)) + 6442450944) % 4294967296 - 2147483648)"
    );
    format!(
        "xmin::text::bigint < 3 OR {distance} >= 0 OR \
         pg_catalog.txid_visible_in_snapshot({NOW} + {distance}, '{snapshot}'::pg_catalog.txid_snapshot)"
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
