//! Runs one session of a polling worker: inspects the database, opens the connection for the rows,
//! and drives the loop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::Worker;
use super::source::PollSource;
use crate::blocking::run_blocking;
use crate::coalescing;
use crate::error::RelayError;
use crate::plan::Plan;
use crate::sessions::Sessions;
use crate::start::{OpenSink, translator};
use postrider_config::{Config, PollMark as MarkSection};
use postrider_core::outbox::TableName;
use postrider_core::pipeline::{Mark, Suspects};
use postrider_core::progress::Lineage;
use postrider_core::record::LetterSource;
use postrider_core::route::{RuleAction, ValueFormat};
use postrider_core::session::{End, Limits, Session};
use postrider_core::supervisor::SessionStart;
use postrider_kafka::KafkaSink;
use postrider_postgres::control::{
    self, Client, ControlError, Inspection, Requirements, TableFacts, is_number,
};
use postrider_postgres::wal::{
    Connection, PollError, PollMark, PollOptions, PollRequest, PollStream, PollTable,
    SessionParams, WalError, prepare_session,
};

/// A poll does not wait for other sessions, and has a limit of its own.
const SILENCE: Duration = Duration::from_hours(24);
/// The server hears from the relay at least once per two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Batch size while the relay searches for a refused record. All rows of the batch may be sent
/// again.
const CAUTIOUS_BATCH: u32 = 100;
/// Numbers rows in the order of their writes. Otherwise rows are ordered by a time, which is the
/// start of their transaction.
const SEQUENCE: &str = "sequence";

struct Found {
    plan: Plan,
    params: SessionParams,
    requests: Vec<PollRequest>,
    letter_source: LetterSource,
}

impl Worker {
    pub(super) fn session<S: KafkaSink + Send>(
        &mut self,
        sessions: &mut Sessions,
        open_sink: &impl OpenSink<S>,
    ) -> Result<End, RelayError> {
        let find = find(&sessions.plan, &self.keeps_processes);
        let told = sessions.told_to_end();
        let found = sessions.runtime.block_on(async {
            tokio::select! {
                found = find => Some(found),
                () = told => None,
            }
        });
        let Some(found) = found.transpose()? else { return Ok(End::Drained) };
        let mut plan = found.plan;
        let begun = sessions.begin(&mut plan.kafka, HEARTBEAT);
        let poll = &plan.config.source.poll;
        let mut connection = Connection::open(&plan.config.source.connect, &found.params)?;
        let is_local = connection.is_local();
        prepare_session(&mut connection, poll.notify.as_deref())?;
        let tables = prepare(&plan.config, found.requests, &mut connection)?;
        let mut sink = open_sink(&plan.kafka, &Lineage::default(), sessions.clock.instant())?;
        let mut pipeline = plan.pipeline()?;
        pipeline.name_source(&found.letter_source);
        let at = self.positions(begun.owed);
        pipeline.resume_at(Mark::at(at.first), None);
        let is_clean = begun.suspects == Suspects::default();
        pipeline.set_suspects(begun.suspects.clone());
        pipeline.identify_rows();
        sink.begin_at(Mark::at(at.first));
        let options = PollOptions {
            worker: self.number,
            batch: if is_clean { poll.batch } else { poll.batch.min(CAUTIOUS_BATCH) },
            interval: poll.interval,
            notify: poll.notify.clone(),
            once: sessions.options.once,
            is_first: at.first == super::FIRST,
        };
        let rows = PollStream::begin(connection, tables, options, at);
        let rows = rows.beside(Arc::clone(&self.own_processes));
        let source = PollSource { rows, marked: &mut self.marked };
        let waits = crate::session_mode::batches_wait(None, &plan.kafka);
        let SessionStart { limits, owed, .. } = begun;
        // A settled batch is marked at once, because the next batch waits for that.
        let limits = Limits { status_interval: Duration::ZERO, silence: SILENCE, ..limits };
        let now = sessions.clock.instant();
        let session = Session::new(pipeline, limits, coalescing(is_local, waits), owed, now)
            .translated_by(translator(&found.params));
        sessions.reporter().streaming();
        tracing::info!(worker = self.number.0, "polling");
        let ended = sessions.drive(source, session, sink);
        // A batch is marked and committed at once, so the database has received every reported
        // position.
        sessions.owed = sessions.owed.map(|owed| owed.settled(self.marked));
        ended
    }
}

/// Inspects the database like a session that starts with this plan. Does not take any rows.
pub(crate) async fn rehearse(plan: &Plan) -> Result<(), RelayError> {
    let Found { plan, params, requests, .. } = find(plan, &OnceCell::new()).await?;
    run_blocking(move || {
        let mut connection = Connection::open(&plan.config.source.connect, &params)?;
        prepare_session(&mut connection, None)?;
        let tables = prepare(&plan.config, requests, &mut connection)?;
        tables.iter().try_for_each(|table| table.rehearse(&mut connection))
    })
    .await??;
    Ok(())
}

fn prepare(
    config: &Config,
    requests: Vec<PollRequest>,
    connection: &mut Connection,
) -> Result<Vec<PollTable>, WalError> {
    let has_time = matches!(
        config.format.value,
        ValueFormat::CloudEventsBinary | ValueFormat::CloudEventsStructured
    );
    let mut tables = Vec::new();
    for request in requests {
        let name = request.table.to_string();
        let table = request.prepare(connection)?;
        if has_time && config.outbox.timestamp.is_none() && !table.has_time() {
            return Err(PollError::NoTime { table: name }.into());
        }
        tables.push(table);
    }
    Ok(tables)
}

/// Refuses all faults that prevent a stream, except faults of the slot or publication. The check
/// for kept server processes needs two sessions, so only one worker makes it.
async fn find(plan: &Plan, keeps_processes: &OnceCell<()>) -> Result<Found, RelayError> {
    let wanted = plan.requirements()?;
    let connect = &plan.config.source.connect;
    let asked = async || control::connect(connect).await?.keeps_its_process().await;
    keeps_processes.get_or_try_init(asked).await?;
    let client = control::connect(connect).await?;
    let inspection = control::inspect(&client, &wanted).await?;
    if let Some(refusal) = refusal(&inspection, &wanted) {
        return Err(refusal.into());
    }
    let mut requests = Vec::new();
    for (name, facts) in wanted.tables.iter().zip(&inspection.tables) {
        let Some(facts) = facts else { unreachable!("a database without {name} is refused") };
        requests.push(request(&plan.config, &client, &wanted, (name, facts)).await?);
    }
    let params = plan.session_params(&client, &inspection).await?;
    let params = SessionParams { replicates: false, ..params };
    let mut plan = plan.found(&inspection, &wanted);
    plan.config.source.connect = client.server().clone();
    let letter_source = plan.letter_source(&inspection.server);
    Ok(Found { plan, params, requests, letter_source })
}

fn refusal(inspection: &Inspection, wanted: &Requirements) -> Option<ControlError> {
    inspection.refusals(wanted).into_iter().find(|refusal| {
        matches!(
            refusal,
            ControlError::TableMissing { .. }
                | ControlError::TableUnsuitable { .. }
                | ControlError::PartUnsuitable { .. }
                | ControlError::TableForbidden { .. }
                | ControlError::ColumnsMissing { .. }
        )
    })
}

async fn request(
    config: &Config,
    client: &Client,
    wanted: &Requirements,
    (name, facts): (&TableName, &TableFacts),
) -> Result<PollRequest, RelayError> {
    let outbox = &config.outbox;
    let column = |name: &str| {
        let column = wanted.columns.iter().find(|column| column.name == name);
        let Some(column) = column else { unreachable!("the route reads column {name}") };
        column.clone()
    };
    let has = |name: &String| facts.columns.contains(name);
    let created_at = outbox.names(&outbox.created_at).into_iter().find(has);
    let has_own_keys = config.route.rules.iter().any(|rule| match &rule.action {
        RuleAction::Send(destination) => destination.key.is_some(),
        RuleAction::Drop => false,
    });
    let key = column(outbox.resolve(&config.route.key));
    let id = outbox.names(&outbox.id).into_iter().find(has);
    Ok(PollRequest {
        table: name.clone(),
        table_oid: facts.oid,
        is_partitioned: facts.is_partitioned(),
        key: (!has_own_keys).then_some(key),
        id: column(&outbox.id),
        order_by: order(config, client, facts, (created_at.clone(), id)).await?,
        created_at,
        wanted: wanted.columns.clone(),
        mark: poll_mark(&config.source.poll.mark),
        retry_count: config.source.poll.retry_count.clone(),
    })
}

/// `outbox.order_by`, or a numbering column, or a time. The id separates rows that are otherwise
/// equal.
async fn order(
    config: &Config,
    client: &Client,
    facts: &TableFacts,
    (created_at, id): (Option<String>, Option<String>),
) -> Result<Vec<String>, ControlError> {
    let mut order = config.outbox.order_by.clone();
    if order.is_empty() {
        let sequence = Some(SEQUENCE.to_owned()).filter(|name| facts.columns.contains(name));
        for column in [sequence, id.clone()].into_iter().flatten() {
            if order.is_empty() && is_number(client, facts.oid, &column).await? {
                order.push(column);
            }
        }
        if order.is_empty() {
            order.extend(created_at);
        }
    }
    order.extend(id.filter(|id| !order.contains(id)));
    Ok(order)
}

pub fn poll_mark(section: &MarkSection) -> PollMark {
    match section.clone() {
        MarkSection::ProcessedAt(column) => PollMark::ProcessedAt(column),
        MarkSection::Status { column, pending, sent } => PollMark::Status { column, pending, sent },
        MarkSection::Delete => PollMark::Delete,
    }
}
