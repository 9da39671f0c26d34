//! `postrider replay`: sends rows of the outbox table again, with a header that marks each record.
//! Without `--execute` nothing is sent; no slot is moved.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args};
use serde_json::json;

use super::backfill::{Delivered, deliver, exit_of};
use super::codes::ErrorCode;
use super::context::Context;
use super::counted::counted;
use super::dead_letters::DeadLettersError;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::progress_display::tell_interrupted;
use postrider_config::Loaded;
use postrider_core::pipeline::MissingTopic;
use postrider_core::route::{check_topic, rfc3339};
use postrider_kafka::{KafkaSpec, SinkError, lacks_topic};
use postrider_postgres::wal::WalError;
use postrider_relay::{Plan, RelayError, RowFilter, TableJob, TablePreview, TableRows, preview};
use postrider_service::units::parse_duration;

/// `replay [--since MOMENT] [--until MOMENT] [--type TYPE] [--key KEY] [--id ID] [--to TOPIC]`
#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("rows")
        .required(true)
        .multiple(true)
        .args(["since", "until", "types", "keys", "ids", "all"])
))]
#[command(after_help = "\
Reads rows from the table, routes them as the relay does, and sends them at least once in the
order of outbox.order_by. Each record has the header postrider-origin: replay and no
postrider-lsn. Consumers that remember row ids treat it as a duplicate. A row must match every
kind of filter; within one kind, any value.

Examples:
  postrider replay --since 2h                          print the number of rows; nothing is sent
  postrider replay --since 2026-11-20T08:00:00Z --until 2026-11-20T09:00:00Z --type OrderPlaced --execute
  postrider replay --key order-4711 --to orders.replayed --execute")]
pub struct ReplayArgs {
    /// Rows written at or after this (outbox.created_at): a time, for example
    /// 2026-11-20T08:00:00Z, or a duration ago, for example 2h
    #[arg(long, value_name = "MOMENT")]
    pub since: Option<String>,
    /// Rows written before this
    #[arg(long, value_name = "MOMENT")]
    pub until: Option<String>,
    /// Rows of this event type; repeatable
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
    /// Rows of this aggregate id; repeatable
    #[arg(long = "key", value_name = "KEY")]
    pub keys: Vec<String>,
    /// Rows with this id; repeatable
    #[arg(long = "id", value_name = "ID")]
    pub ids: Vec<String>,
    /// All rows of the table
    #[arg(long, conflicts_with_all = ["since", "until", "types", "keys", "ids"])]
    pub all: bool,
    /// Send all rows to this topic
    #[arg(long, value_name = "TOPIC", value_parser = topic)]
    pub to: Option<String>,
    /// Maximum rows per second
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Send; without it, only print how many rows match
    #[arg(long, conflicts_with = "dry_run")]
    pub execute: bool,
    /// Only print how many rows match, as without --execute
    #[arg(long)]
    pub dry_run: bool,
}

fn topic(text: &str) -> Result<String, &'static str> {
    check_topic(text).map(|()| text.to_owned())
}

impl ReplayArgs {
    fn filter(&self) -> RowFilter {
        RowFilter {
            since: self.since.as_deref().map(moment),
            until: self.until.as_deref().map(moment),
            types: self.types.clone(),
            keys: self.keys.clone(),
            ids: self.ids.clone(),
        }
    }
}

/// A duration is a time ago. Other text is left to Postgres.
pub(super) fn moment(text: &str) -> String {
    let Ok(ago) = parse_duration(text) else { return text.to_owned() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    rfc3339(i64::try_from(now.saturating_sub(ago).as_millis()).unwrap_or(i64::MAX))
}

pub(crate) fn run(args: &ReplayArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let Loaded { config, stream, .. } = context.load(Vec::new())?;
    if let Some(topic) = args.to.clone()
        && let Err(reason) = config.topics_spec().check_reserved(&topic)
    {
        return Err(DeadLettersError::Reserved { topic, reason }.into());
    }
    let plan = Plan { topic: args.to.clone(), stream, ..Plan::of(config) };
    let job = TableJob { rows: TableRows::Replay(args.filter()), rate: args.rate };
    let runtime = super::runtime()?;
    // Refuses an invalid time before anything is sent.
    let found = runtime.block_on(preview(&plan, &job)).map_err(mistyped)?;
    if !args.execute {
        print_plan(&found.tables, context)?;
        return Ok(ExitCode::Ok);
    }
    if let Some(topic) = &args.to
        && plan.config.route.missing_topic.then != MissingTopic::Create
    {
        refuse_absent(&plan.kafka, topic)?;
    }
    let delivered = deliver(&runtime, plan, job, Some(found.rows()), context);
    runtime.shutdown_background();
    let Delivered { summary, reading } = delivered?;
    if !summary.caught_up {
        tell_interrupted(reading, "no position; the next replay sends all rows again", (&[], &[]));
    }
    if context.json() {
        let line = json!({ "what": "replay", "finished": summary.caught_up, "summary": summary });
        context.print_json(&line)?;
    } else {
        context.print(&format!(
            "{} confirmed, {}, {} left out\n",
            counted(summary.confirmed, "record"),
            counted(summary.dead_letters, "dead letter"),
            counted(summary.skipped, "row")
        ))?;
    }
    exit_of(&summary)
}

/// Brokers might create a mistyped topic, or every row would become a dead letter.
pub(super) fn refuse_absent(kafka: &KafkaSpec, topic: &str) -> Result<(), CommandFailure> {
    if lacks_topic(kafka, topic)? {
        return Err(SinkError::UnknownTopic { topic: topic.to_owned() }.into());
    }
    Ok(())
}

/// Class 22 (data exception): the text is not valid for its column.
fn mistyped(error: RelayError) -> CommandFailure {
    let RelayError::Wal(WalError::Server(message)) = &error else { return error.into() };
    if !message.code.starts_with("22") {
        return error.into();
    }
    let what = format!("Postgres cannot read a value of the filter: {}", message.message);
    CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what).help(
        "--since and --until take a time, such as 2026-11-20T08:00Z, or how long ago, such as 2h; --id, --key and --type a \
         value of their column's type; a created_at that is a number has no time: leave --since and --until out",
    )
}

fn print_plan(tables: &[TablePreview], context: &Context) -> Result<(), CommandFailure> {
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    if context.json() {
        return context.print_json(&json!({ "what": "replay", "rows": rows, "tables": tables }));
    }
    let lines: Vec<String> = tables
        .iter()
        .map(|table| {
            format!(
                "{table}
"
            )
        })
        .collect();
    context.print(&(lines.concat() + "nothing was sent; --execute sends them\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago() {
        assert_eq!(moment("2026-11-20T08:00:00Z"), "2026-11-20T08:00:00Z");
        assert_eq!(moment("yesterday"), "yesterday");
        let ago = moment("2h");
        assert!(ago.ends_with('Z') && ago.len() == "2026-11-20T08:00:00.000Z".len(), "{ago}");
    }
}
