//! The statement that takes rows of other keys if locked rows come before them.
//!
//! Output: SQL with the usual statement's rows, and one row that represents all held-back rows.
//! Invariant: the statement locks and reads only the taken rows and some behind them. A row behind
//! a locked row of its key waits (G2). No part of the work grows faster than the window.

use super::request::{PollTable, known_by};
use super::schedule::Reach;
use crate::wal::quote::identifier;

impl PollTable {
    /// The first waiting row of each key is locked first; if that fails, no row of the key is
    /// taken. A row with a running transaction's number is not tried. A number of several
    /// transactions is ambiguous, so a row with one is tried. Joins of `pending` with itself are
    /// window functions and hashed IN, because a planner without statistics would compare each row
    /// with each.
    pub(super) fn rows_past_locked(&self, Reach { rows: limit, window }: Reach) -> String {
        let Self { rows, order, created_at, .. } = self;
        let (waits, key) = (self.waits(), self.key.as_deref().unwrap_or("''"));
        let columns = self.columns.iter().map(|column| format!(", t.{}", identifier(&column.name)));
        let columns: String = columns.collect();
        let own = "PARTITION BY w.own_key ORDER BY w.n";
        let first_held = known_by("w");
        let lies_there = "t.ctid = p.place AND t.tableoid = p.part";
        format!(
            "WITH pending AS MATERIALIZED (\
                 SELECT w.*, w.own_key IS NULL OR pg_catalog.row_number() OVER ({own}) = 1 AS is_first FROM (\
                     SELECT pg_catalog.row_number() OVER () AS n, r.* FROM (\
                         SELECT t.tableoid AS part, t.ctid AS place, {key} AS own_key, t.xmax = ANY (ARRAY(\
                             SELECT l.transactionid FROM pg_catalog.pg_locks AS l \
                             WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock')) AS is_locked \
                         FROM {rows} AS t WHERE {waits} ORDER BY {order} LIMIT {window}) AS r) AS w), \
             first AS MATERIALIZED (\
                 SELECT p.n, p.own_key FROM {rows} AS t \
                 JOIN (SELECT * FROM pending AS p WHERE p.is_first AND NOT p.is_locked) AS p ON {lies_there} \
                 ORDER BY p.n LIMIT {limit} FOR UPDATE OF t SKIP LOCKED), \
             behind AS MATERIALIZED (\
                 SELECT w.* FROM pending AS w \
                 WHERE NOT w.is_first AND (w.own_key IN (SELECT f.own_key FROM first AS f)) IS TRUE), \
             follow AS MATERIALIZED (\
                 SELECT p.n FROM {rows} AS t JOIN behind AS p ON {lies_there} \
                 ORDER BY p.n LIMIT {limit} FOR UPDATE OF t SKIP LOCKED), \
             taken AS MATERIALIZED (\
                 SELECT c.n, c.part, c.place FROM (\
                     SELECT p.n, p.part, p.place, true AS is_free FROM pending AS p \
                     WHERE (p.n IN (SELECT f.n FROM first AS f)) IS TRUE \
                     UNION ALL \
                     SELECT w.n, w.part, w.place, pg_catalog.bool_and(w.n IN (SELECT f.n FROM follow AS f)) OVER ({own}) \
                     FROM behind AS w) AS c \
                 WHERE c.is_free ORDER BY c.n LIMIT {limit}), \
             told AS (SELECT * FROM taken UNION ALL SELECT 0, NULL, NULL) \
             SELECT t.ctid, coalesce(t.tableoid, (SELECT {first_held} FROM (\
                     SELECT w.part, w.place FROM pending AS w \
                     WHERE (w.n IN (SELECT k.n FROM taken AS k)) IS NOT TRUE ORDER BY w.n LIMIT 1) AS w), 0), CASE WHEN p.n > 0 THEN {created_at} ELSE \
                 (SELECT pg_catalog.count(*) FROM pending AS w WHERE w.n <= (\
                     SELECT CASE pg_catalog.count(*) WHEN {limit} THEN pg_catalog.max(k.n) ELSE {window} END \
                     FROM taken AS k)) - (SELECT pg_catalog.count(*) FROM taken) END{columns} \
             FROM told AS p LEFT JOIN {rows} AS t ON {lies_there} ORDER BY p.n"
        )
    }
}
