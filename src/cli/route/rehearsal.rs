//! Runs rows through the relay's own pipeline, so that a dry run answers as `run` would. Each row
//! is a pgoutput transaction with the description of its table; its record counts as stored at
//! once.

use super::answer::RouteOutput;
use super::line::{InputChange, InputLine};
use crate::failure::CommandFailure;
use postrider_config::{Config, Rejected};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;
use postrider_core::pgoutput::encode::{self, Old, Table};
use postrider_core::pgoutput::{Begin, Column, Commit, LogicalMessage, PgTime};
use postrider_core::pipeline::{Confirmation, Counters, Handled, Outcome, Pipeline, PipelineError};
use postrider_postgres::wal::Frame;
use postrider_relay::Plan;
use postrider_relay::kafka_spec;

/// Arbitrary OID, the key of the relation cache.
const TABLE_OID: u32 = 1;

/// No column can produce this time, so it marks records that would get the commit time.
const COMMIT_MS: i64 = -1;

pub(super) struct Rehearsal {
    plan: Plan,
    table: TableName,
    null_is_tombstone: bool,
    /// Pipeline for the table shape seen last.
    stage: Option<RehearsalPipeline>,
}

struct RehearsalPipeline {
    shape: Shape,
    pipeline: Pipeline,
    null_is_tombstone: bool,
    /// LSN of the next commit record.
    next: u64,
}

type Shape = Vec<(TableName, String)>;

impl Rehearsal {
    /// Returns undeliverable rows despite the policy. `null_is_tombstone`: every null value is
    /// called a tombstone.
    pub(super) fn new(mut config: Config, null_is_tombstone: bool) -> Self {
        config.route.rejected = Rejected::Skip;
        let first = config.source.tables.first().cloned();
        let table = first.unwrap_or_else(|| TableName::new("public", "outbox"));
        let plan = Plan::new(kafka_spec(&config), config);
        Self { plan, table, null_is_tombstone, stage: None }
    }

    pub(super) fn answer(&mut self, line: &InputLine) -> Result<RouteOutput, CommandFailure> {
        if line.change == InputChange::Tombstone {
            return Ok(RouteOutput::dropped("tombstone"));
        }
        let table = line.table.clone().unwrap_or_else(|| self.table.clone());
        let not_null = line.columns.iter().filter(|column| !column.declared.is_nullable);
        let shape: Shape = not_null.map(|column| (table.clone(), column.name.clone())).collect();
        if self.stage.as_ref().is_none_or(|stage| stage.shape != shape) {
            let plan = Plan { not_null: shape.clone(), ..self.plan.clone() };
            let pipeline = plan.pipeline().map_err(postrider_relay::RelayError::from)?;
            let null_is_tombstone = self.null_is_tombstone;
            self.stage = Some(RehearsalPipeline { shape, pipeline, null_is_tombstone, next: 1 });
        }
        let Some(stage) = &mut self.stage else { return Ok(RouteOutput::dropped("unknown")) };
        let answer = stage.transaction(line, &table);
        if answer.is_err() {
            self.stage = None;
        }
        Ok(answer.unwrap_or_else(|error| given_up(&error)))
    }
}

pub(super) struct StreamRehearsal(RehearsalPipeline);

impl StreamRehearsal {
    pub(super) fn new(
        mut config: Config,
        (not_null, oids): (Shape, Vec<(TableName, u32)>),
    ) -> Result<Self, CommandFailure> {
        config.route.rejected = Rejected::Skip;
        let plan = Plan::new(kafka_spec(&config), config);
        let plan = Plan { not_null, oids, ..plan };
        let pipeline = plan.pipeline().map_err(postrider_relay::RelayError::from)?;
        Ok(Self(RehearsalPipeline {
            shape: Vec::new(),
            pipeline,
            null_is_tombstone: true,
            next: 1,
        }))
    }

    pub(super) fn answer(
        &mut self,
        start: Lsn,
        data: &[u8],
    ) -> Result<Option<RouteOutput>, CommandFailure> {
        self.0.message(start, data).map_err(|error| postrider_relay::RelayError::from(error).into())
    }
}

/// An error that would stop `run` is a rejection here.
fn given_up(error: &PipelineError) -> RouteOutput {
    let code = match error {
        PipelineError::Updated { .. } => "update",
        _ => "unreadable",
    };
    RouteOutput::rejected(code, &error.to_string())
}

impl RehearsalPipeline {
    fn transaction(
        &mut self,
        line: &InputLine,
        table: &TableName,
    ) -> Result<RouteOutput, PipelineError> {
        let lsn = Lsn::new(self.next);
        self.next += 2;
        let end = Lsn::new(self.next);
        let commit_time = PgTime::from_unix_us(COMMIT_MS * 1000);
        let mut data = Vec::new();
        let is_lone = matches!(line.change, InputChange::Message { transactional: false, .. });
        if !is_lone {
            encode::begin(&mut data, &Begin { final_lsn: lsn, commit_time, xid: 1 });
            self.frame(&data)?;
        }
        data.clear();
        self.describe(line, table)?;
        write_change(line, end, &mut data);
        let before = self.pipeline.counters().clone();
        let answer = match self.frame(&data)? {
            Some(answer) => answer,
            None => RouteOutput::dropped(reason(&before, self.pipeline.counters())),
        };
        if !is_lone {
            data.clear();
            encode::commit(&mut data, &Commit { commit_lsn: lsn, end_lsn: end, commit_time });
            self.frame(&data)?;
        }
        Ok(answer)
    }

    fn describe(&mut self, line: &InputLine, table: &TableName) -> Result<(), PipelineError> {
        if matches!(line.change, InputChange::Message { .. }) {
            return Ok(());
        }
        let columns: Vec<_> = line
            .columns
            .iter()
            .map(|column| (column.name.as_bytes(), column.declared.type_oid))
            .collect();
        let modifiers: Vec<i32> =
            line.columns.iter().map(|column| column.declared.modifier).collect();
        let table = Table {
            id: TABLE_OID,
            schema: table.schema.as_bytes(),
            name: table.name.as_bytes(),
            columns: &columns,
        };
        let mut data = Vec::new();
        encode::relation_with(&mut data, &table, &modifiers);
        self.frame(&data).map(|_| ())
    }

    /// `None` if the message is not a row or is left out.
    fn message(&mut self, start: Lsn, data: &[u8]) -> Result<Option<RouteOutput>, PipelineError> {
        let sent_us = PgTime::from_unix_us(COMMIT_MS * 1000).0;
        self.take(Frame::Wal { start, sent_us, data })
    }

    fn frame(&mut self, data: &[u8]) -> Result<Option<RouteOutput>, PipelineError> {
        self.message(Lsn::ZERO, data)
    }

    fn take(&mut self, frame: Frame<'_>) -> Result<Option<RouteOutput>, PipelineError> {
        let (mut sent, null_is_tombstone) = (None, self.null_is_tombstone);
        let handled = self.pipeline.frame::<PipelineError>(frame, |outgoing| {
            let timestamp = outgoing.record.timestamp_ms;
            let timestamp = (timestamp != COMMIT_MS).then_some(timestamp);
            let answer = RouteOutput::record(&outgoing.record, timestamp, null_is_tombstone);
            sent = Some((answer, outgoing.ticket));
            Ok(())
        })?;
        if let Handled::Skipped(skipped) = handled {
            return Ok(Some(RouteOutput::from(&skipped.rejection)));
        }
        let Some((answer, ticket)) = sent else { return Ok(None) };
        self.pipeline.confirm(Confirmation { ticket, outcome: Outcome::Stored })?;
        Ok(Some(answer))
    }
}

fn write_change(line: &InputLine, end: Lsn, data: &mut Vec<u8>) {
    let values: Vec<Column<'_>> = line
        .columns
        .iter()
        .map(|column| column.value.as_deref().map_or(Column::Null, Column::Text))
        .collect();
    match &line.change {
        InputChange::Insert | InputChange::Tombstone => encode::insert(data, TABLE_OID, &values),
        InputChange::Update => encode::update(data, TABLE_OID, None, &values),
        InputChange::Delete => encode::delete(data, TABLE_OID, Old::Key(&values)),
        InputChange::Message { transactional, prefix, content } => encode::logical(
            data,
            &LogicalMessage {
                transactional: *transactional,
                lsn: end,
                prefix: prefix.as_bytes(),
                content,
            },
        ),
    }
}

fn reason(before: &Counters, after: &Counters) -> &'static str {
    if after.updates > before.updates {
        "update"
    } else if after.deletes > before.deletes {
        "delete"
    } else if after.dropped > before.dropped {
        "rule"
    } else if after.logical_messages > before.logical_messages {
        "message"
    } else {
        "other table"
    }
}
