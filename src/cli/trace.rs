//! `postrider trace ID ..`: shows where rows are; exit code 1 if one is nowhere.
//!
//! Invariant: nothing is written and no offset is committed. A record is reported as missing only
//! after a search of the whole topic.

mod found;
mod records;

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::route;
use super::topic_help::missing_topic_help;
use found::{Row, Slot, Trace};
use postrider_config::{Config, SourceMode};
use postrider_kafka::topic_names;
use postrider_postgres::control::{self, Client, RowSearch, rows_with_ids};
use postrider_relay::kafka_spec;
use records::{Found, Search, Wanted};

/// `trace ID .. [--topic NAME ..]`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the topics that the rows are routed to, from a few minutes before the oldest row was
written, and from the beginning for ids that are not found there. For rows that were deleted
from the table, name the topics. Without Postgres, only named topics are read.

State:
  delivered    the record is in a topic
  dead_letter  the row is in the dead-letter topic; sent_again: `dead-letters retry` sent it
               to a topic that was not read
  pending      the slot has not passed the row yet (Postgres reports that after up to 15 s)
  lost         the slot that has not passed the row is lost or dropped: postrider repair
  dropped      a routing rule drops the row
  missing      the slot has passed the row, and no topic that was read contains it
  unknown      neither a row nor a record exists
Exit code: 1 if a row is lost, missing or unknown; 2 if an id is invalid.

Examples:
  postrider trace c0ffee00-0000-4000-8000-000000000042
  postrider trace --output json 0192.. | jq -r '.records[] | \"\\(.topic) \\(.partition) \\(.offset)\"'
  postrider trace --topic OrderPaid --topic OrderShipped c0ffee00-0000-4000-8000-000000000042")]
pub struct TraceArgs {
    /// Row ids
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    /// Additional topic to read, besides the topics that rows are routed to; repeatable
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,
    /// Kafka brokers, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
}

pub(crate) fn run(args: &TraceArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(super::brokers_flag(args.brokers.as_deref()))?.config;
    let runtime = super::runtime()?;
    let slot_name =
        (config.source.mode == SourceMode::Stream).then_some(config.source.slot.as_str());
    let asked: BTreeSet<&String> = args.ids.iter().collect();
    let asked: Vec<String> = asked.into_iter().cloned().collect();
    let source = match runtime.block_on(read_source(&config, slot_name, &asked)) {
        // Kafka can be searched without Postgres.
        Err(failure) if failure.exit == ExitCode::Unavailable && !args.topics.is_empty() => {
            let why = failure.findings.first().map_or("no answer", |one| one.what.as_str());
            tracing::warn!("rows and slot are not known, only topics are searched: {why}");
            Source::default()
        }
        found => found?,
    };
    runtime.shutdown_background();
    if let Some(id) = source.invalid.first().filter(|_| args.topics.is_empty()) {
        let what = format!("`{id}` is not an id: the type of column `outbox.id` has no such value");
        return Err(CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what)
            .help("name the row by the value in its id column"));
    }
    let kafka = kafka_spec(&config);
    let there = topic_names(&kafka)?;
    if let Some(unknown) = args.topics.iter().find(|topic| !there.contains(*topic)) {
        let what = format!("topic `{unknown}` does not exist");
        return Err(CommandFailure::new(ExitCode::CheckFailed, ErrorCode::TOPIC_MISSING, what)
            .help(missing_topic_help(unknown, &there, &kafka.brokers)));
    }
    let Source { rows, newest_topics, slot, .. } = &source;
    let routed = rows.values().flatten().filter_map(|row| row.topic.clone());
    // The topic of a deleted row is unknown.
    let mut topics: BTreeSet<String> =
        routed.chain(args.topics.clone()).chain(newest_topics.clone()).collect();
    topics.insert(config.dead_letters.topic.clone());
    topics.retain(|topic| there.contains(topic));
    let since = (rows.len() == asked.len()).then(|| oldest(rows)).flatten();
    let search = Search {
        kafka: &kafka,
        id_header: &config.route.id_header,
        dead_letters: &config.dead_letters.topic,
    };
    let wanted = source.wanted(&asked);
    let mut records = search.find(&topics, &wanted, since)?;
    let further = sent_again(&records, &topics, &there);
    for (id, more) in search.find(&further, &wanted, None)? {
        records.entry(id).or_default().delivered.extend(more.delivered);
    }
    topics.extend(further);
    let traces = Trace::all(&args.ids, rows, &records, slot);
    print(context, &traces, &topics)?;
    let is_lost = traces.iter().any(|trace| trace.state().is_lost());
    Ok(if is_lost { ExitCode::CheckFailed } else { ExitCode::Ok })
}

fn print(
    context: &Context,
    traces: &[Trace],
    topics: &BTreeSet<String>,
) -> Result<(), CommandFailure> {
    for trace in traces {
        if context.json() {
            let mut value = trace.to_json();
            if let Some(fields) = value.as_object_mut() {
                fields.insert("searched".to_owned(), topics.iter().cloned().collect());
            }
            context.print_json(&value)?;
        } else {
            context.print(&trace.to_text())?;
        }
    }
    if context.json() {
        return Ok(());
    }
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let names =
        if names.is_empty() { "no topic: none exists".to_owned() } else { names.join(", ") };
    context.print(&format!("searched       {names}\n"))
}

/// Topics of retried letters that were not read.
fn sent_again(
    records: &Found,
    read: &BTreeSet<String>,
    there: &BTreeSet<String>,
) -> BTreeSet<String> {
    let letters = records.values().flat_map(|found| &found.letters);
    let topics = letters.filter(|letter| letter.is_retried).filter_map(|it| it.meant_for.clone());
    topics.filter(|topic| there.contains(topic) && !read.contains(topic)).collect()
}

struct Source {
    rows: BTreeMap<String, Vec<Row>>,
    /// Requested ids, with their form in a table's column.
    forms: Vec<(String, String)>,
    /// Requested ids that no table can contain.
    invalid: Vec<String>,
    /// Topics of the newest rows, searched for missing rows.
    newest_topics: BTreeSet<String>,
    slot: Slot,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
            forms: Vec::new(),
            invalid: Vec::new(),
            newest_topics: BTreeSet::new(),
            slot: Slot::None,
        }
    }
}

impl Source {
    fn wanted(&self, asked: &[String]) -> Wanted {
        let typed = asked.iter().map(|id| (id.clone(), id.clone()));
        let of_rows = self
            .rows
            .iter()
            .flat_map(|(asked, rows)| rows.iter().map(move |row| (asked.clone(), row.id.clone())));
        let mut wanted = Wanted::new();
        for (asked, form) in typed.chain(self.forms.iter().cloned()).chain(of_rows) {
            wanted.entry(form.into_bytes()).or_default().insert(asked);
        }
        wanted
    }
}

async fn read_source(
    config: &Config,
    slot: Option<&str>,
    ids: &[String],
) -> Result<Source, CommandFailure> {
    let client = control::connect(&config.source.connect).await?;
    let mut source = Source::default();
    let mut has_ids = true;
    for table in &config.source.tables {
        let id_names = config.outbox.names(&config.outbox.id);
        let search = RowSearch {
            id_names: &id_names,
            created_at: &config.outbox.created_at,
            slot: &config.source.slot,
            ids,
        };
        let found = rows_with_ids(&client, table, search).await?;
        has_ids &= found.columns.iter().any(|column| id_names.contains(&column.name));
        let values = found.rows.iter().map(|row| row.values.clone());
        let destinations = route::destinations(config, table, (&found.columns, values))?;
        source.forms.extend(found.forms);
        for (row, destination) in found.rows.into_iter().zip(destinations) {
            source.rows.entry(row.asked).or_default().push(Row {
                id: row.id,
                table: table.to_string(),
                written_ms: row.written_ms,
                is_passed: row.is_passed,
                topic: destination.topic,
                rejection: destination.rejection,
            });
        }
    }
    let has_form = |id: &String| source.forms.iter().any(|(asked, _)| asked == id);
    source.invalid = ids.iter().filter(|id| has_ids && !has_form(id)).cloned().collect();
    if let Some(name) = slot {
        let name = name.to_owned();
        source.slot = match control::slot(&client, &name).await? {
            None => Slot::Gone(name, "does not exist"),
            Some(facts) if facts.is_lost() => Slot::Gone(name, "is lost"),
            Some(_) => Slot::Alive(name),
        };
    }
    if source.rows.len() < ids.len() {
        // A guess that may exceed the statement timeout.
        source.newest_topics = newest_topics(&client, config).await.unwrap_or_else(|failure| {
            let why = failure.findings.first().map_or("no answer", |one| one.what.as_str());
            tracing::warn!("the topics of the newest rows are not known and not searched: {why}");
            BTreeSet::new()
        });
    }
    Ok(source)
}

async fn newest_topics(
    client: &Client,
    config: &Config,
) -> Result<BTreeSet<String>, CommandFailure> {
    Ok(route::rehearse_newest(client, config).await?.topics)
}

/// Time of the oldest row; `None` if one is unknown.
fn oldest(rows: &BTreeMap<String, Vec<Row>>) -> Option<i64> {
    let times: Option<Vec<_>> = rows.values().flatten().map(|row| row.written_ms).collect();
    times?.into_iter().min()
}
