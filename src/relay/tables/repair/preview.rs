//! Previews a repair before it changes anything.
//!
//! Invariant: the preview writes only temporary files, and decodes only a copy of the slot.

use std::sync::Arc;

use serde::Serialize;
use tokio::runtime::Handle;

use super::look::{Seen, look};
use super::way::{SlotState, Terms, Way, way, whole_since};
use super::{
    Connection, Found, Known, Probed, RelayError, RepairCounts, RepairJob, TableRowsError,
    WalError, check_tables, goes_on, is_held, is_undrained, probed,
};
use crate::blocking::run_blocking;
use crate::meter::Meter;
use crate::plan::Plan;
use crate::stop::StopSignal;
use crate::tables::backfill::connect;
use crate::tables::session::find;
use crate::tables::{TableJob, TableRows};
use postrider_core::lsn::Lsn;
use postrider_core::progress::Progress;
use postrider_kafka::newest_progress;

const ROOM: &str = "raise max_replication_slots, or drop a slot that is not needed any more";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairPreview {
    pub slot: RepairSlot,
    /// A repair has begun and not ended.
    pub begun: bool,
    /// `false`: the slot stays untouched and no rows are sent.
    pub needed: bool,
    /// Planned action, as a sentence.
    pub action: String,
    #[serde(flatten)]
    pub counts: RepairCounts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum RepairSlot {
    Missing,
    Lost {
        /// Reason that the server gives.
        reason: String,
    },
    /// No session can decode one of the slot's changes.
    Unreadable {
        #[serde(serialize_with = "as_text")]
        at: Lsn,
        reason: String,
    },
    Alive {
        /// Confirmed position of the slot.
        #[serde(serialize_with = "as_text")]
        at: Lsn,
        /// Another session, for example a relay, holds the slot.
        held: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn as_text<S: serde::Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

const fn is_alive(slot: SlotState) -> bool {
    matches!(slot, SlotState::At(_))
}

/// `None`: a stop was requested.
pub async fn preview_repair(
    plan: &Plan,
    job: &RepairJob,
    stop: StopSignal,
    meter: Meter,
) -> Result<Option<RepairPreview>, RelayError> {
    let rows = TableRows::Repair(job.clone());
    let plan = Plan { origin: rows.origin(), ..plan.clone() };
    let wanted = plan.requirements()?;
    let found = Arc::new(find(&plan, &TableJob { rows, rate: None }, &wanted).await?);
    let job = job.clone();
    let runtime = Handle::current();
    run_blocking(move || preview(&found, &job, &stop, &meter, &runtime)).await?
}

fn preview(
    found: &Found,
    job: &RepairJob,
    stop: &StopSignal,
    meter: &Meter,
    runtime: &Handle,
) -> Result<Option<RepairPreview>, RelayError> {
    let (mut connection, lineage) = connect(found)?;
    check_tables(&mut connection, found, &job.scope)?;
    drop(connection);
    let kafka = &found.plan.kafka;
    let keeps_progress = found.plan.keeps_progress();
    let progress = if keeps_progress { newest_progress(kafka, &lineage.key())? } else { None };
    let first_xid = progress.as_ref().and_then(Progress::began);
    let known = Known::of(progress, found.inspection.slot.is_some());
    let Probed { state, unreadable, unknown: unprobed } = probed(found, false, stop, meter)?;
    let (scope, drops_slot) = (&job.scope, job.drops_slot);
    let terms = Terms { slot: state, lineage: &lineage, keeps_progress, scope, drops_slot };
    let seen = match way(&terms, &known, None) {
        Ok(Way::GoOn(begun)) => Seen::Begun(begun.repair.unwrap_or_default(), begun.snapshot),
        Ok(Way::Compare | Way::Leave(_)) => Seen::Alive(whole_since(&terms, &known)),
        Ok(Way::Make | Way::Replace) => Seen::ToBeMade,
        Err(error) => return Err(error),
    };
    let Some(counts) = look(found, job, (&seen, first_xid), meter, &|| goes_on(stop))? else {
        return Ok(None);
    };
    let name = &lineage.slot;
    let unknown = job.scope.unknown.is_none() && counts.unknown > 0;
    let decided = way(&terms, &known, Some(&counts));
    let needed = !matches!(&decided, Ok(Way::Leave(_)) if !unknown);
    let action = match decided {
        Err(RelayError::TableRows(
            error @ (TableRowsError::NothingMissing { .. } | TableRowsError::Undecided { .. }),
        )) => format!("would do nothing: {error}"),
        Err(error) => return Err(error),
        Ok(_) if unknown => {
            "would be refused (PR-P102) without --unknown, because the delivery of some rows is \
             unknown"
                .to_owned()
        }
        Ok(Way::Leave(why)) => format!("would do nothing: {why}"),
        Ok(Way::Make) if !has_free_slot(&mut connect(found)?.0)? => {
            format!("would be refused (PR-P043), because all replication slots are in use: {ROOM}")
        }
        Ok(Way::Make) => format!("would make slot `{name}` and send the missing rows"),
        Ok(Way::Replace) if state == SlotState::Unreadable && !drops_slot => {
            "would be refused (PR-P107) without --drop-slot, which drops the slot with what it has not delivered"
                .to_owned()
        }
        Ok(Way::Replace)
            if is_alive(state) && !drops_slot && is_undrained(found, runtime, None) =>
        {
            let slot = name.clone();
            format!("would be refused (PR-P107): {}", TableRowsError::Undrained { slot })
        }
        Ok(Way::Replace) => {
            format!("would drop slot `{name}`, create it again and send the missing rows")
        }
        Ok(Way::GoOn(_)) => format!("would resume the repair that created slot `{name}`"),
        Ok(Way::Compare) => unreachable!("both sides were compared"),
    };
    let action = action + &doubt(name, unprobed);
    let slot = shown(found, state, unreadable);
    let begun = matches!(seen, Seen::Begun(..));
    Ok(Some(RepairPreview { slot, begun, needed, action, counts }))
}

/// Note that the log was not inspected, with the reason.
fn doubt(slot: &str, unprobed: Option<String>) -> String {
    let line = |why| format!("\nwhether the log of slot `{slot}` can be read is not known: {why}");
    unprobed.map(line).unwrap_or_default()
}

fn has_free_slot(connection: &mut Connection) -> Result<bool, WalError> {
    const SQL: &str = "SELECT count(*) < pg_catalog.current_setting('max_replication_slots')::bigint \
                       FROM pg_catalog.pg_replication_slots";
    let rows = connection.simple_query(SQL)?;
    let answer = rows.first().and_then(|row| row.first()?.as_deref());
    answer.map(|text| text == "t").ok_or(WalError::Protocol("a malformed answer about slots"))
}

fn shown(found: &Found, state: SlotState, unreadable: Option<WalError>) -> RepairSlot {
    let facts = found.inspection.slot.as_ref();
    match state {
        SlotState::Missing => RepairSlot::Missing,
        SlotState::Lost => {
            let reason = facts.and_then(|slot| slot.invalidation.clone());
            RepairSlot::Lost { reason: reason.unwrap_or_else(|| "wal_removed".to_owned()) }
        }
        SlotState::Unreadable => {
            let at = facts.and_then(|slot| slot.confirmed_flush).unwrap_or_default();
            let reason = unreadable.map(|error| error.to_string()).unwrap_or_default();
            RepairSlot::Unreadable { at, reason }
        }
        SlotState::At(at) => RepairSlot::Alive { at, held: is_held(found) },
    }
}
