//! Runs one session that reads rows from their tables.

use std::time::Duration;

use super::backfill::{check_files, visible, written_before};
use super::known::{Held, check_progress};
use super::preview::count_beside;
use super::repair::{marks, window};
use super::source::TableSource;
use super::{TableJob, TableRows, TableRowsError, TableRun, order_of};
use crate::coalescing;
use crate::compare::flag;
use crate::error::RelayError;
use crate::meter::{DELIVERING, Total, Unit, delivered};
use crate::plan::Plan;
use crate::sessions::Sessions;
use crate::start::{OpenSink, meanwhile, translator};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;
use postrider_core::pipeline::Mark;
use postrider_core::progress::{BackfillProgress, Lineage, RowCursor};
use postrider_core::session::{End, Session};
use postrider_core::supervisor::SessionStart;
use postrider_kafka::KafkaSink;
use postrider_postgres::control::{
    self, ControlError, FAILOVER_SLOTS_SINCE, Inspection, Requirements, TableFacts,
};
use postrider_postgres::wal::{
    Connection, OrderColumn, Positions, ScanRequest, SessionParams, TableScan, TableStream,
    lock_tables,
};

/// A server is silent while it sorts a large table. TCP reports a server that is gone.
const SILENCE: Duration = Duration::from_hours(24);
/// Transactions of rows without a log position are numbered up to this value.
const END_OF_REPLAY: Lsn = Lsn::new(1 << 62);
/// All tables are read at one moment.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub(super) struct Found {
    pub(super) plan: Plan,
    pub(super) params: SessionParams,
    pub(super) inspection: Inspection,
    pub(super) tables: Vec<FoundTable>,
}

impl Found {
    pub(super) fn oids(&self) -> Vec<u32> {
        self.tables.iter().map(|table| table.facts.oid).collect()
    }

    pub(super) fn makes_failover_slot(&self) -> bool {
        let version = self.inspection.server.version_num;
        let source = &self.plan.config.source;
        source.failover && !source.standby && version >= FAILOVER_SLOTS_SINCE
    }
}

pub(super) struct FoundTable {
    pub(super) name: TableName,
    pub(super) facts: TableFacts,
    pub(super) order_by: Vec<OrderColumn>,
    pub(super) condition: Option<String>,
}

impl FoundTable {
    pub(super) fn request(&self, conditions: impl IntoIterator<Item = String>) -> ScanRequest {
        let all = self.condition.clone().into_iter().chain(conditions);
        let all: Vec<String> = all.map(|condition| format!("({condition})")).collect();
        ScanRequest {
            table: self.name.clone(),
            table_oid: self.facts.oid,
            is_partitioned: self.facts.is_partitioned(),
            order_by: self.order_by.clone(),
            // The stream would not deliver columns outside the publication.
            columns: self.facts.published.as_ref().map_or_else(Vec::new, |it| it.columns.clone()),
            condition: (!all.is_empty()).then(|| all.join(" AND ")),
            after: None,
            marks: None,
        }
    }
}

pub(super) struct Remaining {
    pub(super) connection: Connection,
    /// Held until the rows are delivered.
    pub(super) slot: Option<Held>,
    pub(super) lineage: Lineage,
    /// `None`: a replay.
    pub(super) backfill: Option<BackfillProgress>,
}

impl TableRun {
    pub(super) fn session<S: KafkaSink + Send>(
        &mut self,
        sessions: &mut Sessions,
        open_sink: &impl OpenSink<S>,
    ) -> Result<End, RelayError> {
        if self.is_complete() {
            return Ok(End::CaughtUp);
        }
        let wanted = sessions.plan.requirements()?;
        let found = self.runtime.block_on(find(&sessions.plan, &self.job, &wanted))?;
        let mut remaining = match self.job.rows.clone() {
            TableRows::Replay(_) => replay(&found)?,
            TableRows::Backfill { restart } => self.backfill(&found, restart)?,
            TableRows::Repair(job) => match self.repair(&found, &job)? {
                Some(remaining) => remaining,
                None if self.nothing_to_repair.is_some() => return Ok(End::CaughtUp),
                None => return Ok(End::Drained),
            },
        };
        let heartbeat = Plan::heartbeat(found.inspection.server.wal_sender_timeout);
        let end = remaining.backfill.as_ref().and_then(|backfill| backfill.begins);
        let end = end.unwrap_or(END_OF_REPLAY);
        sessions.supervisor.end_at(end);
        let mut plan = found.plan.clone();
        let begun = sessions.begin(&mut plan.kafka, heartbeat);
        let (spec, lineage, clock) = (&plan.kafka, remaining.lineage.clone(), sessions.clock);
        let open_sink = open_sink.clone();
        let open = move || open_sink(spec, &lineage, clock.instant());
        let mut sink = match &mut remaining.slot {
            Some(held) => meanwhile(&mut held.stream, heartbeat, open)?,
            None => open()?,
        };
        self.check_held(&found, &remaining)?;
        let slot = &remaining.lineage.slot;
        check_progress(slot, remaining.backfill.as_ref(), sink.found())?;
        let (mark, cursor) = self.resume(&mut remaining, &mut sink);
        let scans = scans(&found, &mut remaining, cursor.as_ref())?;
        self.count(&found, &remaining, cursor)?;
        let selected = self.select(&found, remaining, &scans, heartbeat)?;
        let Some((remaining, selection)) = selected else { return Ok(End::Drained) };
        if let Some(rows) = &selection {
            // An earlier session has sent some of the missing rows.
            let sent = delivered(sessions.reporter().totals());
            self.meter.begin(DELIVERING, Unit::Rows, Total::Exactly(sent + rows.left()));
        }
        let mut pipeline = plan.pipeline()?;
        pipeline.name_source(&plan.letter_source(&found.inspection.server));
        pipeline.resume_at(mark, None);
        pipeline.begin_within();
        pipeline.set_suspects(begun.suspects.clone());
        sink.begin_at(mark);
        if let Some(backfill) = remaining.backfill.clone() {
            sink.begin_backfill(backfill);
        }
        let rows = TableStream::begin(remaining.connection, scans, positions(mark, end));
        let rows = rows.paced(self.job.rate).only(selection);
        let slot = remaining.slot.map(|held| held.stream);
        let profile = coalescing(true, crate::session_mode::batches_wait(None, &plan.kafka));
        let SessionStart { mut limits, owed, .. } = begun;
        limits.silence = SILENCE;
        let session = Session::new(pipeline, limits, profile, owed, clock.instant())
            .translated_by(translator(&found.params));
        sessions.reporter().slot_reaches(self.settled.end, end);
        sessions.reporter().streaming();
        sessions.drive(TableSource { rows, slot, settled: &mut self.settled }, session, sink)
    }

    /// Counts the rows of a backfill once. The count of earlier rows ends before the first session,
    /// because the telemetry counts the rows of this process.
    fn count(
        &mut self,
        found: &Found,
        remaining: &Remaining,
        cursor: Option<RowCursor>,
    ) -> Result<(), RelayError> {
        let (TableRows::Backfill { .. }, Some(backfill)) = (&self.job.rows, &remaining.backfill)
        else {
            return Ok(());
        };
        let is_counted = self.meter.reading().is_some_and(|it| it.total != Total::Unknown);
        if is_counted {
            return Ok(());
        }
        let first = || BackfillProgress { cursor, ..backfill.clone() };
        let begun = self.counted_from.get_or_insert_with(first);
        count_beside(found, begun, (&self.meter, &self.runtime))
    }

    /// Whether an earlier session delivered all rows and failed only while it ended.
    fn is_complete(&self) -> bool {
        let begins = self.begun.as_ref().and_then(|begun| begun.begins);
        begins.is_some_and(|begins| self.settled.end >= begins)
    }

    /// Position after the last delivered row.
    fn resume(
        &self,
        remaining: &mut Remaining,
        sink: &mut impl KafkaSink,
    ) -> (Mark, Option<RowCursor>) {
        let place = self.settled.clone();
        if remaining.backfill.as_ref().is_some_and(|begun| begun.repair.is_some()) {
            // A repair compares again, so it does not resume after a row.
            let kept = sink.found().map_or(Lsn::ZERO, |found| found.mark.end);
            return (Mark::at(kept.max(place.end)), None);
        }
        let kept = sink.found().and_then(|found| Some((found.mark, found.backfill.clone()?)));
        if let (Some(backfill), Some((mark, kept))) = (&mut remaining.backfill, kept)
            && kept.begins == backfill.begins
            && mark.end >= place.end
        {
            let cursor = kept.cursor.clone();
            *backfill = kept;
            return (Mark { last: None, ..mark }, cursor);
        }
        (Mark::at(place.end), place.cursor)
    }
}

fn scans(
    found: &Found,
    remaining: &mut Remaining,
    cursor: Option<&RowCursor>,
) -> Result<Vec<TableScan>, RelayError> {
    // The lock precedes the first query. Otherwise a table could be rewritten after its rows were
    // counted as visible.
    lock_tables(&mut remaining.connection, found.tables.iter().map(|table| &table.name))?;
    // A policy that hides rows from the role must cause an error, not fewer rows.
    remaining.connection.simple_query("SET LOCAL row_security = off")?;
    let visible = visible(remaining)?;
    let scope = remaining.backfill.as_ref().and_then(|begun| begun.repair.clone());
    check_files(found, remaining)?;
    let named = |table: &FoundTable| cursor.is_some_and(|at| at.table == table.name.to_string());
    let reached = match cursor {
        None => 0,
        Some(cursor) => reached(found, cursor)?,
    };
    let began = remaining.backfill.as_ref().and_then(|begun| begun.began);
    let marks = began.map(|xid| marks(&[(written_before(xid), flag::BEFORE)]));
    let mut scans = Vec::new();
    for table in found.tables.iter().skip(reached) {
        let after = cursor.filter(|_| named(table)).map(|cursor| cursor.after.clone());
        let window = window(&found.plan.config, table, scope.as_ref())?;
        let request = table.request(window.into_iter().chain(visible.clone()));
        let request = ScanRequest { after, marks: marks.clone(), ..request };
        scans.push(request.prepare(&mut remaining.connection)?);
    }
    Ok(scans)
}

/// Fails if the cursor's table is missing or its order has changed.
pub(super) fn reached(found: &Found, cursor: &RowCursor) -> Result<usize, TableRowsError> {
    let is_in = |table: &FoundTable| {
        let columns = table.order_by.iter().map(|column| &column.name);
        table.name.to_string() == cursor.table && columns.eq(&cursor.order_by)
    };
    found.tables.iter().position(is_in).ok_or_else(|| TableRowsError::OrderChanged {
        table: cursor.table.clone(),
        before: cursor.order_by.join(", "),
    })
}

fn positions(mark: Mark, end: Lsn) -> Positions {
    let first = mark.part.map_or(mark.end, |part| part.commit_lsn).max(Lsn::new(1));
    let rows = mark.part.map_or(0, |part| part.rows);
    let Ok(rows) = u32::try_from(rows) else { unreachable!("a transaction of {rows} rows") };
    Positions { first, rows, end }
}

/// Refuses all faults of a stream, except a missing slot. A replay ignores faults that concern only
/// the stream.
pub(super) async fn find(
    plan: &Plan,
    job: &TableJob,
    wanted: &Requirements,
) -> Result<Found, RelayError> {
    let client = control::connect(&plan.config.source.connect).await?;
    let inspection = control::inspect(&client, wanted).await?;
    let is_replay = matches!(job.rows, TableRows::Replay(_));
    let is_repair = matches!(job.rows, TableRows::Repair(_));
    let refusal = inspection.refusals(wanted).into_iter().find(|refusal| match refusal {
        ControlError::SlotMissing { .. } => false,
        ControlError::SlotLost { .. } if is_repair => false,
        ControlError::TableMissing { .. }
        | ControlError::TableUnsuitable { .. }
        | ControlError::TableForbidden { .. }
        | ControlError::ColumnsMissing { .. } => true,
        _ => !is_replay,
    });
    if let Some(refusal) = refusal {
        return Err(refusal.into());
    }
    let mut tables = Vec::new();
    for (name, facts) in wanted.tables.iter().zip(&inspection.tables) {
        let Some(facts) = facts else { unreachable!("a database without {name} is refused") };
        let order_by = order_of(&plan.config, &client, name, facts).await?;
        let condition = match &job.rows {
            TableRows::Replay(filter) => filter.condition(&plan.config, name, facts)?,
            TableRows::Backfill { .. } | TableRows::Repair(_) => None,
        };
        let (name, facts) = (name.clone(), facts.clone());
        tables.push(FoundTable { name, facts, order_by, condition });
    }
    // A later session resumes by table name, so the order must not depend on the configuration.
    tables.sort_by(|one: &FoundTable, other| one.name.cmp(&other.name));
    let mut params = plan.session_params(&client, &inspection).await?;
    params.replicates = !is_replay;
    let mut plan = plan.found(&inspection, wanted);
    plan.config.source.connect = client.server().clone();
    Ok(Found { plan, params, inspection, tables })
}

fn replay(found: &Found) -> Result<Remaining, RelayError> {
    let connect = &found.plan.config.source.connect;
    let mut connection = Connection::open(connect, &found.params)?;
    connection.simple_query(BEGIN)?;
    Ok(Remaining { connection, slot: None, lineage: Lineage::default(), backfill: None })
}
