//! The check before every replication session.
//!
//! Invariant: a publication is created before the slot, which could otherwise not decode rows
//! written in between. Existing objects are not changed, and nothing that this process saw before
//! is created again. Upholds G1.

use super::connect::{Client, STATEMENT_LIMIT};
use super::error::ControlError;
use super::hint_text::create_publication;
use super::inspect::{Inspection, Requirements, ServerFacts, inspect};
use super::requirements_check::SourceWarning;
use super::source_identity::Known;
use super::standby::StandbyError;
use crate::wal::quote::literal;
use crate::wal::{Class, WalError};
use postrider_core::lsn::Lsn;

/// Below [`STATEMENT_LIMIT`], so that the server fails first and reports it.
pub const SLOT_LIMIT_MS: u64 = 10_000;

pub(super) const FAILOVER_ARGUMENT: &str = ", failover => true";

const BLOCKERS_MAX: i64 = 5;

/// Inspects, and creates missing objects if configured. `known`: what this process saw before. The
/// first pass also logs warnings.
pub async fn preflight(
    client: &Client,
    wanted: &Requirements,
    known: Option<&Known>,
) -> Result<Inspection, ControlError> {
    let inspection = fit(client, wanted, known).await?;
    if known.is_none() {
        remark(&inspection, wanted);
    }
    Ok(inspection)
}

fn remark(inspection: &Inspection, wanted: &Requirements) {
    for SourceWarning { what, help, .. } in inspection.warnings(wanted) {
        tracing::warn!(help, "{what}");
    }
    if let Some(held) = inspection.held(wanted) {
        let help = held.hint().unwrap_or_default();
        tracing::info!(help, "{held}");
    }
}

async fn fit(
    client: &Client,
    wanted: &Requirements,
    known: Option<&Known>,
) -> Result<Inspection, ControlError> {
    let inspection = inspect(client, wanted).await?;
    if let Some(departure) = known.and_then(|known| known.departure(&inspection, wanted)) {
        return Err(departure);
    }
    let refusals = inspection.refusals(wanted);
    let (creatable, fatal): (Vec<_>, Vec<_>) = refusals.into_iter().partition(|refusal| {
        matches!(
            refusal,
            ControlError::SlotMissing { .. }
                | ControlError::PublicationMissing { slot_exists: false, .. }
        )
    });
    let readmission = || known?.readmission(&inspection, wanted);
    if let Some(first) = fatal.into_iter().next().or_else(readmission) {
        return Err(first);
    }
    let Some(first) = creatable.into_iter().next() else { return Ok(inspection) };
    if !wanted.create {
        return Err(first);
    }
    if let (true, ControlError::PublicationMissing { publication, .. }) =
        (inspection.server.in_recovery, &first)
    {
        let (object, wanted) = (publication.clone(), wanted.wants_standby());
        return Err(StandbyError::ReadOnly { object, wanted }.into());
    }
    if let Some(refusal) = wanted.refuses_slot_on(&inspection.server) {
        return Err(refusal.into());
    }
    if inspection.publication.is_none() {
        let needs = inspection.needs(OWN_AND_CREATE, true);
        create_missing_publication(client, wanted, needs).await?;
    }
    if inspection.slot.is_none()
        && let Some(start) = create_missing_slot(client, wanted, &inspection.server).await?
    {
        announce(&wanted.slot, start, inspection.publication.is_some());
    }
    let inspection = inspect(client, wanted).await?;
    match inspection.refusals(wanted).into_iter().next() {
        Some(first) => Err(first),
        None => Ok(inspection),
    }
}

/// Nothing distinguishes a lost slot from a first start.
fn announce(slot: &str, start: Lsn, publication_existed: bool) {
    const WHAT: &str = "rows committed before that are not delivered";
    if publication_existed {
        let help = "nothing to do at a first start; if the slot existed before (another server, \
                    a failover, a dropped slot), re-send the rows that are still in the outbox; \
                    source.create = \"never\" makes no slot at start";
        tracing::warn!(help, "created slot `{slot}` at {start}; {WHAT}");
    } else {
        tracing::info!("created slot `{slot}` at {start}; {WHAT}");
    }
}

pub(super) const OWN_AND_CREATE: &str = "to own the tables, and CREATE on the database";

/// Accepts one that another relay has just created.
pub(super) async fn create_missing_publication(
    client: &Client,
    wanted: &Requirements,
    needs: String,
) -> Result<(), ControlError> {
    let publication = &wanted.publication;
    let sql = create_publication(publication, &wanted.tables);
    let created = client.run("creating the publication", client.sql().batch_execute(&sql)).await;
    forgive_existing(created, || ControlError::CreationForbidden {
        object: format!("publication `{publication}`"),
        needs,
        sql,
    })
}

/// `None` if another relay was faster. Waits for open write transactions up to a limit, then names
/// them.
pub(super) async fn create_missing_slot(
    client: &Client,
    wanted: &Requirements,
    server: &ServerFacts,
) -> Result<Option<Lsn>, ControlError> {
    const DOING: &str = "creating the replication slot";
    let slot = wanted.slot.as_str();
    let failover = if wanted.makes_failover_slot(server) { FAILOVER_ARGUMENT } else { "" };
    let create = format!(
        "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot($1::text, 'pgoutput'{failover})"
    );
    debug_assert!(STATEMENT_LIMIT.as_millis() > u128::from(SLOT_LIMIT_MS));
    let limit = format!("SET statement_timeout = {SLOT_LIMIT_MS}");
    client.run(DOING, client.sql().batch_execute(&limit)).await?;
    let created = client.run(DOING, client.sql().query_one(&create, &[&slot])).await;
    client.run(DOING, client.sql().batch_execute("SET statement_timeout = 0")).await?;
    let created = match created {
        Ok(row) => return Ok(Some(super::inspect::known(&row, 0)?)),
        Err(error) if code(&error) == Some("57014") && server.in_recovery => {
            Err(StandbyError::AwaitsSnapshot { slot: slot.to_owned() }.into())
        }
        Err(error) if code(&error) == Some("57014") => Err(slot_blocked(client, slot).await?),
        Err(error) if code(&error) == Some("53400") => Err(no_free_slot(client, slot).await?),
        Err(error) => Err(error),
    };
    forgive_existing(created, || ControlError::CreationForbidden {
        object: format!("replication slot `{slot}`"),
        needs: "REPLICATION".to_owned(),
        sql: format!(
            "SELECT pg_create_logical_replication_slot({}, 'pgoutput'{failover});",
            literal(slot)
        ),
    })
    .map(|()| None)
}

fn forgive_existing(
    created: Result<(), ControlError>,
    forbidden: impl FnOnce() -> ControlError,
) -> Result<(), ControlError> {
    match created {
        // duplicate_object, or the catalog's unique index.
        Err(error) if matches!(code(&error), Some("42710" | "23505")) => Ok(()),
        Err(error) if error.class() == Class::Permission => Err(forbidden()),
        other => other,
    }
}

fn code(error: &ControlError) -> Option<&str> {
    match error {
        ControlError::Connection { source: WalError::Server(server), .. } => Some(&server.code),
        _ => None,
    }
}

pub async fn no_free_slot(client: &Client, slot: &str) -> Result<ControlError, ControlError> {
    const SQL: &str = "SELECT pg_catalog.current_setting('max_replication_slots')::bigint";
    let row = client.run("counting replication slots", client.sql().query_one(SQL, &[])).await?;
    let limit = super::inspect::get(&row, 0)?;
    Ok(ControlError::NoFreeSlot { slot: slot.to_owned(), limit })
}

/// Locks are visible to every role, activity only to some.
pub async fn slot_blocked(client: &Client, slot: &str) -> Result<ControlError, ControlError> {
    const SQL: &str = "\
        SELECT l.pid, CASE WHEN l.pid IS NULL \
                THEN format('prepared transaction %L since %s', x.gid, x.prepared::timestamptz(0)) \
                ELSE concat_ws(', ', 'process ' || l.pid, nullif(a.application_name, ''), a.state, \
                    'since ' || a.xact_start::timestamptz(0)) END \
        FROM pg_catalog.pg_locks l \
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
        LEFT JOIN pg_catalog.pg_prepared_xacts x ON l.pid IS NULL AND x.transaction = l.transactionid \
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted \
            AND l.pid IS DISTINCT FROM pg_backend_pid() \
        ORDER BY a.xact_start NULLS FIRST LIMIT $1";
    const DOING: &str = "looking for open transactions";
    let rows = client.run(DOING, client.sql().query(SQL, &[&BLOCKERS_MAX])).await?;
    let mut pid = None;
    let mut blockers = Vec::new();
    for row in &rows {
        pid = pid.or(super::inspect::get::<Option<i32>>(row, 0)?);
        blockers.push(super::inspect::get::<String>(row, 1)?);
    }
    if blockers.is_empty() {
        blockers.push("it has already ended".to_owned());
    }
    Ok(ControlError::SlotBlocked { slot: slot.to_owned(), blockers, pid })
}
