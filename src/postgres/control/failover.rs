//! Reads whether the slot outlives the loss of its server (PostgreSQL 17 and later).
//!
//! Invariant: nothing is written; `primary_conninfo`, which may contain a password, does not leave
//! its server; a value that the role may not see is `None`.

mod findings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::connect::{Client, connect};
use super::error::ControlError;
use super::inspect::get;
use crate::libpq::{ConnectInfo, Endpoint, TargetSessionAttrs};

pub use findings::{FailoverAbout, FailoverFinding, FailoverFix};

const DOING: &str = "looking at what a failover needs";
/// Time limit per further host.
const HOST_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailoverFacts {
    pub slot: String,
    /// True if the primary was reached; otherwise nothing is judged.
    pub has_primary: bool,
    /// True if standbys copy the slot; `None` without a slot.
    pub follows: Option<bool>,
    /// `synchronized_standby_slots`.
    pub awaited: Vec<AwaitedSlot>,
    pub streaming: Vec<StreamingStandby>,
    pub standbys: Vec<StandbyFacts>,
    /// Hosts with the reason.
    pub unreached: Vec<(String, String)>,
}

/// A physical slot for which readers of logical slots wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedSlot {
    pub name: String,
    pub exists: bool,
    pub is_read: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamingStandby {
    pub name: String,
    pub slot: Option<String>,
    /// `None` if not visible.
    pub seconds: Option<i64>,
    /// The standby reports the rows that it still needs.
    pub has_feedback: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyFacts {
    pub endpoint: String,
    pub syncs_slots: bool,
    pub receives: bool,
    pub feedback: bool,
    /// Empty: not set.
    pub slot_name: String,
    /// `primary_conninfo`; `None` if not visible.
    pub names_database: Option<bool>,
    pub wal_level: String,
    /// Slot of the standby with the relay's slot name.
    pub copy: Option<SlotCopy>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCopy {
    pub synced: bool,
    /// The copy disappears when the standby is promoted.
    pub temporary: bool,
    pub invalidation: Option<String>,
}

pub async fn failover_of_server(
    client: &Client,
    slot: &str,
) -> Result<FailoverFacts, ControlError> {
    let mut facts = FailoverFacts { slot: slot.to_owned(), ..FailoverFacts::default() };
    add(client, &mut facts).await?;
    Ok(facts)
}

/// Postgres withholds changes while a standby in `synchronized_standby_slots` is away.
pub async fn waits_for_standby(client: &Client, slot: &str) -> Result<bool, ControlError> {
    const SQL: &str = "\
        SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN false ELSE EXISTS (SELECT \
            FROM pg_catalog.pg_replication_slots f, unnest(string_to_array( \
                current_setting('synchronized_standby_slots', true), ',')) AS n (name) \
            LEFT JOIN pg_catalog.pg_replication_slots s \
                ON s.slot_name = trim(both ' \"' from n.name) AND s.slot_type = 'physical' \
            WHERE f.slot_name = $1::text AND (to_jsonb(f)->>'failover')::bool AND trim(n.name) <> '' \
                AND NOT coalesce(s.active, false) \
                AND coalesce(s.restart_lsn, '0/0') < pg_catalog.pg_current_wal_flush_lsn() \
                AND f.confirmed_flush_lsn < pg_catalog.pg_current_wal_flush_lsn()) END";
    let row = client.run(DOING, client.sql().query_one(SQL, &[&slot])).await?;
    get(&row, 0)
}

/// Includes the connection string's other hosts.
pub async fn failover(
    client: &Client,
    info: &ConnectInfo,
    slot: &str,
) -> Result<FailoverFacts, ControlError> {
    let mut facts = failover_of_server(client, slot).await?;
    for endpoint in info.endpoints.iter().filter(|endpoint| !is_reached(client, endpoint)) {
        let mut one = info.clone();
        one.endpoints = vec![endpoint.clone()];
        one.target_session_attrs = TargetSessionAttrs::Any;
        one.connect_timeout =
            Some(one.connect_timeout.map_or(HOST_LIMIT, |limit| limit.min(HOST_LIMIT)));
        let looked = async {
            let client = connect(&one).await?;
            add(&client, &mut facts).await
        };
        if let Err(error) = looked.await {
            facts.unreached.push((endpoint.to_string(), error.to_string()));
        }
    }
    Ok(facts)
}

fn is_reached(client: &Client, endpoint: &Endpoint) -> bool {
    client.server().endpoints.iter().any(|reached| reached.to_string() == endpoint.to_string())
}

async fn add(client: &Client, facts: &mut FailoverFacts) -> Result<(), ControlError> {
    const SQL: &str = "SELECT pg_catalog.pg_is_in_recovery()";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    if get(&row, 0)? {
        facts.standbys.push(standby(client, &facts.slot).await?);
        return Ok(());
    }
    facts.has_primary = true;
    facts.follows = follows(client, &facts.slot).await?;
    facts.awaited = awaited(client).await?;
    facts.streaming = streaming(client).await?;
    Ok(())
}

async fn follows(client: &Client, slot: &str) -> Result<Option<bool>, ControlError> {
    const SQL: &str = "SELECT coalesce((to_jsonb(s)->>'failover')::bool, false) \
        FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1::text";
    let row = client.run(DOING, client.sql().query_opt(SQL, &[&slot])).await?;
    row.map(|row| get(&row, 0)).transpose()
}

async fn awaited(client: &Client) -> Result<Vec<AwaitedSlot>, ControlError> {
    const SQL: &str = "\
        SELECT n.name, s.slot_name IS NOT NULL, coalesce(s.active, false) \
        FROM (SELECT trim(both ' \"' from name) AS name, place FROM unnest(string_to_array( \
            current_setting('synchronized_standby_slots', true), ',')) WITH ORDINALITY AS u (name, place)) n \
        LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = n.name AND s.slot_type = 'physical' \
        WHERE n.name <> '' ORDER BY n.place";
    let rows = client.run(DOING, client.sql().query(SQL, &[])).await?;
    let one =
        |row| Ok(AwaitedSlot { name: get(row, 0)?, exists: get(row, 1)?, is_read: get(row, 2)? });
    rows.iter().map(one).collect()
}

async fn streaming(client: &Client) -> Result<Vec<StreamingStandby>, ControlError> {
    const SQL: &str = "\
        SELECT coalesce(nullif(r.application_name, ''), 'process ' || r.pid), s.slot_name::text, \
            extract(epoch FROM clock_timestamp() - r.backend_start)::bigint, \
            s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL OR r.backend_xmin IS NOT NULL \
        FROM pg_catalog.pg_stat_replication r \
        LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid \
        WHERE coalesce(r.state, 'streaming') NOT IN ('startup', 'backup') \
            AND coalesce(r.application_name, '') NOT IN ('pg_receivewal', 'pg_basebackup') \
            AND s.slot_type IS DISTINCT FROM 'logical' \
        ORDER BY 1, 2";
    let rows = client.run(DOING, client.sql().query(SQL, &[])).await?;
    let one = |row| {
        Ok(StreamingStandby {
            name: get(row, 0)?,
            slot: get(row, 1)?,
            seconds: get(row, 2)?,
            has_feedback: get(row, 3)?,
        })
    };
    rows.iter().map(one).collect()
}

async fn standby(client: &Client, slot: &str) -> Result<StandbyFacts, ControlError> {
    // The setting has no row for a role that may not see it.
    const SQL: &str = "\
        SELECT coalesce(current_setting('sync_replication_slots', true)::bool, false), \
            current_setting('hot_standby_feedback')::bool, \
            coalesce(current_setting('primary_slot_name', true), ''), \
            (SELECT setting ~ '(^|\\s)dbname\\s*=\\s*[^\\s]' OR setting ~ '^postgres(ql)?://[^/]*/[^?]' \
                    OR setting ~ '^postgres.*[?&]dbname=[^&]' \
                FROM pg_catalog.pg_settings WHERE name = 'primary_conninfo'), \
            current_setting('wal_level'), EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver)";
    const COPY: &str = "\
        SELECT coalesce((to_jsonb(s)->>'synced')::bool, false), temporary, \
            to_jsonb(s)->>'invalidation_reason' \
        FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1::text";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    let copy = client.run(DOING, client.sql().query_opt(COPY, &[&slot])).await?;
    let copy = copy.map(|row| {
        Ok::<_, ControlError>(SlotCopy {
            synced: get(&row, 0)?,
            temporary: get(&row, 1)?,
            invalidation: get(&row, 2)?,
        })
    });
    let endpoint = client.server().endpoints.first().map(ToString::to_string);
    Ok(StandbyFacts {
        endpoint: endpoint.unwrap_or_default(),
        syncs_slots: get(&row, 0)?,
        receives: get(&row, 5)?,
        feedback: get(&row, 1)?,
        slot_name: get(&row, 2)?,
        names_database: get(&row, 3)?,
        wal_level: get(&row, 4)?,
        copy: copy.transpose()?,
    })
}
