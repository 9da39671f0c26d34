//! What to poll from one table, and how rows are marked.
//!
//! Invariant: only required columns are read; a table whose waiting rows cannot be identified is
//! refused.

use std::fmt::Write as _;

use super::error::PollError;
use super::schedule::Reach;
use crate::wal::quote::{identifier, literal};
use crate::wal::table::{all_columns_sql, columns_of, sql_name, sql_rows};
use crate::wal::{Connection, RowColumn, Transport, WalError};
use postrider_core::outbox::{TableName, Wanted};

/// A worker with rows of a part in flight locks the part.
pub const BUCKETS: u32 = 64;

/// Passes the locked parts from one statement of a batch to the next.
pub(super) const LOCKED: &str = "postrider.buckets";

/// Date, timestamp, timestamptz.
const TIMES: [u32; 3] = [1082, 1114, 1184];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollMark {
    /// Column that is NULL until the row is marked with the time.
    ProcessedAt(String),
    /// Column that changes from one of some values to another.
    Status {
        column: String,
        pending: Vec<String>,
        sent: String,
    },
    Delete,
}

impl PollMark {
    /// `table` precedes each column.
    pub fn sql_pending(&self, table: &str) -> String {
        match self {
            Self::ProcessedAt(column) => format!("{table}{} IS NULL", identifier(column)),
            Self::Status { column, pending, .. } => {
                let values: Vec<String> = pending.iter().map(|value| literal(value)).collect();
                format!("{table}{} IN ({})", identifier(column), values.join(", "))
            }
            Self::Delete => "true".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollRequest {
    pub table: TableName,
    pub table_oid: u32,
    /// True if partitions' rows belong to the table; an inheriting table's rows do not.
    pub is_partitioned: bool,
    pub wanted: Vec<Wanted>,
    /// Column within whose values order is kept; `None`: all rows are in one order.
    pub key: Option<Wanted>,
    pub id: Wanted,
    /// Time of writing.
    pub created_at: Option<String>,
    pub order_by: Vec<String>,
    pub mark: PollMark,
    /// Column that is incremented with a mark.
    pub retry_count: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollTable {
    pub(super) table: TableName,
    pub(super) table_oid: u32,
    pub(super) columns: Vec<RowColumn>,
    pub(super) id: Option<usize>,
    pub(super) has_time: bool,
    pub(super) rows: String,
    pub(super) pending: String,
    /// The key's text is compared byte by byte, like the brokers do.
    pub(super) order: String,
    pub(super) key: Option<String>,
    pub(super) created_at: String,
    mark: PollMark,
    assignments: String,
}

impl PollRequest {
    pub fn prepare<T: Transport>(
        self,
        connection: &mut Connection<T>,
    ) -> Result<PollTable, WalError> {
        let all = columns_of(connection, &all_columns_sql(&self.table_oid.to_string()))?;
        Ok(self.with_columns(&all)?)
    }

    pub(super) fn with_columns(self, all: &[RowColumn]) -> Result<PollTable, PollError> {
        let find = |name: &str| all.iter().find(|column| column.name == name);
        let own = |wanted: &Wanted| {
            std::iter::once(&wanted.name).chain(&wanted.aliases).find_map(|name| find(name))
        };
        let missing = |column: &String, option| PollError::ColumnMissing {
            table: self.table.to_string(),
            column: column.clone(),
            option,
        };
        let known = |column: &String, option| find(column).ok_or_else(|| missing(column, option));
        for column in &self.order_by {
            known(column, "outbox.order_by")?;
        }
        match &self.mark {
            PollMark::ProcessedAt(column) => {
                if !known(column, "source.poll.processed_at")?.is_nullable {
                    let (table, column) = (self.table.to_string(), column.clone());
                    return Err(PollError::NeverPending { table, column });
                }
            }
            PollMark::Status { column, .. } => {
                known(column, "source.poll.status")?;
            }
            PollMark::Delete => {}
        }
        let pending = self.mark.sql_pending("t.");
        if let Some(column) = &self.retry_count {
            known(column, "source.poll.retry_count")?;
        }
        let mut columns: Vec<RowColumn> = Vec::new();
        for column in self.wanted.iter().filter_map(own) {
            if columns.iter().all(|known| known.name != column.name) {
                columns.push(column.clone());
            }
        }
        let place = |wanted| {
            let name = &own(wanted)?.name;
            columns.iter().position(|column| column.name == *name)
        };
        let time = self.created_at.as_deref().and_then(find);
        let time = time.filter(|column| TIMES.contains(&column.type_oid));
        let order = self.order_by.iter().map(|column| format!("t.{}", identifier(column)));
        let id = own(&self.id).map(|id| &id.name);
        let tells_apart = id.is_some_and(|id| self.order_by.contains(id));
        // Otherwise equal rows follow their place in the table.
        let places = ["t.tableoid".to_owned(), "t.ctid".to_owned()];
        let order = order.chain(places.into_iter().filter(|_| !tells_apart));
        Ok(PollTable {
            id: place(&self.id),
            has_time: time.is_some(),
            rows: sql_rows(&self.table, self.is_partitioned),
            pending,
            order: order.collect::<Vec<_>>().join(", "),
            key: self
                .key
                .as_ref()
                .and_then(own)
                .map(|key| format!("t.{}::text COLLATE pg_catalog.\"C\"", identifier(&key.name))),
            created_at: time.map_or_else(|| "NULL".to_owned(), |column| unix_us(&column.name)),
            assignments: assignments(&self.mark, self.retry_count.as_deref()),
            mark: self.mark,
            table: self.table,
            table_oid: self.table_oid,
            columns,
        })
    }
}

/// Identifies a row while it keeps its place.
pub(super) fn known_by(row: &str) -> String {
    format!("(pg_catalog.hashtext({row}.part::text || {row}.place::text) & 2147483647)::oid")
}

fn unix_us(column: &str) -> String {
    let time = format!("t.{}", identifier(column));
    format!(
        "CASE WHEN {time} BETWEEN '1970-01-01' AND '9999-12-31' \
         THEN (extract(epoch FROM {time}::timestamptz) * 1000000)::bigint END"
    )
}

fn assignments(mark: &PollMark, retry_count: Option<&str>) -> String {
    let mark = match mark {
        PollMark::ProcessedAt(column) => Some(format!("{} = pg_catalog.now()", identifier(column))),
        PollMark::Status { column, sent, .. } => {
            Some(format!("{} = {}", identifier(column), literal(sent)))
        }
        PollMark::Delete => None,
    };
    let count = retry_count.map(identifier);
    let count = count.map(|name| format!("{name} = coalesce(t.{name}, 0) + 1"));
    mark.into_iter().chain(count).collect::<Vec<_>>().join(", ")
}

impl PollTable {
    pub const fn has_time(&self) -> bool {
        self.has_time
    }

    pub(super) fn parts(&self, share: u32) -> u32 {
        if self.key.is_some() { share } else { 1 }
    }

    pub(super) fn needs(&self) -> String {
        let name = sql_name(&self.table);
        let marked = match &self.mark {
            PollMark::ProcessedAt(column) | PollMark::Status { column, .. } => {
                format!("UPDATE ({})", identifier(column))
            }
            PollMark::Delete => "UPDATE, DELETE".to_owned(),
        };
        format!(
            "GRANT SELECT, {marked} ON {name} TO the role of the relay (FOR UPDATE needs UPDATE on one column); a policy \
             of row-level security must not hide rows from it"
        )
    }

    pub(super) const fn has_keys(&self) -> bool {
        self.key.is_some()
    }

    /// Locks up to `share` free parts of the keys, from `first` on, and reads their first waiting
    /// rows. Never waits for rows.
    ///
    /// A separate statement locks the parts, so that the reading statement sees the commits of
    /// their previous holders. A row that another session has locked, or changed since, holds back
    /// later rows of its key. A result without a place represents held-back rows: partition is the
    /// first one's number, time their count.
    pub(super) fn take(&self, (first, share): (u32, u32), reach: Reach) -> String {
        let class = self.lock_class();
        let parts = self.parts(BUCKETS);
        let (first, last) = (first % parts, first % parts + parts - 1);
        let rows = if reach.window > reach.rows && self.has_keys() {
            self.rows_past_locked(reach)
        } else {
            self.first_rows(reach.rows)
        };
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SELECT pg_catalog.set_config('{LOCKED}', coalesce(pg_catalog.array_agg(part)::text, '{{}}'), true), \
                 pg_catalog.pg_backend_pid() \
             FROM (SELECT one.n % {parts} AS part FROM pg_catalog.generate_series({first}, {last}) AS one (n) \
                 WHERE pg_catalog.pg_try_advisory_xact_lock({class}, one.n % {parts}) LIMIT {share}) AS locked; \
             {rows}"
        )
    }

    /// The row waits, and this transaction has locked its part. The parts are read once, which
    /// halves the time for a batch of 1,000 (measured).
    pub(super) fn waits(&self) -> String {
        let bucket = self.key.as_ref().map_or_else(String::new, |key| {
            format!(
                " AND (pg_catalog.hashtext(coalesce({key}, t.ctid::text)) & {}) = \
                 ANY ((SELECT pg_catalog.current_setting('{LOCKED}')::int[])::int[])",
                BUCKETS - 1
            )
        });
        format!("{} AND pg_catalog.current_setting('{LOCKED}') <> '{{}}'{bucket}", self.pending)
    }

    fn first_rows(&self, limit: u32) -> String {
        let Self { rows, order, created_at, .. } = self;
        let (mut read, mut named) = (String::new(), String::new());
        for (number, column) in self.columns.iter().enumerate() {
            let _ = write!(read, ", t.{} AS c{number}", identifier(&column.name));
            let _ = write!(named, ", p.c{number}");
        }
        let (waits, key) = (self.waits(), self.key.as_deref().unwrap_or("''"));
        let (is_taken, held) = ("f.n IS NOT NULL AND (b.n IS NULL OR p.n < b.n)", known_by("p"));
        format!(
            "WITH pending AS MATERIALIZED (\
                 SELECT pg_catalog.row_number() OVER () AS n, r.* FROM (\
                     SELECT t.tableoid AS part, t.ctid AS place, {key} AS own_key, {created_at} AS made{read} \
                     FROM {rows} AS t WHERE {waits} ORDER BY {order} LIMIT {limit}) AS r), \
             free AS MATERIALIZED (\
                 SELECT p.n FROM {rows} AS t JOIN pending AS p ON t.ctid = p.place AND t.tableoid = p.part \
                 FOR UPDATE OF t SKIP LOCKED), \
             blocked AS MATERIALIZED (\
                 SELECT p.own_key, pg_catalog.min(p.n) AS n FROM pending AS p \
                 WHERE p.n NOT IN (SELECT f.n FROM free AS f) GROUP BY p.own_key) \
             SELECT CASE WHEN {is_taken} THEN p.place END, CASE WHEN {is_taken} THEN p.part ELSE {held} END, CASE WHEN {is_taken} THEN p.made ELSE 1 END{named} \
             FROM pending AS p LEFT JOIN free AS f ON f.n = p.n LEFT JOIN blocked AS b ON b.own_key = p.own_key \
             ORDER BY p.n"
        )
    }

    /// The server checks statements and rights without taking or locking rows.
    pub fn rehearse<T: Transport>(&self, connection: &mut Connection<T>) -> Result<(), WalError> {
        for window in [0, 1] {
            let nothing = self.take((0, 0), Reach { rows: 0, window });
            self.rehearsed(connection.simple_query(&format!("{nothing}; ROLLBACK")))?;
        }
        Ok(())
    }

    fn rehearsed<A>(&self, answer: Result<A, WalError>) -> Result<(), WalError> {
        match answer {
            Err(WalError::Server(server)) => {
                let (name, needs) = (self.table.to_string(), self.needs());
                Err(match PollError::of(("take", &name, &needs), *server) {
                    Ok(error) => error.into(),
                    Err(server) => WalError::Server(Box::new(server)),
                })
            }
            answer => answer.map(drop),
        }
    }

    /// Returns how many rows were marked, and how many of those still wait.
    pub(super) fn mark(&self, part: u32, places: &str) -> String {
        let Self { rows, pending, assignments, .. } = self;
        let which = format!("t.ctid = ANY ('{{{places}}}'::tid[]) AND t.tableoid = {part}");
        let (change, still) = match self.mark {
            PollMark::Delete => (format!("DELETE FROM {rows} AS t WHERE {which}"), "false"),
            _ => (format!("UPDATE {rows} AS t SET {assignments} WHERE {which}"), pending.as_str()),
        };
        format!(
            "WITH marked AS ({change} RETURNING {still} AS still) \
             SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE still) FROM marked;"
        )
    }

    /// Class of advisory locks: specific to the table, and unlikely to be used by an application.
    pub(super) fn lock_class(&self) -> i32 {
        const OURS: u32 = 0x706F_7374;
        (OURS ^ self.table_oid).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, type_oid: u32) -> RowColumn {
        RowColumn { name: name.to_owned(), type_oid, modifier: -1, is_nullable: true }
    }

    fn request(mark: PollMark) -> PollRequest {
        PollRequest {
            table: TableName::new("public", "outbox"),
            table_oid: 16_500,
            is_partitioned: false,
            wanted: ["id", "aggregate_id", "payload", "traceparent"].map(Wanted::optional).to_vec(),
            key: Some(Wanted::required("aggregate_id")),
            id: Wanted::required("id"),
            created_at: Some("created_at".to_owned()),
            order_by: vec!["n".to_owned()],
            mark,
            retry_count: None,
        }
    }

    fn columns() -> Vec<RowColumn> {
        vec![
            column("id", 2950),
            column("n", 20),
            column("aggregateid", 25),
            column("payload", 3802),
            column("secret", 25),
            column("created_at", 1184),
            column("status", 25),
            column("processed_at", 1184),
        ]
    }

    #[test]
    fn only_columns_that_somebody_reads_are_asked_for() {
        let table = request(PollMark::Delete).with_columns(&columns()).unwrap();
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!((names, table.id), (vec!["id", "aggregateid", "payload"], Some(0)));
        let sql = table.take((16, 16), Reach { rows: 1_000, window: 1_000 });
        assert!(!sql.contains("secret") && !sql.contains("t.*"), "{sql}");
        assert!(
            sql.contains(
                "hashtext(coalesce(t.\"aggregateid\"::text COLLATE pg_catalog.\"C\", t.ctid::text)) & 63"
            ),
            "{sql}"
        );
        assert!(sql.contains("generate_series(16, 79)") && sql.contains("LIMIT 16)"), "{sql}");
        assert!(sql.contains("FROM ONLY \"public\".\"outbox\" AS t"), "{sql}");
    }

    #[test]
    fn rows_of_all_keys_are_one_part_where_no_key_is_kept() {
        let all = PollRequest { key: None, ..request(PollMark::Delete) };
        let reach = Reach { rows: 10, window: 20 };
        let sql = all.with_columns(&columns()).unwrap().take((32, 16), reach);
        assert!(
            sql.contains("generate_series(0, 0)") && !sql.contains("hashtext(coalesce("),
            "{sql}"
        );
        assert!(!sql.contains("is_first"), "all rows wait for one that is locked: {sql}");
    }

    #[test]
    fn marks_are_as_the_table_has_them_and_its_values_are_quoted() {
        let status = PollMark::Status {
            column: "status".to_owned(),
            pending: vec!["it's".to_owned(), "b".to_owned()],
            sent: "o'k".to_owned(),
        };
        let counted = PollRequest { retry_count: Some("n".to_owned()), ..request(status) };
        let table = counted.with_columns(&columns()).unwrap();
        assert!(table.take((0, 64), Reach::default()).contains("t.\"status\" IN ('it''s', 'b')"));
        let mark = table.mark(7, "\"(0,1)\"");
        assert!(
            mark.contains("SET \"status\" = 'o''k', \"n\" = coalesce(t.\"n\", 0) + 1"),
            "{mark}"
        );
        assert!(mark.contains("ANY ('{\"(0,1)\"}'::tid[]) AND t.tableoid = 7"), "{mark}");
        let delete = request(PollMark::Delete).with_columns(&columns()).unwrap().mark(7, "");
        assert!(delete.contains("DELETE FROM ONLY"), "{delete}");
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused_with_the_option_to_change() {
        let error =
            |request: PollRequest| request.with_columns(&columns()).unwrap_err().to_string();
        let missing = request(PollMark::ProcessedAt("done_at".to_owned()));
        assert!(error(missing).contains("source.poll.processed_at"));
        let order = PollRequest { order_by: vec!["x".to_owned()], ..request(PollMark::Delete) };
        assert!(error(order).contains("outbox.order_by"));
        let count = PollRequest { retry_count: Some("x".to_owned()), ..request(PollMark::Delete) };
        assert!(error(count).contains("source.poll.retry_count"));
        let mut filled = columns();
        for column in &mut filled {
            column.is_nullable = false;
        }
        let never = request(PollMark::ProcessedAt("processed_at".to_owned()));
        let error = never.with_columns(&filled).unwrap_err();
        assert!(error.hint().contains("source.poll.pending = [\"-infinity\"]"), "{}", error.hint());
    }
}
