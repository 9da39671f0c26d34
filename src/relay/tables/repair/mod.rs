//! Repairs a stream whose slot was lost, dropped or moved.
//!
//! Invariant: a note in Kafka precedes the creation of the slot. Until the repair has ended, no
//! relay resumes the slot (G1, G6). `way` decides whether a slot is dropped. An error never drops a
//! slot that a repair created. A repeated repair finds the rows already sent in the topics.

mod comparison;
mod delivered;
mod look;
mod preview;
mod way;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::TableRows;
use super::TableRun;
use super::backfill::{Beginning, connect};
use super::error::TableRowsError;
use super::filter::RowFilter;
use super::known::{Held, Known};
use super::session::{Found, FoundTable, Remaining};
use super::watched::{goes_on, watched};
use super::zone::refuse_without_zone;
use crate::compare::{CompareError, Entry, Sorter};
use crate::error::RelayError;
use crate::meter::{Meter, Total, Unit};
use crate::plan::Plan;
use crate::readability::readability;
use crate::stop::StopSignal;
use comparison::{Compared, Sides};
use look::{Seen, look};
use postrider_config::{Config, Delivery};
use postrider_core::gate::GateError;
use postrider_core::lsn::Lsn;
use postrider_core::progress::{BackfillProgress, Lineage, Moment, RepairScope, UnknownRows};
use postrider_kafka::failpoint;
use postrider_postgres::control::{self, PeekRequest, PeekedMessage};
use postrider_postgres::wal::{
    Connection, Readability, RowNumbers, TableScan, WalError, literal, sql_rows,
};
use way::{SlotState, Terms, Way, way, whole_since};

pub use comparison::RepairCounts;
pub use delivered::UnknownReason;
pub(super) use look::marks;
pub use preview::{RepairPreview, RepairSlot, preview_repair};

/// At-least-once delivery does not fence a killed producer. Its records arrive within this time.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(3);
const LOOKED_AT: u32 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairJob {
    pub scope: RepairScope,
    /// Allows dropping an existing slot together with its undelivered messages.
    pub drops_slot: bool,
    pub folder: PathBuf,
}

impl TableRun {
    /// `None`: a stop was requested, or there is nothing to repair.
    pub(super) fn repair(
        &mut self,
        found: &Found,
        job: &RepairJob,
    ) -> Result<Option<Remaining>, RelayError> {
        let (mut connection, lineage) = connect(found)?;
        // Unreadable tables are refused before anything is written or dropped.
        check_tables(&mut connection, found, &job.scope)?;
        Sorter::<Entry>::new(&job.folder)?;
        let slot = self.free_slot(found, job)?;
        let is_alive = matches!(slot, SlotState::At(_));
        let mut held = is_alive.then(|| Held::take(found)).transpose()?;
        let (known, first_xid) = self.known(found, &lineage)?;
        let (keeps_progress, scope) = (found.plan.keeps_progress(), &job.scope);
        let drops_slot = job.drops_slot;
        let terms = Terms { slot, lineage: &lineage, keeps_progress, scope, drops_slot };
        let mut way = way(&terms, &known, None)?;
        let is_compared = way == Way::Compare;
        let whole = whole_since(&terms, &known);
        if is_compared {
            let Some(held) = &mut held else { unreachable!("a slot that is not there is made") };
            let heartbeat = Plan::heartbeat(found.inspection.server.wal_sender_timeout);
            let counts = watched(&mut held.stream, heartbeat, &self.stop, |goes_on| {
                look(found, job, (&Seen::Alive(whole), first_xid), &self.meter, goes_on)
            });
            let Some(counts) = counts?? else { return Ok(None) };
            way = way::way(&terms, &known, Some(&counts))?;
            tell(&counts);
            refuse_unknown(&counts, &job.scope)?;
            // An earlier session may have compared before another command sent rows.
            self.compared = matches!(way, Way::Leave(_)).then_some(counts);
        }
        let makes = matches!(way, Way::Make | Way::Replace);
        if makes && !is_compared && !self.would_send(found, job, (first_xid, slot))? {
            return Ok(None);
        }
        let repair = Some(job.scope.clone());
        match way {
            Way::GoOn(begun) => self.go_on(found, connection, (held, lineage, *begun)).map(Some),
            Way::Make => {
                let beginning = Beginning { repair, began: first_xid, ..Beginning::default() };
                self.begin(found, connection, lineage, beginning).map(Some)
            }
            Way::Replace => {
                if let Some(held) = held {
                    held.release();
                }
                let loses = !is_compared || drops_slot;
                let beginning = Beginning { repair, replaces: true, loses, began: first_xid };
                self.begin(found, connection, lineage, beginning).map(Some)
            }
            Way::Leave(why) => {
                if let Some(held) = held {
                    held.release();
                }
                if !is_compared {
                    self.compared = None;
                }
                tracing::info!("{why}");
                self.nothing_to_repair = Some(why);
                Ok(None)
            }
            Way::Compare => unreachable!("both sides were compared"),
        }
    }

    /// Refuses a held slot, and without `--drop-slot` an undecodable one.
    fn free_slot(&self, found: &Found, job: &RepairJob) -> Result<SlotState, RelayError> {
        let slot = found.plan.config.source.slot.clone();
        if is_held(found) {
            return Err(RelayError::SlotHeld { slot });
        }
        let Probed { state, unreadable, .. } = probed(found, true, &self.stop, &self.meter)?;
        let Some(error) = unreadable else { return Ok(state) };
        if !job.drops_slot {
            let cause = error.to_string();
            return Err(TableRowsError::Undecodable { slot, cause }.into());
        }
        tracing::warn!(
            slot,
            "the slot cannot be decoded past this change, and is replaced: {error}"
        );
        Ok(state)
    }

    /// `false`: a stop was requested. Without stored progress, a relay could resume the slot of a
    /// refused repair, so undecided rows are refused before the slot is created or dropped. If the
    /// slot cannot be decoded, the tables must also be readable before it is dropped.
    fn would_send(
        &self,
        found: &Found,
        job: &RepairJob,
        (first_xid, slot): (Option<u64>, SlotState),
    ) -> Result<bool, RelayError> {
        let is_decided = found.plan.keeps_progress() || job.scope.unknown.is_some();
        if is_decided && slot != SlotState::Unreadable {
            return Ok(true);
        }
        let seen = (&Seen::ToBeMade, first_xid);
        let Some(counts) = look(found, job, seen, &self.meter, &|| goes_on(&self.stop))? else {
            return Ok(false);
        };
        refuse_unknown(&counts, &job.scope)?;
        Ok(true)
    }

    /// Selects the rows to send; all unless the job is a repair. `None`: a stop was requested.
    pub(super) fn select(
        &mut self,
        found: &Found,
        remaining: Remaining,
        scans: &[TableScan],
        heartbeat: Duration,
    ) -> Result<Option<(Remaining, Option<RowNumbers>)>, RelayError> {
        let TableRows::Repair(job) = &self.job.rows else { return Ok(Some((remaining, None))) };
        let Remaining { mut connection, slot, lineage, backfill } = remaining;
        let (Some(mut held), Some(begun)) = (slot, backfill) else {
            unreachable!("a repair has a slot")
        };
        let scope = begun.repair.clone().unwrap_or_default();
        let at_least_once = found.plan.config.kafka.delivery == Delivery::AtLeastOnce;
        let sides = Sides {
            letter_source: found.plan.letter_source(&found.inspection.server),
            plan: &found.plan,
            params: &found.params,
            folder: &job.folder,
            since_ms: since_ms(&mut connection, &scope)?,
            unknown: scope.unknown,
            arrive_by: at_least_once.then(|| Instant::now() + ARRIVAL_LIMIT),
            meter: &self.meter,
        };
        tracing::info!(
            slot = lineage.slot,
            "comparing the rows from before the slot with the topics"
        );
        let compared = watched(&mut held.stream, heartbeat, &self.stop, |goes_on| {
            sides.compare(connection, scans.to_vec(), goes_on)
        });
        let Some(Compared { connection, counts, send }) = compared?? else { return Ok(None) };
        tell(&counts);
        refuse_unknown(&counts, &scope)?;
        self.compared.get_or_insert(counts);
        let (slot, backfill) = (Some(held), Some(begun));
        let remaining = Remaining { connection, slot, lineage, backfill };
        failpoint::pass("repair_compared");
        self.check_held(found, &remaining)?;
        Ok(Some((remaining, Some(send))))
    }
}

fn is_held(found: &Found) -> bool {
    found.inspection.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

struct Probed {
    state: SlotState,
    unreadable: Option<WalError>,
    unknown: Option<String>,
}

/// A slot that another session holds is not decoded.
fn probed(
    found: &Found,
    takes_slot: bool,
    stop: &StopSignal,
    meter: &Meter,
) -> Result<Probed, RelayError> {
    let state = SlotState::of(found)?;
    let probed = Probed { state, unreadable: None, unknown: None };
    if !matches!(state, SlotState::At(_)) || is_held(found) {
        return Ok(probed);
    }
    tracing::info!("looking whether the log of the slot can be read");
    let slot = found.inspection.slot.as_ref();
    let from = slot.and_then(|slot| slot.confirmed_flush).unwrap_or_default().get();
    meter.begin("decoding the log of the slot", Unit::WalBytes, Total::Unknown);
    let looks = |reached: Lsn, end: Lsn| {
        meter.set_done(reached.get().saturating_sub(from));
        meter.set_whole(0, Total::Exactly(end.get().saturating_sub(from)));
        goes_on(stop)
    };
    Ok(match readability(&found.plan.config, &found.params, slot, (takes_slot, &looks))? {
        Readability::Unreadable(error) => {
            Probed { state: SlotState::Unreadable, unreadable: Some(error), ..probed }
        }
        Readability::Readable => probed,
        Readability::Unknown(why) => {
            tracing::info!("whether the log of the slot can be read is not known: {why}");
            Probed { unknown: Some(why), ..probed }
        }
    })
}

fn tell(counts: &RepairCounts) {
    let RepairCounts { rows, delivered, missing, unknown, pending, .. } = counts;
    tracing::info!(rows, delivered, missing, unknown, pending, "compared the rows with the topics");
}

fn refuse_unknown(counts: &RepairCounts, scope: &RepairScope) -> Result<(), TableRowsError> {
    if counts.unknown == 0 || scope.unknown.is_some() {
        return Ok(());
    }
    let reasons = counts.unknown_because.iter().map(|(reason, rows)| format!("{rows}: {reason}"));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    Err(TableRowsError::RowsUnknown { unknown: counts.unknown, reasons })
}

/// Whether messages before this position exist only in the slot, or the check fails or exceeds its
/// limits. `None`: before the current position.
pub(super) fn is_undrained(found: &Found, runtime: &Handle, before: Option<Lsn>) -> bool {
    let source = &found.plan.config.source;
    let request = PeekRequest {
        slot: &source.slot,
        publication: &source.publication,
        messages: !found.plan.config.messages.prefixes.is_empty(),
        before,
        limit: LOOKED_AT,
    };
    let looked = runtime.block_on(async {
        let client = control::connect(&source.connect).await?;
        control::peek(&client, request).await
    });
    // Begin and Commit may enclose no rows (before PostgreSQL 15). Stream Abort ends a rolled-back
    // transaction.
    let is_row =
        |message: &PeekedMessage| !matches!(message.data.first(), Some(b'B' | b'C' | b'A'));
    match looked {
        Ok(messages) => messages.iter().any(is_row) || messages.len() >= LOOKED_AT as usize,
        Err(error) => {
            tracing::info!("cannot look into the slot: {error}");
            true
        }
    }
}

pub(super) fn window(
    config: &Config,
    table: &FoundTable,
    scope: Option<&RepairScope>,
) -> Result<Option<String>, TableRowsError> {
    let Some(scope) = scope else { return Ok(None) };
    let at = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.at.clone());
    let (since, until) = (at(&scope.since), at(&scope.until));
    RowFilter { since, until, ..RowFilter::default() }.condition(config, &table.name, &table.facts)
}

/// Requests zero rows per table, with the query that later requests all rows.
fn check_tables(
    connection: &mut Connection,
    found: &Found,
    scope: &RepairScope,
) -> Result<(), RelayError> {
    since_ms(connection, scope)?;
    for table in &found.tables {
        if scope.since.is_some() || scope.until.is_some() {
            let (name, column) = (table.name.to_string(), &found.plan.config.outbox.created_at);
            refuse_without_zone(connection, (&name, table.facts.oid), column)?;
        }
        let rows = sql_rows(&table.name, table.facts.is_partitioned());
        let window = window(&found.plan.config, table, Some(scope))?;
        let condition = window.unwrap_or_else(|| "true".to_owned());
        let asked = format!("SELECT 1 FROM {rows} WHERE {condition} LIMIT 0");
        connection.simple_query(&asked).map_err(|error| no_time(error, scope))?;
    }
    Ok(())
}

/// Milliseconds since the Unix epoch.
fn since_ms(connection: &mut Connection, scope: &RepairScope) -> Result<Option<i64>, RelayError> {
    let Some(since) = &scope.since else { return Ok(None) };
    let asked = format!(
        "SELECT (extract(epoch FROM {}::timestamptz) * 1000)::bigint::text",
        literal(&since.at)
    );
    let rows = connection.simple_query(&asked).map_err(|error| no_time(error, scope))?;
    let ms = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
    Ok(Some(ms.ok_or(WalError::Protocol("a malformed answer about a time"))?))
}

/// Class 22 (data exception): the text is not a valid time.
fn no_time(error: WalError, scope: &RepairScope) -> RelayError {
    match &error {
        WalError::Server(message) if message.code.starts_with("22") => {
            let is_meant = |moment: &&Moment| message.message.contains(&moment.at);
            let (option, moment) = match (&scope.since, scope.until.as_ref().filter(is_meant)) {
                (_, Some(until)) => ("--until", until),
                (Some(since), None) => ("--since", since),
                (None, None) => return error.into(),
            };
            CompareError::NoTime { option, text: moment.typed.clone() }.into()
        }
        _ => error.into(),
    }
}
