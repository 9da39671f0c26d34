//! Reads what `postrider doctor` judges of the server beyond an [`Inspection`](super::Inspection): limits, open
//! transactions, other slots, what the slot retains, how large and how old the outbox is.
//!
//! Input: a [`Client`] and [`Requirements`]. Output: [`HealthFacts`], facts only. Invariant: only catalogs and
//! statistics are read, no row of a table; what the role may not see is `None` and not a good value. Works on
//! PostgreSQL 12 to 18: columns and settings that a version lacks are read through `to_jsonb` and `pg_settings`.

use tokio_postgres::types::ToSql;

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{Requirements, get};
use postrider_core::outbox::TableName;

const DOING: &str = "looking at the server's health";

/// The first server version with statistics of logical slots.
const SLOT_STATISTICS_SINCE: i32 = 140_000;
/// So many of each are named.
const NAMED_MAX: i64 = 5;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthFacts {
    /// The server and its limits.
    pub limits: ServerLimits,
    /// Open transactions that have written, the oldest first. Any of them keeps the slot from letting WAL go.
    pub writers: Vec<OpenTransaction>,
    /// Prepared transactions, the oldest first.
    pub prepared: Vec<OpenTransaction>,
    /// Slots besides ours that nobody reads, those that retain most first.
    pub idle_slots: Vec<IdleSlot>,
    /// More of ours; `None` if it does not exist.
    pub slot: Option<SlotHealth>,
    /// In the order of [`Requirements::tables`]; `None` where there is no such table.
    pub tables: Vec<Option<TableHealth>>,
}

/// The server and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Its clock, in microseconds since the Unix epoch.
    pub now_us: i64,
    /// Whether our session is encrypted.
    pub is_encrypted: Option<bool>,
    /// `max_replication_slots`, and how many there are.
    pub slots: (i64, i64),
    /// `max_wal_senders`, and how many are in use.
    pub senders: (i64, i64),
    /// `max_slot_wal_keep_size` in MiB; -1 is no limit; `None` before version 13.
    pub slot_keep_mib: Option<i64>,
    /// `idle_replication_slot_timeout` as the server shows it, where it is set (18 and later).
    pub idle_slot_timeout: Option<String>,
    /// `logical_decoding_work_mem` in KiB; `None` before version 13.
    pub decoding_kib: Option<i64>,
    /// Servers that stream from this one, without readers of logical slots.
    pub standbys: i64,
    /// `transaction_timeout` or `idle_in_transaction_session_timeout` bound how long a session holds a transaction.
    pub bounds_idle_transactions: bool,
}

/// A transaction that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// Which, for people.
    pub name: String,
    /// The SQL that ends it.
    pub end_sql: String,
    /// How long it has been open, in seconds; `None` if we may not see it.
    pub seconds: Option<i64>,
}

/// A slot that nobody reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleSlot {
    /// Its name.
    pub name: String,
    /// Bytes of WAL that the server keeps for it.
    pub retained_bytes: i64,
}

/// More of our slot than [`SlotFacts`](super::SlotFacts) has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHealth {
    /// Bytes of WAL that the server keeps for it.
    pub retained_bytes: i64,
    /// Bytes of WAL that are not acknowledged.
    pub lag_bytes: i64,
    /// Bytes that may still be written before it is lost; `None` without a limit.
    pub safe_bytes: Option<i64>,
    /// Whether standbys keep a copy of it (17 and later).
    pub failover: Option<bool>,
    /// Bytes of large transactions that were written to disk while they were decoded (14 and later).
    pub spilled_bytes: Option<i64>,
    /// How many transactions ago the catalog is kept for it.
    pub catalog_age: Option<i64>,
}

/// An outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableHealth {
    /// We may read its rows, which `backfill`, `replay`, `verify` and `prune` do.
    pub may_read: bool,
    /// A policy of row security hides rows from us.
    pub hides_rows: bool,
    /// Bytes with indexes and out-of-line values, partitions included.
    pub bytes: i64,
    /// Rows that are there, as statistics have it.
    pub live: i64,
    /// Rows that are dead and not cleaned up, likewise.
    pub dead: i64,
    /// A trigger that is no constraint runs for each row that is inserted.
    pub has_triggers: bool,
}

/// Looks.
pub async fn health(client: &Client, wanted: &Requirements) -> Result<HealthFacts, ControlError> {
    let mut tables = Vec::new();
    for name in &wanted.tables {
        tables.push(table(client, name).await?);
    }
    Ok(HealthFacts {
        limits: limits(client).await?,
        writers: writers(client).await?,
        prepared: prepared(client).await?,
        idle_slots: idle_slots(client, &wanted.slot).await?,
        slot: slot(client, &wanted.slot).await?,
        tables,
    })
}

async fn limits(client: &Client) -> Result<ServerLimits, ControlError> {
    const SQL: &str = "\
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
            (SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid()), \
            current_setting('max_replication_slots')::bigint, \
            (SELECT count(*) FROM pg_catalog.pg_replication_slots), \
            current_setting('max_wal_senders')::bigint, \
            (SELECT count(*) FROM pg_catalog.pg_stat_replication), \
            (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'), \
            (SELECT current_setting(name) FROM pg_catalog.pg_settings \
                WHERE name = 'idle_replication_slot_timeout' AND setting <> '0'), \
            (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'logical_decoding_work_mem'), \
            (SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE NOT EXISTS ( \
                SELECT FROM pg_catalog.pg_replication_slots s \
                WHERE s.active_pid = r.pid AND s.slot_type = 'logical')), \
            EXISTS (SELECT FROM pg_catalog.pg_settings WHERE setting <> '0' \
                AND name IN ('transaction_timeout', 'idle_in_transaction_session_timeout'))";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    Ok(ServerLimits {
        now_us: get(&row, 0)?,
        is_encrypted: get(&row, 1)?,
        slots: (get(&row, 2)?, get(&row, 3)?),
        senders: (get(&row, 4)?, get(&row, 5)?),
        slot_keep_mib: get(&row, 6)?,
        idle_slot_timeout: get(&row, 7)?,
        decoding_kib: get(&row, 8)?,
        standbys: get(&row, 9)?,
        bounds_idle_transactions: get(&row, 10)?,
    })
}

/// Locks are visible to every role, what their sessions do only to some.
async fn writers(client: &Client) -> Result<Vec<OpenTransaction>, ControlError> {
    const SQL: &str = "\
        SELECT concat_ws(', ', 'process ' || l.pid, nullif(a.application_name, ''), a.state), \
            format('SELECT pg_terminate_backend(%s);', l.pid), \
            extract(epoch FROM clock_timestamp() - a.xact_start)::bigint \
        FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted \
            AND l.pid <> pg_backend_pid() \
        ORDER BY a.xact_start NULLS LAST LIMIT $1";
    transactions(client, SQL).await
}

async fn prepared(client: &Client) -> Result<Vec<OpenTransaction>, ControlError> {
    const SQL: &str = "\
        SELECT format('prepared transaction %L of database `%s`', gid, database), \
            format('ROLLBACK PREPARED %L;', gid), \
            extract(epoch FROM clock_timestamp() - prepared)::bigint \
        FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT $1";
    transactions(client, SQL).await
}

async fn transactions(client: &Client, sql: &str) -> Result<Vec<OpenTransaction>, ControlError> {
    let rows = client.run(DOING, client.sql().query(sql, &[&NAMED_MAX])).await?;
    let transaction = |row| {
        Ok(OpenTransaction { name: get(row, 0)?, end_sql: get(row, 1)?, seconds: get(row, 2)? })
    };
    rows.iter().map(transaction).collect()
}

/// The end of the log, of what was replayed on a standby.
const LOG_END: &str =
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END";

async fn idle_slots(client: &Client, slot: &str) -> Result<Vec<IdleSlot>, ControlError> {
    let sql = format!(
        "SELECT slot_name::text, pg_wal_lsn_diff({LOG_END}, restart_lsn)::bigint \
         FROM pg_catalog.pg_replication_slots \
         WHERE NOT active AND restart_lsn IS NOT NULL AND slot_name <> $1::text \
         ORDER BY 2 DESC NULLS LAST LIMIT $2"
    );
    let rows = client.run(DOING, client.sql().query(&sql, &[&slot, &NAMED_MAX])).await?;
    let one = |row| {
        let retained: Option<i64> = get(row, 1)?;
        Ok(IdleSlot { name: get(row, 0)?, retained_bytes: retained.unwrap_or(0) })
    };
    rows.iter().map(one).collect()
}

async fn slot(client: &Client, slot: &str) -> Result<Option<SlotHealth>, ControlError> {
    const SPILLED: &str = "\
        SELECT spill_bytes FROM pg_catalog.pg_stat_replication_slots WHERE slot_name = $1::text";
    const VERSION: &str = "SELECT current_setting('server_version_num')::int";
    let sql = format!(
        "SELECT coalesce(pg_wal_lsn_diff({LOG_END}, restart_lsn), 0)::bigint, \
             coalesce(pg_wal_lsn_diff({LOG_END}, confirmed_flush_lsn), 0)::bigint, \
             (to_jsonb(s)->>'safe_wal_size')::bigint, (to_jsonb(s)->>'failover')::bool, \
             age(catalog_xmin)::bigint \
         FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1::text"
    );
    let Some(row) = client.run(DOING, client.sql().query_opt(&sql, &[&slot])).await? else {
        return Ok(None);
    };
    let version = client.run(DOING, client.sql().query_one(VERSION, &[])).await?;
    let spilled_bytes = if get::<i32>(&version, 0)? >= SLOT_STATISTICS_SINCE {
        let spilled = client.run(DOING, client.sql().query_opt(SPILLED, &[&slot])).await?;
        spilled.map(|row| get(&row, 0)).transpose()?
    } else {
        None
    };
    Ok(Some(SlotHealth {
        retained_bytes: get(&row, 0)?,
        lag_bytes: get(&row, 1)?,
        safe_bytes: get(&row, 2)?,
        failover: get(&row, 3)?,
        spilled_bytes,
        catalog_age: get(&row, 4)?,
    }))
}

async fn table(client: &Client, name: &TableName) -> Result<Option<TableHealth>, ControlError> {
    const SQL: &str = "\
        WITH RECURSIVE part (oid) AS ( \
            SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                WHERE n.nspname = $1::text AND c.relname = $2::text \
            UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN part ON i.inhparent = part.oid) \
        SELECT has_table_privilege(c.oid, 'SELECT'), \
            row_security_active(c.oid), \
            (SELECT coalesce(sum(pg_total_relation_size(part.oid)), 0)::bigint FROM part), \
            (SELECT coalesce(sum(n_live_tup), 0)::bigint FROM part \
                JOIN pg_catalog.pg_stat_all_tables t ON t.relid = part.oid), \
            (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM part \
                JOIN pg_catalog.pg_stat_all_tables t ON t.relid = part.oid), \
            EXISTS (SELECT FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal \
                AND g.tgenabled <> 'D' AND (g.tgtype & 5) = 5) \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = $1::text AND c.relname = $2::text";
    let names: [&(dyn ToSql + Sync); 2] = [&name.schema, &name.name];
    let row = client.run(DOING, client.sql().query_opt(SQL, &names)).await?;
    row.map(|row| {
        Ok(TableHealth {
            may_read: get(&row, 0)?,
            hides_rows: get(&row, 1)?,
            bytes: get(&row, 2)?,
            live: get(&row, 3)?,
            dead: get(&row, 4)?,
            has_triggers: get(&row, 5)?,
        })
    })
    .transpose()
}
