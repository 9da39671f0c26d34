//! `postrider route`: a dry run of routing for JSON lines on stdin, or the newest rows of the
//! tables.
//!
//! Invariant: rows pass through the pipeline of `run` as bytes from Postgres; nothing is sent or
//! acknowledged; equal input gives equal output.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufWriter};
use std::path::PathBuf;

use clap::Args;

use super::codes::ErrorCode;
use super::context::{Context, broken};
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::import::load_imported;
use postrider_config::{Config, FlagValue, Loaded};
use postrider_core::outbox::TableName;
use postrider_core::route::EmptyPayload;
use postrider_postgres::control::{
    self, Client, Inspection, PeekedMessage, Requirements, RowColumn,
};

mod answer;
mod line;
mod rehearsal;
mod table;
mod types;

use answer::RouteOutput;
use line::InputLine;
use rehearsal::{Rehearsal, StreamRehearsal};

const LIMIT: u32 = 10;

/// Newest rows of each table for [`topics_of_rows`].
const TOPICS_OF: u32 = 10_000;

/// Newest rows of each table for [`rehearse_newest`].
const TRIED: u32 = 1_000;

/// `route [--debezium FILE] [--from-database [--limit N]]`
#[derive(Debug, Args)]
#[command(after_help = "\
Each line is one change, with the types of the table's columns:
  {\"op\":\"c\",\"types\":{\"id\":\"uuid\",\"payload\":\"jsonb null\"},\"row\":{\"id\":\"..\",\"payload\":\"{}\"}}
op: c insert, r existing row, u update, d delete, m logical message (\"message\":
{\"transactional\":true,\"prefix\":\"..\",\"content\":\"..\"}). Bytes are {\"$hex\":\"..\"}.

Examples:
  postrider route < rows.jsonl
  postrider route --debezium connector.json < rows.jsonl
  postrider route --from-database --limit 100 | jq .topic")]
pub struct RouteArgs {
    /// Route by this Debezium configuration: Connect JSON or Debezium Server properties
    #[arg(long, value_name = "FILE")]
    pub debezium: Option<PathBuf>,
    /// Route the last rows of the outbox tables instead of lines on stdin
    #[arg(long)]
    pub from_database: bool,
    /// Maximum number of rows per table
    #[arg(
        long,
        value_name = "N",
        default_value_t = LIMIT,
        requires = "from_database",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub limit: u32,
}

pub(crate) fn run(args: &RouteArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let loaded = load(args, context)?;
    let source = loaded.config.source.clone();
    let null_is_tombstone =
        args.debezium.is_none() || loaded.config.route.empty_payload == EmptyPayload::Tombstone;
    let mut rehearsal = Rehearsal::new(loaded.config, null_is_tombstone);
    let out = BufWriter::new(io::stdout().lock());
    if args.from_database {
        let lines = super::runtime()?.block_on(async {
            let client = control::connect(&source.connect).await?;
            table::newest(&client, &source.tables, args.limit).await.map_err(CommandFailure::from)
        })?;
        return answer_all(lines.into_iter().map(|line| Ok(Ok(line))), &mut rehearsal, out);
    }
    let lines = io::stdin().lock().split(b'\n');
    let texts = lines.filter(|text| {
        text.as_ref().is_ok_and(|text| !text.trim_ascii().is_empty()) || text.is_err()
    });
    answer_all(texts.map(|text| text.map(|text| line::parse(&text))), &mut rehearsal, out)
}

pub(super) async fn topics_of_rows(
    client: &Client,
    config: &Config,
) -> Result<BTreeSet<String>, CommandFailure> {
    let lines = table::newest(client, &config.source.tables, TOPICS_OF).await?;
    let mut rehearsal = Rehearsal::new(config.clone(), true);
    let mut topics = BTreeSet::new();
    for line in lines {
        topics.extend(rehearsal.answer(&line)?.topic());
    }
    Ok(topics)
}

pub(super) struct RehearsedRows {
    pub(super) rows: usize,
    pub(super) topics: BTreeSet<String>,
    /// Reason per rejected row.
    pub(super) rejected: Vec<String>,
}

pub(super) async fn rehearse_newest(
    client: &Client,
    config: &Config,
) -> Result<RehearsedRows, CommandFailure> {
    let lines = table::newest(client, &config.source.tables, TRIED).await?;
    let mut rehearsal = Rehearsal::new(config.clone(), true);
    let mut rehearsed =
        RehearsedRows { rows: lines.len(), topics: BTreeSet::new(), rejected: Vec::new() };
    for line in lines {
        let answer = rehearsal.answer(&line)?;
        rehearsed.topics.extend(answer.topic());
        rehearsed.rejected.extend(answer.rejection());
    }
    Ok(rehearsed)
}

pub(super) fn rehearse_stream(
    config: &Config,
    (inspection, wanted): (&Inspection, &Requirements),
    messages: &[PeekedMessage],
) -> Result<Vec<RouteOutput>, CommandFailure> {
    let known = (inspection.not_null(wanted), inspection.oids(wanted));
    let mut rehearsal = StreamRehearsal::new(config.clone(), known)?;
    let mut lines = Vec::new();
    for PeekedMessage { lsn, data } in messages {
        lines.extend(rehearsal.answer(*lsn, data)?);
    }
    Ok(lines)
}

/// Topic or rejection of a row; neither if a rule drops the row.
pub(super) struct Destination {
    pub(super) topic: Option<String>,
    pub(super) rejection: Option<String>,
}

pub(super) fn destinations(
    config: &Config,
    table: &TableName,
    (columns, rows): (&[RowColumn], impl Iterator<Item = Vec<Option<String>>>),
) -> Result<Vec<Destination>, CommandFailure> {
    let mut rehearsal = Rehearsal::new(config.clone(), true);
    let answers = rows.map(|row| {
        let answer = rehearsal.answer(&table::line_of(table, columns, row))?;
        Ok(Destination { topic: answer.topic(), rejection: answer.rejection() })
    });
    answers.collect()
}

/// A dry run of lines needs no database.
fn load(args: &RouteArgs, context: &Context) -> Result<Loaded, CommandFailure> {
    let nowhere = FlagValue {
        key: "source.url",
        value: "postgres://nobody@localhost/nowhere".to_owned(),
        flag: "route",
    };
    let flags = if args.from_database { Vec::new() } else { vec![nowhere] };
    match &args.debezium {
        Some(file) => load_imported(file, context, flags),
        None => context.load(flags),
    }
}

/// A line that is not a row is answered as rejected, and reported at the end.
fn answer_all(
    lines: impl Iterator<Item = io::Result<Result<InputLine, line::LineError>>>,
    rehearsal: &mut Rehearsal,
    mut out: impl io::Write,
) -> Result<ExitCode, CommandFailure> {
    let mut malformed = 0_u64;
    for line in lines {
        let line = line.map_err(|error| {
            CommandFailure::new(ExitCode::CheckFailed, ErrorCode::X006, "cannot read stdin")
                .why(error.to_string())
        })?;
        let answer = match line {
            Ok(line) => rehearsal.answer(&line)?,
            Err(error) => {
                malformed += 1;
                RouteOutput::rejected("malformed_line", &error.to_string())
            }
        };
        if let Err(error) = writeln!(out, "{answer}") {
            return Err(broken(&error));
        }
    }
    if let Err(error) = out.flush() {
        return Err(broken(&error));
    }
    if malformed == 0 {
        return Ok(ExitCode::Ok);
    }
    let what = match malformed {
        1 => "1 line is not a valid row".to_owned(),
        lines => format!("{lines} lines are not valid rows"),
    };
    Err(CommandFailure::new(ExitCode::CheckFailed, ErrorCode::X007, what).help(
        "their answers have the code `malformed_line` and say why; see `postrider route --help`",
    ))
}
