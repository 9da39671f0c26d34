//! `postrider trace ID ..`: tells where rows are.
//!
//! Input: ids; the outbox tables, the slot, the topics that the rows are routed to, the dead-letter topic. Output: for
//! each id the row, whether the slot has passed it, its records with topic, partition and offset, its dead letters,
//! and a word for all of that; exit code 1 if one is nowhere. Invariant: nothing is written and no offset is
//! committed; a record is looked for in all of its topic before it is said not to be there.

mod found;
mod records;

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::route;
use found::{Row, Trace};
use postrider_config::{Config, SourceMode};
use postrider_kafka::topic_names;
use postrider_postgres::control::{self, Client, RowSearch, rows_with_ids};
use postrider_relay::kafka_spec;
use records::Search;

/// `trace ID .. [--topic NAME ..]`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the topics that the rows are routed to today, from some minutes before the oldest row was written, and from
the beginning for what is not found there. For rows that are not in the table any more name the topics.

State: delivered, dead_letter, pending (the slot has not passed it), dropped (a rule leaves it out), missing (the
slot has passed it, and it is in no topic that was read), unknown (neither row nor record).
Exit code: 1 if a row is missing or unknown.

Examples:
  postrider trace c0ffee00-0000-4000-8000-000000000042
  postrider trace --output json 0192.. | jq -r '.records[] | \"\\(.topic) \\(.partition) \\(.offset)\"'
  postrider trace --topic OrderPaid --topic OrderShipped c0ffee00-0000-4000-8000-000000000042")]
pub struct TraceArgs {
    /// Ids of rows
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    /// A topic to read besides those that the rows are routed to; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,
    /// Kafka's addresses, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
}

/// Runs it.
pub(crate) fn run(args: &TraceArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(super::brokers_flag(args.brokers.as_deref()))?.config;
    let runtime = super::runtime()?;
    let (rows, others) = runtime.block_on(read_rows(&config, &args.ids))?;
    runtime.shutdown_background();
    let kafka = kafka_spec(&config);
    let there = topic_names(&kafka)?;
    if let Some(unknown) = args.topics.iter().find(|topic| !there.contains(*topic)) {
        let what = format!("topic `{unknown}` does not exist");
        return Err(CommandFailure::new(ExitCode::CheckFailed, ErrorCode::TOPIC_MISSING, what)
            .help("list the topics: kafka-topics.sh --bootstrap-server BROKER --list"));
    }
    let routed = rows.values().flatten().filter_map(|row| row.topic.clone());
    // Of a row that is gone nobody knows where it went.
    let guessed = if rows.len() < args.ids.len() { others } else { BTreeSet::new() };
    let mut topics: BTreeSet<String> = routed.chain(args.topics.clone()).chain(guessed).collect();
    topics.insert(config.dead_letters.topic.clone());
    topics.retain(|topic| there.contains(topic));
    let since = (rows.len() == args.ids.len()).then(|| oldest(&rows)).flatten();
    let search = Search {
        kafka: &kafka,
        id_header: &config.route.id_header,
        dead_letters: &config.dead_letters.topic,
    };
    let records = search.find(&topics, &args.ids, since)?;
    let traces = Trace::all(&args.ids, rows, records);
    // Polled rows have none.
    let slot = (config.source.mode == SourceMode::Stream).then_some(config.source.slot.as_str());
    for trace in &traces {
        if context.json() {
            context.print_json(&trace.to_json())?;
        } else {
            context.print(&trace.to_text(slot))?;
        }
    }
    let is_lost = traces.iter().any(|trace| trace.state().is_lost());
    Ok(if is_lost { ExitCode::CheckFailed } else { ExitCode::Ok })
}

/// The rows of these ids, and the topics of the newest rows where one is not there.
async fn read_rows(
    config: &Config,
    ids: &[String],
) -> Result<(BTreeMap<String, Vec<Row>>, BTreeSet<String>), CommandFailure> {
    let client = control::connect(&config.source.connect).await?;
    let mut rows: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for table in &config.source.tables {
        let id_names = config.outbox.names(&config.outbox.id);
        let search = RowSearch {
            id_names: &id_names,
            created_at: &config.outbox.created_at,
            slot: &config.source.slot,
            ids,
        };
        let found = rows_with_ids(&client, table, search).await?;
        let values = found.rows.iter().map(|row| row.values.clone());
        let destinations = route::destinations(config, table, (&found.columns, values))?;
        for (row, destination) in found.rows.into_iter().zip(destinations) {
            // As Postgres prints it: an id may be typed in another way.
            let typed = ids.iter().find(|id| **id == row.id || id.eq_ignore_ascii_case(&row.id));
            let id = typed.cloned().unwrap_or_else(|| row.id.clone());
            rows.entry(id).or_default().push(Row {
                id: row.id,
                table: table.to_string(),
                written_ms: row.written_ms,
                is_passed: row.is_passed,
                topic: destination.topic,
                rejection: destination.rejection,
            });
        }
    }
    let others = if rows.len() < ids.len() {
        newest_topics(&client, config).await?
    } else {
        BTreeSet::new()
    };
    Ok((rows, others))
}

async fn newest_topics(
    client: &Client,
    config: &Config,
) -> Result<BTreeSet<String>, CommandFailure> {
    Ok(route::rehearse_newest(client, config).await?.topics)
}

/// When the oldest row was written; `None` if that is not known of one.
fn oldest(rows: &BTreeMap<String, Vec<Row>>) -> Option<i64> {
    let times: Option<Vec<_>> = rows.values().flatten().map(|row| row.written_ms).collect();
    times?.into_iter().min()
}
