//! Counts or deletes old rows of one table, page by page from the oldest.
//!
//! Invariant: keyset pagination over age and id visits each row once. A locked row and a row that
//! was not passed stay.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::PruneError;
use super::passed::{Held, Passed};
use super::table::PruneTable;
use crate::control::connect::{Client, sql_error};
use crate::control::error::ControlError;
use crate::control::hint_text::qualified;
use crate::control::inspect::get;
use crate::wal::planned_rows;
use crate::wal::quote::{identifier, literal};

const DOING: &str = "pruning rows";

/// The server reads these printed values as equal. `SQL, DMY` abbreviates time zones, and some are
/// read as another zone.
const READ_AGAIN: &str =
    "SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 3";

#[derive(Debug)]
pub struct Rows<'a> {
    client: &'a Client,
    table: PruneTable,
    cutoff: String,
    passed: &'a Passed,
    batch: i64,
    deletes: bool,
    /// Age and id of the previous page's last row.
    from: Option<(String, String)>,
    /// True after a page that was not full: writers of old-looking rows would otherwise keep the
    /// walk busy forever.
    is_done: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    pub old: u64,
    pub passed: u64,
    /// Deleted rows; the others were locked.
    pub deleted: u64,
    /// Rows held back by each slot, in the order of [`Passed`].
    pub held: Vec<Held>,
}

impl<'a> Rows<'a> {
    pub fn of(
        client: &'a Client,
        table: PruneTable,
        cutoff: &str,
        passed: &'a Passed,
        batch: u32,
    ) -> Self {
        let (cutoff, batch) = (cutoff.to_owned(), i64::from(batch));
        Self { client, table, cutoff, passed, batch, deletes: false, from: None, is_done: false }
    }

    #[must_use]
    pub fn deleting(self) -> Self {
        Self { deletes: true, ..self }
    }

    /// Number of old rows by the server's statistics.
    pub async fn expected(&self) -> Result<u64, PruneError> {
        let PruneTable { name, age, age_type, .. } = &self.table;
        let sql = format!(
            "EXPLAIN SELECT 1 FROM ONLY {} WHERE {} < ({}::text::timestamptz)::{age_type}",
            qualified(name),
            identifier(age),
            literal(&self.cutoff)
        );
        let plan = self.client.run(DOING, self.client.sql().query(&sql, &[])).await?;
        let top = plan.first().map(|row| get::<String>(row, 0)).transpose()?;
        Ok(top.as_deref().and_then(planned_rows).unwrap_or(0))
    }

    /// Page in its own transaction; `None` at the end.
    ///
    /// # Panics
    ///
    /// If the server repeats a page.
    pub async fn next(&mut self) -> Result<Option<Page>, PruneError> {
        if self.is_done {
            return Ok(None);
        }
        let sql = self.sql();
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&self.cutoff, &self.batch];
        if let Some((age, id)) = &self.from {
            values.extend([age as &(dyn ToSql + Sync), id]);
        }
        // Only waits for locks are limited.
        let found = self.client.sql().query_one(&sql, &values).await;
        let row = found.map_err(|error| failed(DOING, &error))?;
        let number = |at: usize| Ok::<_, ControlError>(get::<i64>(&row, at)?.unsigned_abs());
        let held = self.passed.held(&get::<Vec<i64>>(&row, 3)?);
        let page = Page { old: number(0)?, passed: number(1)?, deleted: number(2)?, held };
        self.is_done = page.old < self.batch.unsigned_abs();
        if page.old == 0 {
            return Ok(None);
        }
        let behind = get::<Option<String>>(&row, 4)?.zip(get::<Option<String>>(&row, 5)?);
        assert!(behind != self.from, "a page goes forward: it begins behind {behind:?}");
        self.from = behind;
        Ok(Some(page))
    }

    fn sql(&self) -> String {
        let PruneTable { name, age, age_type, id, id_type, .. } = &self.table;
        let (name, age, id) = (qualified(name), identifier(age), identifier(id));
        let (passed, flags, counts) =
            (self.passed.condition(), self.passed.columns(), self.passed.counts());
        // A row comparison is an index position. Comparing only the age would start before all rows
        // of that age.
        let after = if self.from.is_some() {
            format!("AND (t.{age}, t.{id}) > ($3::text::{age_type}, $4::text::{id_type})")
        } else {
            String::new()
        };
        let places = "ARRAY(SELECT place FROM page WHERE passed)";
        let gone = if self.deletes {
            format!(
                "DELETE FROM ONLY {name} AS t WHERE t.ctid = ANY (ARRAY(SELECT h.ctid FROM ONLY {name} AS h \
                 WHERE h.ctid = ANY ({places}) FOR UPDATE SKIP LOCKED)) RETURNING 1"
            )
        } else {
            "SELECT 1 WHERE false".to_owned()
        };
        format!(
            "WITH page AS MATERIALIZED (SELECT t.ctid AS place, t.{age} AS age, t.{id} AS id, \
                 {passed} AS passed, {flags} FROM ONLY {name} AS t \
                 WHERE t.{age} < ($1::text::timestamptz)::{age_type} AND t.{id} IS NOT NULL {after} \
                 ORDER BY t.{age}, t.{id} LIMIT $2::int8), \
             gone AS ({gone}) \
             SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM page WHERE passed), \
                 (SELECT count(*) FROM gone), (SELECT {counts} FROM page), \
                 last.age::text, last.id::text \
             FROM (SELECT) AS one LEFT JOIN \
                 (SELECT age, id FROM page ORDER BY age DESC, id DESC LIMIT 1) AS last ON true"
        )
    }
}

/// 55P03: a lock was not available.
pub(super) fn failed(doing: &'static str, error: &tokio_postgres::Error) -> ControlError {
    ControlError::Connection { doing, source: sql_error(error) }
}

/// A row hidden by a policy is an error, because it would count as missing.
pub async fn prepare_session(client: &Client, lock_timeout: Duration) -> Result<(), PruneError> {
    // 0 would mean no limit, and the setting has 32 bits.
    let ms = lock_timeout.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    // Each statement sees the latest commits and may write, whatever the role's defaults are.
    let sql = format!(
        "SET lock_timeout = {ms}; SET row_security = off; SET default_transaction_read_only = off; \
         SET default_transaction_isolation = 'read committed'; {READ_AGAIN}"
    );
    Ok(client.run(DOING, client.sql().batch_execute(&sql)).await?)
}
