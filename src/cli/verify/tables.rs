//! Reads the outbox tables in one snapshot, and separates rows that the slot has not passed.
//!
//! Invariant: two connections share one REPEATABLE READ snapshot: one reads the rows that the slot
//! has passed, the other the rest. Nothing is written, no slot is used, and the role needs only
//! SELECT.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::VerifyError;
use super::run::Run;
use crate::failure::CommandFailure;
use postrider_config::{Config, Rejected, SourceMode};
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Translator;
use postrider_core::record::LetterSource;
use postrider_kafka::{KafkaSpec, Lineage, newest_progress};
use postrider_postgres::control::{self, ControlError, Inspection, Requirements};
use postrider_postgres::libpq::ConnectInfo;
use postrider_postgres::wal::{
    Connection, Positions, ScanRequest, SessionParams, StreamEncoding, TableStream, TextRow,
    WalError, expected_rows, lock_tables,
};
use postrider_relay::compare::{
    Columns, Content, Entry, Expected, Horizon, Sorter, TimeColumn, TopicNumbers, flag,
};
use postrider_relay::{
    Plan, RelayError, Total, Unit, holds_for_tables, poll_mark, refuse_without_zone,
};

/// Longest wait for rows, so that a signal is noticed.
const TICK: Duration = Duration::from_millis(200);

const ROWS_BETWEEN: u64 = 1_000;

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Makes reading fail if policies would hide rows.
const ALL_ROWS: &str = "SET row_security = off";

/// End of the log, and the time, before the snapshot. Everything committed by then is in it.
const NOW: &str = "\
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
        ELSE pg_current_wal_insert_lsn() END - '0/0')::text, \
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Begin, inclusive, in milliseconds since the Unix epoch.
    pub(super) since_ms: Option<i64>,
    /// End, exclusive, in milliseconds since the Unix epoch.
    pub(super) until_ms: Option<i64>,
}

pub(super) struct Tables {
    plan: Plan,
    inspection: Inspection,
    wanted: Requirements,
    params: SessionParams,
    connection: Connection,
    /// Server that everything is read from.
    server: ConnectInfo,
    pub(super) horizon: Horizon,
    /// Whether rows from before the slot are still to be delivered.
    has_backfill: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TablesRead {
    pub(super) rows: u64,
    pub(super) without_id: u64,
    /// Whether a slot may still deliver rows.
    pub(super) has_slot: bool,
}

/// Columns besides the record, and how records are compared.
#[derive(Debug, Clone)]
pub(super) struct Looks {
    pub(super) columns: Columns,
    pub(super) content: Content,
}

impl Tables {
    /// Inspects the tables and connects. Slot and publication may be missing.
    pub(super) fn open(
        runtime: &Runtime,
        kafka: &KafkaSpec,
        config: &Config,
    ) -> Result<Self, CommandFailure> {
        let client = runtime.block_on(control::connect(&config.source.connect))?;
        // Every row must become a record or a rejection, so none may stop the run.
        let mut config = config.clone();
        config.route.rejected = Rejected::Skip;
        let plan = Plan::new(kafka.clone(), config);
        let wanted = plan.requirements().map_err(RelayError::from)?;
        let inspection = runtime.block_on(control::inspect(&client, &wanted))?;
        if let Some(at) = inspection.tables.iter().position(Option::is_none)
            && let Some(table) = wanted.tables.get(at).cloned()
        {
            let database = inspection.server.database.clone();
            return Err(ControlError::TableMissing { table, database }.into());
        }
        let encoding = control::stream_encoding(&client, &inspection.server.encoding);
        let encoding = runtime.block_on(encoding)?;
        let frame_bytes_max = plan.config.source.frame_bytes_max;
        let params = SessionParams {
            encoding,
            frame_bytes_max: usize::try_from(frame_bytes_max).unwrap_or(usize::MAX),
            replicates: false,
            ..SessionParams::default()
        };
        let mut connection = Connection::open(client.server(), &params)?;
        connection.simple_query(ALL_ROWS)?;
        let horizon = horizon(&mut connection)?;
        let server = client.server().clone();
        let has_backfill = has_backfill(&plan, &inspection);
        Ok(Self { plan, inspection, wanted, params, connection, server, horizon, has_backfill })
    }

    pub(super) fn letter_source(&self) -> LetterSource {
        self.plan.letter_source(&self.inspection.server)
    }

    pub(super) fn time_ms(&mut self, text: &str) -> Result<Option<i64>, VerifyError> {
        let text = text.replace('\'', "''");
        let sql =
            format!("SELECT (extract(epoch FROM '{text}'::timestamptz) * 1000)::bigint::text");
        match self.connection.simple_query(&sql) {
            Ok(rows) => Ok(rows.first().and_then(|row| number(row, 0))),
            Err(WalError::Server(message)) if message.code.starts_with("22") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn estimate(&mut self) -> Result<u64, VerifyError> {
        let oids = self.inspection.tables.iter().flatten().map(|facts| facts.oid.to_string());
        let oids = oids.collect::<Vec<_>>().join(", ");
        let rows = self.connection.simple_query(&format!(
            "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint::text \
             FROM pg_catalog.unnest(ARRAY[{oids}]::oid[]) AS named (id) \
             CROSS JOIN LATERAL (SELECT named.id AS id UNION \
                 SELECT relid FROM pg_catalog.pg_partition_tree(named.id)) AS part \
             JOIN pg_catalog.pg_class c ON c.oid = part.id AND c.relkind = 'r'"
        ))?;
        Ok(rows.first().and_then(|row| number(row, 0)).unwrap_or(0).unsigned_abs())
    }

    /// Reads the rows of the window; `None` if the run is stopped.
    pub(super) fn read(
        mut self,
        (looks, window): (&Looks, &Window),
        numbers: &mut TopicNumbers,
        out: &mut Sorter<Entry>,
        run: &Run<'_>,
    ) -> Result<Option<TablesRead>, CommandFailure> {
        let within = looks.within(window);
        if within.is_some() {
            self.check_times(looks)?;
        }
        self.connection.simple_query(BEGIN)?;
        lock_tables(&mut self.connection, &self.wanted.tables)?;
        let scans = requests(&self.wanted, &self.inspection, within.as_deref());
        let scans = scans.map(|scan| scan.prepare(&mut self.connection));
        let scans = scans.collect::<Result<Vec<_>, _>>()?;
        let expected = expected_rows(&scans, &mut self.connection)?;
        run.meter.begin("reading rows", Unit::Rows, Total::About(expected));
        let passed = self.passed()?;
        let mut read = TablesRead { has_slot: passed.is_some(), ..TablesRead::default() };
        let mut scans = vec![(all_of(within.as_deref(), passed.as_deref()), 0)];
        let mut rest = None;
        if let Some(passed) = &passed {
            scans.push((
                all_of(within.as_deref(), Some(&format!("NOT ({passed})"))),
                flag::NOT_PASSED,
            ));
            rest = Some(self.sharing()?);
        }
        let connections = [Some(self.connection), rest].into_iter().flatten();
        for (mut connection, (condition, flags)) in connections.zip(scans) {
            let scans = requests(&self.wanted, &self.inspection, condition.as_deref());
            let scans =
                scans.map(|scan| scan.prepare(&mut connection)).collect::<Result<_, _>>()?;
            let at = Positions { first: Lsn::new(1), rows: 0, end: Lsn::new(u64::MAX) };
            let plan = Plan {
                not_null: self.inspection.not_null(&self.wanted),
                oids: self.inspection.oids(&self.wanted),
                ..self.plan.clone()
            };
            let pipeline = plan.pipeline().map_err(RelayError::from)?;
            let (columns, content) = (looks.columns.clone(), looks.content.clone());
            let translator = translator(&self.params);
            let mut expected = Expected::new(pipeline, translator, content, columns, flags);
            let mut stream = TableStream::begin(connection, scans, at);
            let before = read.rows;
            let mut goes_on = |rows| {
                run.meter.set_done(before + rows);
                !run.is_stopped()
            };
            let done = pour(&mut stream, &mut expected, (&mut *numbers, &mut *out), &mut goes_on)?;
            read.rows += expected.rows;
            read.without_id += expected.without_id;
            if !done {
                return Ok(None);
            }
        }
        Ok(Some(read))
    }

    fn check_times(&mut self, looks: &Looks) -> Result<(), CommandFailure> {
        let Some(TimeColumn { name, .. }) = &looks.columns.time else { return Ok(()) };
        for (table, facts) in self.wanted.tables.iter().zip(&self.inspection.tables) {
            let oid = facts.as_ref().map_or(0, |facts| facts.oid);
            refuse_without_zone(&mut self.connection, (&table.to_string(), oid), name)?;
            if facts.as_ref().is_some_and(|facts| !facts.columns.contains(name)) {
                let (table, column) = (table.to_string(), name.clone());
                let option = "outbox.created_at";
                return Err(VerifyError::ColumnMissing { table, column, option }.into());
            }
        }
        Ok(())
    }

    /// SQL for: the slot has passed the row's transaction. `None` if no slot will deliver anything,
    /// so that a missing row is lost.
    ///
    /// Every 15 seconds Postgres logs the running transactions. A slot's `catalog_xmin` is the
    /// oldest of them at a place that the slot has confirmed (`SnapBuildProcessRunningXacts`,
    /// `LogicalIncreaseXminForSlot`). So older transactions committed before the confirmed
    /// position. A visible row whose transaction seems to lie ahead is more than 2^31 transactions
    /// old. Until a backfill has ended, the slot has passed no row. If rows are polled, the table
    /// itself shows which rows wait.
    fn passed(&mut self) -> Result<Option<String>, VerifyError> {
        let source = &self.plan.config.source;
        if source.mode == SourceMode::Poll {
            return Ok(Some(format!(
                "({}) IS NOT TRUE",
                poll_mark(&source.poll.mark).sql_pending("")
            )));
        }
        let slot = self.plan.config.source.slot.replace('\'', "''");
        let rows = self.connection.simple_query(&format!(
            "SELECT s.catalog_xmin::text FROM pg_catalog.pg_replication_slots s \
             WHERE s.slot_name = '{slot}' AND s.database = current_database() \
                 AND s.plugin = 'pgoutput' AND (to_jsonb(s)->>'wal_status') IS DISTINCT FROM 'lost'"
        ))?;
        let xmin = rows.first().and_then(|row| row.first()).cloned().flatten();
        // The value becomes part of SQL again, so it must be a number.
        let xmin = xmin.and_then(|xmin| xmin.parse::<u32>().ok());
        let by_number =
            |xmin| format!("age(xmin) < 0 OR age(xmin) > age('{xmin}'::pg_catalog.xid)");
        let none = || "false".to_owned();
        Ok(xmin.map(|xmin| if self.has_backfill { none() } else { by_number(xmin) }))
    }

    fn sharing(&mut self) -> Result<Connection, VerifyError> {
        let rows = self.connection.simple_query("SELECT pg_catalog.pg_export_snapshot()")?;
        let Some(Some(name)) = rows.first().and_then(|row| row.first()) else {
            return Err(WalError::Protocol("a malformed answer about a snapshot").into());
        };
        let mut connection = Connection::open(&self.server, &self.params)?;
        connection.simple_query(ALL_ROWS)?;
        connection.simple_query(BEGIN)?;
        connection.simple_query(&format!("SET TRANSACTION SNAPSHOT '{name}'"))?;
        lock_tables(&mut connection, &self.wanted.tables)?;
        Ok(connection)
    }
}

impl Looks {
    fn within(&self, window: &Window) -> Option<String> {
        let column = self.columns.time.as_ref()?.name.replace('"', "\"\"");
        let since = window.since_ms.map(|ms| format!("\"{column}\" >= {}", sql_time(ms)));
        let until = window.until_ms.map(|ms| format!("\"{column}\" < {}", sql_time(ms)));
        let both: Vec<String> = since.into_iter().chain(until).collect();
        (!both.is_empty()).then(|| both.join(" AND "))
    }
}

fn sql_time(ms: i64) -> String {
    format!("('epoch'::timestamptz + {ms} * interval '1 millisecond')")
}

fn all_of(one: Option<&str>, other: Option<&str>) -> Option<String> {
    match (one, other) {
        (None, only) | (only, None) => only.map(str::to_owned),
        (Some(one), Some(other)) => Some(format!("{one} AND ({other})")),
    }
}

fn requests<'a>(
    wanted: &'a Requirements,
    inspection: &'a Inspection,
    condition: Option<&'a str>,
) -> impl Iterator<Item = ScanRequest> + 'a {
    let found = wanted.tables.iter().zip(&inspection.tables);
    found.filter_map(move |(table, facts)| {
        let facts = facts.as_ref()?;
        Some(ScanRequest {
            table: table.clone(),
            table_oid: facts.oid,
            is_partitioned: facts.is_partitioned(),
            order_by: Vec::new(),
            // Columns that the stream publishes.
            columns: facts.published.as_ref().map_or_else(Vec::new, |it| it.columns.clone()),
            condition: condition.map(str::to_owned),
            after: None,
            marks: None,
        })
    })
}

fn pour(
    stream: &mut TableStream,
    expected: &mut Expected,
    (numbers, out): (&mut TopicNumbers, &mut Sorter<Entry>),
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, VerifyError> {
    let mut next_look = 0;
    while !stream.is_done() {
        match stream.peek()? {
            None => {
                stream.fill(TICK)?;
                next_look = 0;
            }
            // The last keepalive settles only what is already settled.
            Some(Frame::Keepalive { .. }) => stream.consume(),
            Some(frame) => {
                expected.take(frame, numbers, out)?;
                stream.consume();
            }
        }
        if expected.rows >= next_look {
            if !goes_on(expected.rows) {
                return Ok(false);
            }
            next_look = expected.rows + ROWS_BETWEEN;
        }
    }
    Ok(true)
}

/// Whether a backfill has not ended, if progress is kept and readable.
fn has_backfill(plan: &Plan, inspection: &Inspection) -> bool {
    // Without progress, the name of the slot's holder shows a running backfill.
    if inspection.slot.as_ref().is_some_and(|slot| holds_for_tables(&slot.holder)) {
        return true;
    }
    let server = &inspection.server;
    let Some((system, _)) = server.system.clone().filter(|_| plan.keeps_progress()) else {
        return false;
    };
    let (database, slot) = (server.database.clone(), plan.config.source.slot.clone());
    let stream = Lineage { system, database, slot, ..Lineage::default() };
    match newest_progress(&plan.kafka, &stream.key()) {
        Ok(progress) => progress.is_some_and(|progress| progress.backfill.is_some()),
        Err(error) => {
            tracing::warn!(
                help = error.hint(),
                "the progress in Kafka cannot be read, so rows of a backfill that has not ended count as lost: {error}"
            );
            false
        }
    }
}

fn translator(params: &SessionParams) -> Option<Translator> {
    match &params.encoding {
        StreamEncoding::Utf8 | StreamEncoding::Unknown => None,
        StreamEncoding::Own(charset) => {
            Some(Translator::new(Arc::clone(charset), params.frame_bytes_max))
        }
    }
}

fn horizon(connection: &mut Connection) -> Result<Horizon, VerifyError> {
    let rows = connection.simple_query(NOW)?;
    let now = rows.first();
    let lsn = now.and_then(|row| row.first()?.as_deref()?.parse().ok());
    let at_ms = now.and_then(|row| number(row, 1));
    match (lsn, at_ms) {
        (Some(lsn), Some(at_ms)) => Ok(Horizon { lsn, at_ms }),
        _ => Err(WalError::Protocol("a malformed answer about the log's end").into()),
    }
}

fn number(row: &TextRow, at: usize) -> Option<i64> {
    row.get(at)?.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_sql_of_the_columns_own_name() {
        let columns = Columns {
            time: Some(TimeColumn { name: "made \"at\"".to_owned(), is_needed: true }),
            ..Columns::default()
        };
        let config = postrider_config::load(
            &postrider_config::Inputs {
                file: postrider_config::FileChoice::Absent,
                variables: vec![("PGUSER".into(), "app".into())],
                ..postrider_config::Inputs::default()
            },
            &|_| Vec::new(),
        );
        let looks = Looks { columns, content: Content::of(&config.unwrap().config) };
        let window = |since_ms, until_ms| looks.within(&Window { since_ms, until_ms });
        assert_eq!(window(None, None), None);
        let both = window(Some(-1), Some(2)).unwrap();
        assert_eq!(
            both,
            "\"made \"\"at\"\"\" >= ('epoch'::timestamptz + -1 * interval '1 millisecond') AND \
             \"made \"\"at\"\"\" < ('epoch'::timestamptz + 2 * interval '1 millisecond')"
        );
        assert_eq!(all_of(Some("a"), Some("b OR c")).unwrap(), "a AND (b OR c)");
        assert_eq!((all_of(None, None), all_of(None, Some("b"))), (None, Some("b".to_owned())));
    }
}
