//! Reads the server facts that `postrider doctor` judges beyond an
//! [`Inspection`](super::Inspection).
//!
//! Invariant: only catalogs and statistics are read; a value that the role may not see is `None`.
//! PostgreSQL 12 to 18: columns and settings that a version lacks are read through `to_jsonb` and
//! `pg_settings`.

use tokio_postgres::types::ToSql;

use super::connect::Client;
use super::error::ControlError;
use super::inspect::{Requirements, get};
use postrider_core::outbox::TableName;

const DOING: &str = "looking at the server's health";

const NAMED_MAX: i64 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthFacts {
    pub limits: ServerLimits,
    /// Open transactions that have written, oldest first, keep the slot from releasing WAL.
    pub writers: Vec<OpenTransaction>,
    pub prepared: Vec<OpenTransaction>,
    /// Other slots without a reader, by retained WAL in descending order.
    pub idle_slots: Vec<IdleSlot>,
    pub slot: Option<SlotHealth>,
    /// Tables in the order of [`Requirements::tables`]; `None` for a missing or locked table.
    pub tables: Vec<Option<TableHealth>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Microseconds since the Unix epoch.
    pub now_us: i64,
    pub is_encrypted: Option<bool>,
    /// `max_replication_slots`, and number of slots.
    pub slots: (i64, i64),
    /// `max_wal_senders`, and number in use.
    pub senders: (i64, i64),
    /// `max_slot_wal_keep_size`; -1 is no limit; `None` before version 13.
    pub slot_keep_mib: Option<i64>,
    /// `idle_replication_slot_timeout`, if set (18 and later).
    pub idle_slot_timeout: Option<String>,
    /// `max_wal_size`: most WAL between two checkpoints.
    pub wal_max_mib: i64,
    /// Number without logical readers and backup programs.
    pub standbys: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    pub name: String,
    pub end_sql: String,
    /// `None` if not visible.
    pub seconds: Option<i64>,
}

/// Statement that ends a transaction; both alternatives for a prepared one.
pub fn how_to_end(end_sql: &str) -> String {
    end_sql.strip_prefix("COMMIT").map_or_else(
        || end_sql.to_owned(),
        |named| format!("to keep what it wrote: {end_sql} to discard it: ROLLBACK{named}"),
    )
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleSlot {
    pub name: String,
    /// Type, plugin and database; from 17 on also since when it has no reader.
    pub kind: String,
    pub retained_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHealth {
    pub retained_bytes: i64,
    pub lag_bytes: i64,
    /// Bytes until the slot is lost; `None` without a limit.
    pub safe_bytes: Option<i64>,
    pub is_lost: bool,
    /// Age in transactions of the catalog rows that the slot retains.
    pub catalog_age: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableHealth {
    /// True if the role may read the rows, as `backfill`, `replay`, `verify` and `prune` do.
    pub may_read: bool,
    pub hides_rows: bool,
    /// Size with indexes, out-of-line values and partitions.
    pub bytes: i64,
    /// Rows by statistics.
    pub live: i64,
    /// Rows by statistics.
    pub dead: i64,
}

const LOOK_SQL: &str = "SET lock_timeout = '1s'; SET statement_timeout = '5s'";

/// Statements of this session then fail rather than wait for a table lock.
pub async fn limit_waits(client: &Client) -> Result<(), ControlError> {
    client.run(DOING, client.sql().batch_execute(LOOK_SQL)).await
}

impl ControlError {
    /// lock_not_available, query_canceled.
    pub fn is_waited_out(&self) -> bool {
        self.is_of(&["55P03", "57014"])
    }
}

pub async fn health(client: &Client, wanted: &Requirements) -> Result<HealthFacts, ControlError> {
    let mut tables = Vec::new();
    for name in &wanted.tables {
        tables.push(match table(client, name).await {
            Err(error) if error.is_waited_out() => None,
            found => found?,
        });
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
            (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_wal_size'), \
            (SELECT count(*) FROM pg_catalog.pg_stat_replication r \
                WHERE coalesce(r.state, 'streaming') NOT IN ('startup', 'backup') \
                AND coalesce(r.application_name, '') NOT IN ('pg_receivewal', 'pg_basebackup') \
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s \
                    WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    Ok(ServerLimits {
        now_us: get(&row, 0)?,
        is_encrypted: get(&row, 1)?,
        slots: (get(&row, 2)?, get(&row, 3)?),
        senders: (get(&row, 4)?, get(&row, 5)?),
        slot_keep_mib: get(&row, 6)?,
        idle_slot_timeout: get(&row, 7)?,
        wal_max_mib: get(&row, 8)?,
        standbys: get(&row, 9)?,
    })
}

/// Locks are visible to every role, activity only to some.
async fn writers(client: &Client) -> Result<Vec<OpenTransaction>, ControlError> {
    // A subtransaction has its own lock.
    const SQL: &str = "\
        SELECT w.name, w.end_sql, w.seconds FROM ( \
            SELECT DISTINCT ON (l.pid) \
                concat_ws(', ', 'process ' || l.pid, nullif(a.application_name, ''), \
                    'role ' || a.usename, 'database ' || a.datname, a.state) AS name, \
                format('SELECT pg_terminate_backend(%s);', l.pid) AS end_sql, \
                extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds \
            FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
            WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted \
                AND l.pid <> pg_backend_pid() \
            ORDER BY l.pid) w \
        ORDER BY w.seconds DESC NULLS LAST LIMIT $1";
    transactions(client, SQL).await
}

async fn prepared(client: &Client) -> Result<Vec<OpenTransaction>, ControlError> {
    const SQL: &str = "\
        SELECT format('prepared transaction %L of database `%s`', gid, database), \
            format('COMMIT PREPARED %L;', gid), \
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

/// End of the log; on a standby, of the replayed log.
const LOG_END: &str =
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END";

async fn idle_slots(client: &Client, slot: &str) -> Result<Vec<IdleSlot>, ControlError> {
    let sql = format!(
        "SELECT slot_name::text, pg_wal_lsn_diff({LOG_END}, restart_lsn)::bigint, \
             concat_ws(', ', slot_type, plugin, 'database ' || database, \
                 'unread since ' || left(to_jsonb(s)->>'inactive_since', 19)) \
         FROM pg_catalog.pg_replication_slots s \
         WHERE NOT active AND restart_lsn IS NOT NULL AND slot_name <> $1::text \
         ORDER BY 2 DESC NULLS LAST LIMIT $2"
    );
    let rows = client.run(DOING, client.sql().query(&sql, &[&slot, &NAMED_MAX])).await?;
    let one = |row| {
        let retained: Option<i64> = get(row, 1)?;
        let retained_bytes = retained.unwrap_or(0);
        Ok(IdleSlot { name: get(row, 0)?, kind: get(row, 2)?, retained_bytes })
    };
    rows.iter().map(one).collect()
}

async fn slot(client: &Client, slot: &str) -> Result<Option<SlotHealth>, ControlError> {
    let sql = format!(
        "SELECT coalesce(pg_wal_lsn_diff({LOG_END}, restart_lsn), 0)::bigint, \
             coalesce(pg_wal_lsn_diff({LOG_END}, confirmed_flush_lsn), 0)::bigint, \
             (to_jsonb(s)->>'safe_wal_size')::bigint, \
             coalesce(to_jsonb(s)->>'wal_status' = 'lost', false) \
                 OR to_jsonb(s)->>'invalidation_reason' IS NOT NULL, \
             age(catalog_xmin)::bigint \
         FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1::text"
    );
    let row = client.run(DOING, client.sql().query_opt(&sql, &[&slot])).await?;
    row.map(|row| {
        Ok(SlotHealth {
            retained_bytes: get(&row, 0)?,
            lag_bytes: get(&row, 1)?,
            safe_bytes: get(&row, 2)?,
            is_lost: get(&row, 3)?,
            catalog_age: get(&row, 4)?,
        })
    })
    .transpose()
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
                JOIN pg_catalog.pg_stat_all_tables t ON t.relid = part.oid) \
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
        })
    })
    .transpose()
}

/// Sessions that hold or await an exclusive lock, and so block others.
pub async fn table_locks(
    client: &Client,
    tables: &[TableName],
) -> Result<Vec<OpenTransaction>, ControlError> {
    const SQL: &str = "\
        WITH RECURSIVE part (oid, shown) AS ( \
            SELECT c.oid, n.nspname || '.' || c.relname \
                FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                JOIN unnest($1::text[], $2::text[]) AS w (schema, name) \
                    ON w.schema = n.nspname AND w.name = c.relname \
            UNION SELECT i.inhrelid, part.shown FROM pg_catalog.pg_inherits i JOIN part ON i.inhparent = part.oid) \
        SELECT w.name, w.end_sql, w.seconds FROM ( \
            SELECT DISTINCT ON (l.pid) \
                concat_ws(', ', 'process ' || l.pid, nullif(a.application_name, ''), 'role ' || a.usename, a.state) \
                    || CASE WHEN l.granted THEN ' locks ' ELSE ' waits to lock ' END || part.shown AS name, \
                format('SELECT pg_terminate_backend(%s);', l.pid) AS end_sql, \
                extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds, l.granted \
            FROM pg_catalog.pg_locks l JOIN part ON part.oid = l.relation \
            LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
            WHERE l.mode = 'AccessExclusiveLock' AND l.pid <> pg_backend_pid() \
                AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()) \
            ORDER BY l.pid, l.granted DESC) w \
        ORDER BY w.granted DESC, w.seconds DESC NULLS LAST LIMIT $3";
    let (schemas, names): (Vec<_>, Vec<_>) =
        tables.iter().map(|table| (&table.schema, &table.name)).unzip();
    let parameters: [&(dyn ToSql + Sync); 3] = [&schemas, &names, &NAMED_MAX];
    let rows = client.run(DOING, client.sql().query(SQL, &parameters)).await?;
    let one = |row| {
        Ok(OpenTransaction { name: get(row, 0)?, end_sql: get(row, 1)?, seconds: get(row, 2)? })
    };
    rows.iter().map(one).collect()
}
