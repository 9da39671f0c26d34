//! Compares without sending, for the preview and before a slot is dropped.
//!
//! Invariant: the comparison writes only temporary files. The role needs only read access to the
//! tables and the topics.

use super::comparison::{RepairCounts, Sides};
use super::{Found, RelayError, RepairJob, RepairScope, WalError, since_ms, window};
use crate::compare::flag;
use crate::meter::Meter;
use crate::tables::backfill::{committed_in, written_before};
use crate::tables::session::BEGIN;
use postrider_postgres::wal::{Connection, ScanRequest, literal, lock_tables};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// The slot delivers the rows that it has not passed. It has delivered every row from this
    /// transaction number on, if known.
    Alive(Option<u64>),
    /// A repair with this scope created the slot with this snapshot. Its stream delivers rows
    /// committed later.
    Begun(RepairScope, String),
    ToBeMade,
}

/// Returns `None` if `goes_on` returns `false`. `began`: first transaction number of the stream, if
/// known.
pub(super) fn look(
    found: &Found,
    job: &RepairJob,
    (seen, began): (&Seen, Option<u64>),
    meter: &Meter,
    goes_on: &(dyn Fn() -> bool + '_),
) -> Result<Option<RepairCounts>, RelayError> {
    let mut connection = Connection::open(&found.plan.config.source.connect, &found.params)?;
    let scope = match seen {
        Seen::Begun(scope, _) => scope,
        Seen::Alive(_) | Seen::ToBeMade => &job.scope,
    };
    let since_ms = since_ms(&mut connection, scope)?;
    connection.simple_query(BEGIN)?;
    lock_tables(&mut connection, found.tables.iter().map(|table| &table.name))?;
    connection.simple_query("SET LOCAL row_security = off")?;
    let condition = match seen {
        Seen::Begun(_, snapshot) if *snapshot != connection.snapshot()? => {
            Some(committed_in(snapshot))
        }
        Seen::Begun(..) | Seen::Alive(_) | Seen::ToBeMade => None,
    };
    let mut flags: Vec<_> =
        began.map(|xid| (written_before(xid), flag::BEFORE)).into_iter().collect();
    if let Seen::Alive(whole) = seen
        && let Some(passed) = passed(found, &mut connection)?
    {
        let waits = format!("NOT ({passed})");
        let may_be = whole.map(|xid| format!(" AND ({})", written_before(xid)));
        flags.push((format!("{waits}{}", may_be.unwrap_or_default()), flag::UNDECIDED));
        flags.push((waits, flag::NOT_PASSED));
    }
    let marks = (!flags.is_empty()).then(|| marks(&flags));
    // The scans have the order of delivery, so that rows after newer ones can be counted.
    let mut scans = Vec::new();
    for table in &found.tables {
        let window = window(&found.plan.config, table, Some(scope))?;
        let request = table.request(window.into_iter().chain(condition.clone()));
        let request = ScanRequest { marks: marks.clone(), ..request };
        scans.push(request.prepare(&mut connection)?);
    }
    let sides = Sides {
        letter_source: found.plan.letter_source(&found.inspection.server),
        plan: &found.plan,
        params: &found.params,
        folder: &job.folder,
        since_ms,
        unknown: scope.unknown,
        arrive_by: None,
        meter,
    };
    Ok(sides.compare(connection, scans, goes_on)?.map(|compared| compared.counts))
}

/// SQL for the flags of a row. A flag is set if its condition is true.
pub(in crate::tables) fn marks(flags: &[(String, u8)]) -> String {
    let each = flags
        .iter()
        .map(|(condition, flag)| format!("CASE WHEN {condition} THEN {flag} ELSE 0 END"));
    each.collect::<Vec<_>>().join(" + ")
}

/// SQL condition: the slot has passed the row's transaction. `None`: the slot no longer exists.
///
/// A slot's `catalog_xmin` is the oldest running transaction, logged every 15 seconds, at a
/// position that the slot has confirmed. Older transactions were therefore committed before that
/// position. A visible `xmin` that seems to lie ahead is more than 2^31 transactions old.
fn passed(found: &Found, connection: &mut Connection) -> Result<Option<String>, WalError> {
    let slot = literal(&found.plan.config.source.slot);
    let rows = connection.simple_query(&format!(
        "SELECT catalog_xmin::text FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}"
    ))?;
    let xmin = rows.first().and_then(|row| row.first()).cloned().flatten();
    // Only digits from the server may enter SQL.
    let xmin = xmin.and_then(|xmin| xmin.parse::<u32>().ok());
    Ok(xmin.map(|xmin| format!("age(xmin) < 0 OR age(xmin) > age('{xmin}'::pg_catalog.xid)")))
}
