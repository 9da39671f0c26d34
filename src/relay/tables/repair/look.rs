//! Compares without sending: for the plan, and before a slot is dropped.
//!
//! Input: the database as it was found, the scope, and what the slot is. Output: [`RepairCounts`]. Invariant: nothing is
//! written but temporary files; the role needs only to read the tables and the topics.

use super::comparison::{RepairCounts, Sides};
use super::{Found, RelayError, RepairJob, RepairScope, WalError, since_ms, window};
use crate::compare::flag;
use crate::tables::backfill::{committed_in, written_before};
use crate::tables::session::BEGIN;
use postrider_postgres::wal::{Connection, ScanRequest, literal, lock_tables};

/// What the slot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is there, and delivers what it has not passed.
    Alive,
    /// A repair with this scope has made it, in this snapshot: what committed later is of its stream.
    Begun(RepairScope, String),
    /// It will be made: all that is there by then is of before it.
    ToBeMade,
}

/// See the module's documentation; `None` if `goes_on` says no. `began` is when the stream began first, if that is known.
pub(super) fn look(
    found: &Found,
    job: &RepairJob,
    (seen, began): (&Seen, Option<u64>),
    goes_on: &(dyn Fn() -> bool + '_),
) -> Result<Option<RepairCounts>, RelayError> {
    let mut connection = Connection::open(&found.plan.config.source.connect, &found.params)?;
    let scope = match seen {
        Seen::Begun(scope, _) => scope,
        Seen::Alive | Seen::ToBeMade => &job.scope,
    };
    let since_ms = since_ms(&mut connection, scope)?;
    connection.simple_query(BEGIN)?;
    lock_tables(&mut connection, found.tables.iter().map(|table| &table.name))?;
    connection.simple_query("SET LOCAL row_security = off")?;
    let mut scans = Vec::new();
    for (condition, flags) in stages(found, seen, &mut connection)? {
        let mut stage = Vec::new();
        for table in &found.tables {
            let window = window(&found.plan.config, table, Some(scope))?;
            let request = table.request(window.into_iter().chain(condition.clone()));
            // Nobody goes on by it.
            let mark = began.map(written_before);
            let request = ScanRequest { order_by: Vec::new(), mark, ..request };
            stage.push(request.prepare(&mut connection)?);
        }
        scans.push((stage, flags));
    }
    let sides = Sides {
        plan: &found.plan,
        params: &found.params,
        folder: &job.folder,
        since_ms,
        unknown: scope.unknown,
        arrive_by: None,
    };
    Ok(sides.compare(connection, scans, goes_on)?.map(|compared| compared.counts))
}

/// Which rows are read, and how they are marked.
fn stages(
    found: &Found,
    seen: &Seen,
    connection: &mut Connection,
) -> Result<Vec<(Option<String>, u8)>, WalError> {
    Ok(match seen {
        Seen::ToBeMade => vec![(None, 0)],
        Seen::Begun(_, snapshot) => {
            let now = connection.snapshot()?;
            vec![((*snapshot != now).then(|| committed_in(snapshot)), 0)]
        }
        Seen::Alive => match passed(found, connection)? {
            None => vec![(None, 0)],
            Some(passed) => {
                let rest = format!("NOT ({passed})");
                vec![(Some(passed), 0), (Some(rest), flag::NOT_PASSED)]
            }
        },
    })
}

/// SQL for: the slot has passed the row's transaction. Postgres writes into its log, every 15 seconds, which transactions
/// are running. A slot's `catalog_xmin` is the oldest of those at such a place that the slot has confirmed: what older
/// transactions wrote was committed before the confirmed position. A visible row whose transaction seems to lie ahead is
/// from more than 2^31 transactions ago. `None`: the slot has vanished.
fn passed(found: &Found, connection: &mut Connection) -> Result<Option<String>, WalError> {
    let slot = literal(&found.plan.config.source.slot);
    let rows = connection.simple_query(&format!(
        "SELECT catalog_xmin::text FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}"
    ))?;
    let xmin = rows.first().and_then(|row| row.first()).cloned().flatten();
    // Only digits come from the server; they are put into SQL again.
    let xmin = xmin.and_then(|xmin| xmin.parse::<u32>().ok());
    Ok(xmin.map(|xmin| format!("age(xmin) < 0 OR age(xmin) > age('{xmin}'::pg_catalog.xid)")))
}
