//! Finds rows that have waited long for a lock, its holder, and the relay for which `run --once`
//! waits.
//!
//! Invariant: a briefly held lock causes no query. The query runs between two batches with a time
//! limit, and its failure does not end the session. Data that the role may not see is omitted. Rows
//! that are locked briefly in turn do not count.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::PollStream;
use super::request::PollTable;
use crate::control::how_to_end;
use crate::wal::connection::TextRow;
use crate::wal::{Transport, WalError};

/// A transaction that locks an outbox row this long was forgotten, or is stuck.
const LONG: Duration = Duration::from_secs(10);
/// Rows among which the locked one is searched: 60 ms (PostgreSQL 15, all in memory).
const LOOKED_AT: u32 = 100_000;
/// Limit for the search, during which delivery waits: fifty times its duration in memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Pause after a failed search, which then costs a twentieth of the time.
const REST_AFTER_FAILURE: Duration = Duration::from_mins(1);
/// First rows that are remembered: polls of other parts find other locked rows in turn.
const FIRSTS: usize = 8;

pub type OwnProcesses = Arc<Mutex<BTreeSet<u64>>>;

#[derive(Debug, Default)]
pub(super) enum OtherRelay {
    #[default]
    Unseen,
    Seen(String),
    Named,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// A server process with application, role and state, or a prepared transaction.
    pub name: String,
    pub seconds: Option<u64>,
    pub end_sql: String,
    /// False if it is only the oldest transaction that may have locked rows of the table.
    pub is_certain: bool,
}

/// Rows that wait because they, or earlier rows of their keys, are locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedRows {
    pub table: String,
    /// The first polls after a start may have seen only some of the rows.
    pub rows: u32,
    pub seconds: u64,
    pub holder: Option<LockHolder>,
}

impl fmt::Display for LockedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, rows, seconds, holder } = self;
        write!(f, "{rows} rows of table {table} have waited {seconds} s for a row lock")?;
        match holder {
            None => f.write_str(", and the server does not report the session that holds it"),
            Some(LockHolder { name, seconds, is_certain, .. }) => {
                let held = if *is_certain { " of" } else { ", which may be held by" };
                write!(f, "{held} {name}")?;
                seconds.map_or(Ok(()), |open| {
                    write!(f, ", whose transaction has been open for {open} s")
                })
            }
        }
    }
}

impl LockedRows {
    pub fn help(&self) -> String {
        let unknown = "SELECT pid, application_name, state, xact_start FROM pg_stat_activity WHERE xact_start IS NOT \
                       NULL ORDER BY xact_start; SELECT gid, prepared FROM pg_prepared_xacts;";
        let certain = self.holder.as_ref().filter(|holder| holder.is_certain);
        certain.map_or_else(|| unknown.to_owned(), |holder| how_to_end(&holder.end_sql))
    }
}

#[derive(Debug)]
struct Held {
    rows: u32,
    /// First rows with the times of first and last sight; the latest comes first.
    firsts: Vec<(u32, Instant, Instant)>,
    rested: Instant,
    told: Option<Arc<LockedRows>>,
}

impl Held {
    fn waited(&self) -> Option<Duration> {
        let waited = self.firsts.iter().map(|(_, first, last)| last.duration_since(*first)).max();
        waited.filter(|waited| *waited >= LONG)
    }
}

#[derive(Debug)]
pub(super) struct LockWatch(Vec<Option<Held>>);

impl LockWatch {
    pub(super) fn of(tables: usize) -> Self {
        Self(std::iter::repeat_with(|| None).take(tables).collect())
    }

    pub(super) fn found(&mut self, table: usize, (rows, first): (u32, u32), now: Instant) {
        let Some(held) = self.0.get_mut(table) else { unreachable!("table {table} was polled") };
        if rows == 0 {
            *held = None;
            return;
        }
        let fresh = || Held { rows, firsts: Vec::new(), rested: now, told: None };
        let held = held.get_or_insert_with(fresh);
        held.rows = rows;
        let known = held.firsts.iter().position(|(row, ..)| *row == first);
        let since = known.map_or(now, |known| held.firsts.remove(known).1);
        held.firsts.insert(0, (first, since, now));
        held.firsts.truncate(FIRSTS);
        if held.waited().is_none() {
            held.told = None;
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due(now).is_some()
    }

    fn due(&self, now: Instant) -> Option<usize> {
        let is_due = |held: &Held| now >= held.rested && held.waited().is_some();
        self.0.iter().position(|held| held.as_ref().is_some_and(is_due))
    }

    pub(super) fn worst(&self) -> Option<Arc<LockedRows>> {
        let told = self.0.iter().flatten().filter_map(|held| held.told.as_ref());
        told.max_by_key(|told| told.seconds).cloned()
    }
}

impl<T: Transport> PollStream<T> {
    /// Searches for the holder, which stays unknown after an error or a timeout.
    pub(super) fn look_for_locks(&mut self, now: Instant) -> Result<(), WalError> {
        let Some(number) = self.locks.due(now) else { return Ok(()) };
        let Some(table) = self.tables.get(number) else { unreachable!("a table is polled") };
        let (name, sql) = (table.table.to_string(), table.holder());
        // A transaction, with which the limit ends.
        let sql = format!("SET LOCAL statement_timeout = {}; {sql}", ANSWER_LIMIT.as_millis());
        let (holder, rest) = match self.connection.query_in_own_encoding(&sql) {
            Ok(rows) => (rows.into_iter().next().and_then(holder), LONG),
            Err(WalError::Server(_)) => (None, REST_AFTER_FAILURE),
            Err(error) => return Err(error),
        };
        let Some(Some(held)) = self.locks.0.get_mut(number) else { return Ok(()) };
        held.rested = Instant::now() + rest;
        let seconds = held.waited().unwrap_or_default().as_secs();
        held.told = Some(Arc::new(LockedRows { table: name, rows: held.rows, seconds, holder }));
        Ok(())
    }

    /// Two checks must find the relay, because a batch may be about to end.
    pub(super) fn look_for_relay(&mut self) -> Result<(), WalError> {
        let row = match self.connection.query_in_own_encoding(&self.other_relay_sql()) {
            Ok(rows) => rows.into_iter().next(),
            Err(WalError::Server(_)) => None,
            Err(error) => return Err(error),
        };
        self.other_relay = match (row.as_deref(), &self.other_relay) {
            (Some([Some(pid), Some(holder)]), OtherRelay::Seen(seen)) if pid == seen => {
                tracing::info!(
                    holder,
                    "waiting for another relay that delivers from the same tables"
                );
                OtherRelay::Named
            }
            (Some([Some(pid), _]), _) => OtherRelay::Seen(pid.clone()),
            _ => OtherRelay::Unseen,
        };
        Ok(())
    }

    fn other_relay_sql(&self) -> String {
        let classes =
            self.tables.iter().map(|table| table.lock_class().cast_unsigned().to_string());
        let classes = classes.collect::<Vec<_>>().join(", ");
        let own = self.own_processes.lock().unwrap_or_else(PoisonError::into_inner);
        let own = own.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        format!(
            "SELECT l.pid, pg_catalog.concat_ws(', ', 'process ' || l.pid, \
                 'application ' || nullif(a.application_name, ''), 'role ' || a.usename, 'host ' || a.client_addr) \
             FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid \
             WHERE l.locktype = 'advisory' AND l.granted AND l.classid IN ({classes}) AND l.pid NOT IN ({own}) \
                 AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d \
                     WHERE d.datname = pg_catalog.current_database()) \
             ORDER BY a.xact_start LIMIT 1"
        )
    }
}

fn holder(row: TextRow) -> Option<LockHolder> {
    let [Some(name), seconds, Some(end_sql), certain] = <[_; 4]>::try_from(row).ok()? else {
        return None;
    };
    let seconds = seconds.and_then(|text| text.parse().ok());
    Some(LockHolder { name, seconds, end_sql, is_certain: certain.as_deref() == Some("t") })
}

impl PollTable {
    /// The transaction that a row carries, or the oldest that may have locked rows of the table.
    /// Other relays do not count.
    fn holder(&self) -> String {
        let Self { rows, pending, order, table_oid, .. } = self;
        let class = self.lock_class().cast_unsigned();
        format!(
            "WITH waiting AS MATERIALIZED (\
                 SELECT DISTINCT r.xmax FROM (\
                     SELECT t.xmax FROM {rows} AS t WHERE {pending} ORDER BY {order} LIMIT {LOOKED_AT}) AS r), \
             granted AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks AS l WHERE l.granted), \
             number AS (\
                 SELECT l.virtualtransaction, l.transactionid FROM granted AS l \
                 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'), \
             holder AS (\
                 SELECT l.pid, l.virtualtransaction, 0 AS rank FROM granted AS l \
                 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' \
                     AND l.transactionid IN (SELECT w.xmax FROM waiting AS w) \
                 UNION ALL \
                 SELECT l.pid, l.virtualtransaction, 1 FROM granted AS l \
                 WHERE l.locktype = 'relation' AND l.mode IN ('RowShareLock', 'RowExclusiveLock') \
                     AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d \
                         WHERE d.datname = pg_catalog.current_database()) \
                     AND (l.relation = {table_oid} OR l.relation IN (\
                         SELECT part.relid FROM pg_catalog.pg_partition_tree({table_oid}) AS part))) \
             SELECT CASE WHEN h.pid IS NULL THEN pg_catalog.concat_ws(', ', \
                     pg_catalog.format('prepared transaction `%s`', p.gid), 'role ' || p.owner) \
                 ELSE pg_catalog.concat_ws(', ', 'process ' || h.pid, 'application ' || nullif(a.application_name, ''), \
                     'role ' || a.usename, a.state) END, \
                 extract(epoch FROM pg_catalog.clock_timestamp() - coalesce(a.xact_start, p.prepared))::bigint, \
                 CASE WHEN h.pid IS NULL THEN pg_catalog.format('COMMIT PREPARED %L;', p.gid) \
                 ELSE pg_catalog.format('SELECT pg_terminate_backend(%s);', h.pid) END, h.rank = 0 \
             FROM holder AS h LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = h.pid \
             LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction IN (\
                 SELECT x.transactionid FROM number AS x WHERE x.virtualtransaction = h.virtualtransaction) \
             WHERE h.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND (h.pid IS NOT NULL OR p.gid IS NOT NULL) \
                 AND NOT EXISTS (SELECT FROM granted AS o WHERE o.locktype = 'advisory' AND o.classid = {class} \
                     AND o.virtualtransaction = h.virtualtransaction) \
             ORDER BY h.rank, coalesce(a.xact_start, p.prepared) NULLS LAST LIMIT 1"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_soon_released_costs_no_question() {
        let now = Instant::now();
        let mut watch = LockWatch::of(2);
        watch.found(0, (3, 7), now);
        watch.found(1, (0, 0), now);
        watch.found(0, (5, 7), now + LONG / 2);
        assert!(!watch.is_due(now + LONG / 2));
        watch.found(0, (5, 7), now + LONG);
        assert!(watch.is_due(now + LONG), "it is the same wait");
        watch.found(0, (0, 0), now + LONG);
        watch.found(0, (1, 7), now + LONG);
        assert!(!watch.is_due(now + LONG), "a new one");
    }

    #[test]
    fn briefly_locked_rows_do_not_count_as_a_long_wait() {
        let now = Instant::now();
        let mut watch = LockWatch::of(1);
        for second in 0..100 {
            watch.found(0, (1, second), now + Duration::from_secs(second.into()));
            assert!(!watch.is_due(now + LONG * 100));
        }
        // Polls of some and of all parts find different first rows.
        for second in 100..111 {
            watch.found(0, (1, second % 2), now + Duration::from_secs(second.into()));
        }
        assert!(watch.is_due(now + LONG * 100), "two rows wait for long");
    }

    #[test]
    fn the_holder_is_named_with_the_statement_that_ends_it() {
        let text = |text: &str| Some(text.to_owned());
        let row = |certain| {
            let (name, end) = ("process 7, application psql", "SELECT 1;");
            holder(vec![text(name), text("96"), text(end), text(certain)])
        };
        let table = "public.outbox".to_owned();
        let locked = LockedRows { table, rows: 3, seconds: 12, holder: row("t") };
        let said = "3 rows of table public.outbox have waited 12 s for a row lock of process 7, application psql, whose \
                    transaction has been open for 96 s";
        assert_eq!((locked.to_string().as_str(), locked.help().as_str()), (said, "SELECT 1;"));
        let inferred = LockedRows { holder: row("f"), ..locked.clone() };
        assert!(
            inferred.to_string().contains("lock, which may be held by process 7"),
            "{inferred}"
        );
        assert!(inferred.help().contains("pg_stat_activity"));
        let unknown = LockedRows { holder: holder(vec![None, None, None, None]), ..locked };
        assert!(
            unknown.to_string().ends_with("does not report the session that holds it"),
            "{unknown}"
        );
        assert!(unknown.help().contains("pg_stat_activity"));
    }
}
