//! `postrider setup`: creates missing outbox table, publication, slot and topics, or prints the
//! commands.
//!
//! Invariant: setup can be repeated; `--print` changes nothing; a slot that would leave out
//! existing rows is created only with `--from-now`.

mod beginning;
mod complete;
mod polling;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(super) use complete::{complete, missing};

use super::codes::ErrorCode;
use super::context::Context;
use super::each_stream::EachStream;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::import::load_imported;
use super::route;
use postrider_config::{
    Config, ConfigError, Delivery, FlagValue, Loaded, Mistake, MistakeKind, Rejected, SourceMode,
    SourcePosition,
};
use postrider_core::route::check_topic;
use postrider_kafka::{Grade, KafkaSpec, MadeTopics, Purpose, WantedTopic, make_topics};
use postrider_postgres::control::{
    Became, ControlError, Inspection, Made, MadeSlot, OutboxPartitions, SetupChoices, SetupPlan,
    SetupStep, UnboundedTable, connect, unguarded,
};
use postrider_relay::kafka_spec;
use postrider_relay::{Plan, begin_stream};

/// `setup [--print] [--table SCHEMA.NAME] [--from-now] [--no-slot] [--debezium FILE] [--topics[=NAME,..]]`
#[derive(Debug, Args)]
#[command(after_help = "\
The role needs only the rights for what is missing: CREATE on the schema for the table,
ownership of the table and CREATE on the database for the publication, REPLICATION for the slot.
With several streams, setup runs for each, also if one fails; --stream selects one.

Examples:
  postrider setup --topics=OrderPlaced,OrderPaid
  postrider setup --table shop.outbox
  postrider setup --debezium connector.json   and then:  postrider run --debezium connector.json
  postrider setup --existing send              and then:  postrider backfill --execute
  PGUSER=owner postrider setup --no-slot      and then, as the relay's role:  postrider setup
  postrider setup --partition day             postrider prune drops whole days
  postrider setup --print --no-slot | psql shop")]
pub struct SetupArgs {
    /// Print the SQL and the commands for topics; change nothing
    #[arg(long, alias = "dry-run")]
    pub print: bool,
    /// Existing outbox table, instead of source.tables; repeatable
    #[arg(long, value_name = "SCHEMA.NAME")]
    pub table: Vec<String>,
    /// Create the slot although the table has rows; existing rows are not delivered
    #[arg(long)]
    pub from_now: bool,
    /// Do not create the slot; another role creates it
    #[arg(long)]
    pub no_slot: bool,
    /// Import this Debezium file and use it instead of a configuration file
    #[arg(long, value_name = "FILE")]
    pub debezium: Option<PathBuf>,
    /// What happens to existing rows: `skip` is the same as --from-now; with `send`, `postrider
    /// backfill` delivers them and then creates the slot
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["from_now", "no_slot"])]
    pub existing: Option<ExistingRows>,
    /// Partition a new outbox table by day of created_at: today, the next seven days, and a
    /// default partition. `postrider prune --ahead` adds later days.
    #[arg(long, value_name = "BY", conflicts_with = "table")]
    pub partition: Option<PartitionBy>,
    /// Create the topics of the rows in the table, the topics in this list, and the topics for
    /// dead letters and progress
    #[arg(
        long,
        value_name = "NAME,..",
        num_args = 0..=1,
        require_equals = true,
        value_delimiter = ',',
        default_missing_value = ""
    )]
    pub topics: Option<Vec<String>>,
    /// Partitions of new topics for rows and dead letters [default: the brokers']
    #[arg(long, value_name = "N", requires = "topics",
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: Option<i32>,
    /// Replicas of new topics [default: the brokers']
    #[arg(long, value_name = "N", requires = "topics",
          value_parser = clap::value_parser!(i32).range(1..=100))]
    pub replication: Option<i32>,
}

/// What becomes of rows that are there before the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExistingRows {
    /// `postrider backfill` delivers them and creates the slot.
    Send,
    /// Existing rows are not delivered.
    Skip,
}

/// What an outbox table is partitioned by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PartitionBy {
    /// By day, in UTC.
    Day,
}

pub(crate) fn run(args: &SetupArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let existing_tables = !args.table.is_empty();
    let tables = FlagValue { key: "source.tables", value: args.table.join(","), flag: "--table" };
    let flags = existing_tables.then_some(tables).into_iter().collect();
    let streams = match &args.debezium {
        Some(file) => EachStream::of(context, load_imported(file, context, flags)?),
        None => EachStream::load(context, flags)?,
    };
    // psql, which gets the printed script, connects to one database.
    if args.print && streams.are_several() && !context.json() {
        let names = streams.all().iter().filter_map(|one| one.stream.clone()).collect();
        return Err(ConfigError::SeveralStreams { names }.into());
    }
    for stream in streams.all() {
        check_names(args.topics.as_deref().unwrap_or(&[]), &stream.config)?;
    }
    streams.one_by_one(|stream| of_stream(args, &streams, stream))
}

fn of_stream(
    args: &SetupArgs,
    streams: &EachStream<'_>,
    stream: &Loaded,
) -> Result<ExitCode, CommandFailure> {
    let config = stream.config.clone();
    if config.source.mode == SourceMode::Poll {
        return polling::run(args, streams, stream);
    }
    let existing_tables = !args.table.is_empty();
    let relay = Plan::new(kafka_spec(&config), config);
    let wanted = relay.requirements().map_err(postrider_relay::RelayError::from)?;
    let choices = SetupChoices {
        existing_tables,
        from_now: args.from_now || args.existing == Some(ExistingRows::Skip),
        without_slot: args.no_slot || args.existing == Some(ExistingRows::Send),
        partitions: match args.partition {
            None => OutboxPartitions::None,
            Some(PartitionBy::Day) => OutboxPartitions::Day,
        },
    };
    let plan = SetupPlan::new(wanted, choices);
    if args.print {
        let topics = wanted_topics(args, &relay.config, true)?;
        print(&plan.steps, &topics, (streams, stream))?;
        return Ok(ExitCode::Ok);
    }
    let mut done = Done::default();
    let progress = progress_topic(args, &relay.config);
    let runtime = super::runtime()?;
    let made = runtime.block_on(make(&plan, &relay, progress.as_ref(), &mut done));
    if args.existing == Some(ExistingRows::Send) {
        // With `--existing send` no slot is created.
        let has_slot = done.made.iter().any(|made| made.object.starts_with("replication slot"));
        done.remarks.push(if has_slot { HAS_SLOT } else { TO_BACKFILL }.to_owned());
    }
    let made = made.and_then(|()| done.mark_beginning(&relay, &runtime));
    let made = made.map_err(|failure| {
        let is_missing = existing_tables && failure.is(ErrorCode::TABLE_MISSING);
        if is_missing { failure.help(NO_SUCH_TABLE) } else { failure }
    });
    // Rows may be written before the slot exists, so topics are created without it.
    let lacks_slot_alone = |failure: &CommandFailure| {
        [ErrorCode::NO_FREE_SLOT, ErrorCode::MAY_NOT_REPLICATE]
            .into_iter()
            .any(|code| failure.is(code))
    };
    let may_go_on = made.as_ref().err().is_none_or(lacks_slot_alone);
    let topics = if may_go_on { done.remaining_topics(args, &relay) } else { Ok(()) };
    // Objects created before a failure are printed too.
    done.print(streams, stream)?;
    made.and(topics).map(|()| ExitCode::Ok)
}

async fn make(
    plan: &SetupPlan,
    relay: &Plan,
    progress: Option<&WantedTopic>,
    done: &mut Done,
) -> Result<(), CommandFailure> {
    let client = connect(&relay.config.source.connect).await?;
    done.made = plan.make_tables(&client).await?;
    done.unguarded = unguarded(&client, &relay.config.source.tables).await?;
    let now = plan.look(&client).await?;
    for table in plan.partitioned_otherwise(&now) {
        done.remarks.push(format!(
            "table {table} exists and is not partitioned; --partition changes no table that exists"
        ));
    }
    let slot = &relay.config.source.slot;
    let object = format!("replication slot `{slot}`");
    if !plan.lacks_slot(&now) {
        if plan.finds_slot(&now) {
            done.made.push(Made::new(object, false));
        }
        return Ok(());
    }
    if !now.server.may_replicate {
        return Err(another_role(now.server.role));
    }
    // Kafka gets the progress first, so that a slot without progress is not Postrider's.
    // At-least-once delivery does not require it, so a database can be prepared without brokers.
    let begins = relay.config.kafka.delivery == Delivery::ExactlyOnce || progress.is_some();
    let mut delivered = None;
    let mut begun = None;
    if begins {
        let ready = plan.ready_for_slot(&client).await?;
        // Otherwise the brokers would create the topic with their defaults.
        done.make_topics(&relay.kafka, progress.map_or(&[], std::slice::from_ref))?;
        delivered = begin_stream(relay, &client, &ready).await?;
        begun = delivered.is_none().then_some(ready);
    }
    let made = plan.make_slot(&client).await?;
    done.begun = begun.filter(|_| made.is_some());
    done.made.push(Made::new(object, made.is_some()));
    if let (Some(delivered), Some(made)) = (delivered, &made) {
        done.remarks.push(format!(
            "an earlier slot `{slot}` delivered the rows committed up to {delivered}; rows \
             committed between {delivered} and {} are not delivered: `postrider repair` finds those \
             that are missing in Kafka, and sends them with --execute; if none must be delivered, \
             `postrider adopt --execute`",
            made.start
        ));
    }
    done.slot = made;
    Ok(())
}

/// Only the slot is missing, and another role can create it.
fn another_role(role: String) -> CommandFailure {
    let error = ControlError::RoleMayNotReplicate { role };
    let grant = error.hint().unwrap_or_default();
    CommandFailure::from(error).help(format!(
        "only the slot is missing: run `postrider setup` as the relay's role, which needs no \
         other privilege for that (--no-slot leaves the slot out here); or {grant}"
    ))
}

const TO_BACKFILL: &str = "the slot is left to `postrider backfill --execute`, which delivers the rows \
                           that are there and makes it";

const HAS_SLOT: &str = "the slot exists: `postrider backfill`, which creates its slot, does not \
                        send earlier rows; `postrider repair` sends the earlier rows that are \
                        missing in Kafka";

const NO_SUCH_TABLE: &str = "--table must name an existing table: correct the name; to create the \
                             table, leave --table out and set source.tables to its name";

/// Refuses names that no row can go to, such as the relay's or Kafka's own topics.
fn check_names(names: &[String], config: &Config) -> Result<(), CommandFailure> {
    let spec = config.topics_spec();
    let names = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    let mistake = |name: &str| {
        let (reason, help) = if let Err(reason) = check_topic(name) {
            (reason, "correct the name")
        } else if let Err(reason) = spec.check_reserved(name) {
            (
                reason,
                "leave it out: no row is routed there; the topics for dead letters and progress \
                 are created without being named",
            )
        } else {
            (spec.check(name).err()?, "leave it out, or add a pattern for it to the setting")
        };
        let kind = MistakeKind::Invalid { key: name.to_owned(), reason: reason.to_owned() };
        let place = SourcePosition::Named("--topics".to_owned());
        Some(Mistake { kind, place, help: Some(help.to_owned()) })
    };
    let mistakes: Vec<Mistake> = names.filter_map(mistake).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError::Mistakes(mistakes).into()) }
}

fn wanted_topics(
    args: &SetupArgs,
    config: &Config,
    may_lack_table: bool,
) -> Result<Vec<WantedTopic>, CommandFailure> {
    let Some(asked) = &args.topics else { return Ok(Vec::new()) };
    let mut names: BTreeSet<String> =
        asked.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let found = super::runtime()?.block_on(async {
        let client = connect(&config.source.connect).await?;
        route::topics_of_rows(&client, config).await
    });
    match found {
        // `--print` is for a user who creates the table first.
        Err(error) if may_lack_table && error.is(ErrorCode::TABLE_MISSING) => {}
        found => names.extend(own_topics(found, &names)?),
    }
    let mut wanted: Vec<_> =
        names.into_iter().map(|name| WantedTopic::new(name, Purpose::Rows)).collect();
    if config.route.rejected == Rejected::DeadLetter {
        wanted.push(WantedTopic::new(&config.dead_letters.topic, Purpose::DeadLetters));
    }
    for topic in &mut wanted {
        topic.partitions = args.partitions.unwrap_or(topic.partitions);
        topic.replication = args.replication.unwrap_or(topic.replication);
    }
    wanted.extend(progress_topic(args, config));
    Ok(wanted)
}

/// Topics of rows. If the role may not read the table, the other topics are still created. Only a
/// user who names no topics is warned.
fn own_topics(
    found: Result<BTreeSet<String>, CommandFailure>,
    named: &BTreeSet<String>,
) -> Result<BTreeSet<String>, CommandFailure> {
    match found {
        Err(error) if error.is(ErrorCode::TABLE_FORBIDDEN) => {
            if named.is_empty() {
                let help = error.findings.into_iter().find_map(|finding| finding.help);
                tracing::warn!(
                    help,
                    "the role may not read the table, so the topics of its rows are unknown: name \
                     them with --topics=NAME,.."
                );
            }
            Ok(BTreeSet::new())
        }
        found => found,
    }
}

fn progress_topic(args: &SetupArgs, config: &Config) -> Option<WantedTopic> {
    let is_kept = config.kafka.delivery == Delivery::ExactlyOnce || config.progress.at_least_once;
    if args.topics.is_none() || !is_kept {
        return None;
    }
    let topic = WantedTopic::new(&config.progress.topic, Purpose::Progress);
    Some(WantedTopic { replication: args.replication.unwrap_or(topic.replication), ..topic })
}

#[derive(Debug, Default)]
struct Done {
    made: Vec<Made>,
    slot: Option<MadeSlot>,
    topics: MadeTopics,
    unguarded: Vec<UnboundedTable>,
    remarks: Vec<String>,
    /// State before the slot was created, if a stream was begun.
    begun: Option<Inspection>,
}

impl Done {
    fn make_topics(
        &mut self,
        kafka: &KafkaSpec,
        wanted: &[WantedTopic],
    ) -> Result<(), CommandFailure> {
        if wanted.is_empty() {
            return Ok(());
        }
        let made = make_topics(kafka, wanted)?;
        self.topics.created.extend(made.created);
        self.topics.existing.extend(made.existing);
        self.topics.findings.extend(made.findings);
        Ok(())
    }

    fn remaining_topics(&mut self, args: &SetupArgs, relay: &Plan) -> Result<(), CommandFailure> {
        let mut wanted = wanted_topics(args, &relay.config, false)?;
        wanted.retain(|topic| !self.topics.has(&topic.name));
        self.make_topics(&relay.kafka, &wanted)
    }

    fn mark_beginning(&self, relay: &Plan, runtime: &Runtime) -> Result<(), CommandFailure> {
        let Some((ready, slot)) = self.begun.as_ref().zip(self.slot.as_ref()) else {
            return Ok(());
        };
        beginning::mark(relay, runtime, ready, slot)
    }

    fn print(mut self, streams: &EachStream<'_>, stream: &Loaded) -> Result<(), CommandFailure> {
        if let Some(slot) = &self.slot {
            for (table, rows) in &slot.left_behind {
                self.remarks.push(format!(
                    "table {table} has {rows}; rows committed before {} are not delivered",
                    slot.start
                ));
            }
        }
        let topic = |name: &String| format!("topic `{name}`");
        let objects = |became: Became, topics: &[String]| -> Vec<String> {
            let made = self.made.iter().filter(|made| made.became == became);
            made.map(|made| made.object.clone()).chain(topics.iter().map(topic)).collect()
        };
        let created = objects(Became::Created, &self.topics.created);
        let added = objects(Became::Added, &[]);
        let existing = objects(Became::Existed, &self.topics.existing);
        let worth = self.topics.findings.iter().filter(|one| one.grade < Grade::Remark);
        for finding in worth {
            tracing::warn!(help = finding.help, "{finding}");
        }
        let start = self.slot.map(|slot| slot.start.to_string());
        let value = json!({
            "created": created, "added": added, "existing": existing, "slot_begins_at": start,
            "remarks": self.remarks, "unguarded": open_tables(&self.unguarded),
        });
        let mut lines = String::new();
        for object in created {
            let _ = writeln!(lines, "created: {object}");
        }
        for object in added {
            let _ = writeln!(lines, "added: {object}");
        }
        for object in existing {
            let _ = writeln!(lines, "already exists: {object}");
        }
        for remark in self.remarks {
            let _ = writeln!(lines, "note: {remark}");
        }
        for UnboundedTable { table, columns, sql } in self.unguarded {
            let columns = columns.join(", ");
            let _ = writeln!(
                lines,
                "note: table {table} has no limit on the size of rows ({columns}); a row that \
                 Postgres cannot send blocks the slot for good. To refuse such rows:\n{sql}"
            );
        }
        streams.print(stream, &lines, || value)
    }
}

fn open_tables(tables: &[UnboundedTable]) -> Vec<Value> {
    let open = |UnboundedTable { table, columns, sql }: &UnboundedTable| json!({ "table": table.to_string(), "columns": columns, "sql": sql });
    tables.iter().map(open).collect()
}

fn print(
    steps: &[SetupStep],
    topics: &[WantedTopic],
    (streams, stream): (&EachStream<'_>, &Loaded),
) -> Result<(), CommandFailure> {
    let commands: Vec<String> = topics.iter().map(WantedTopic::command).collect();
    let step = |step: &SetupStep| json!({ "object": step.object, "sql": step.sql });
    let value = json!({ "steps": steps.iter().map(step).collect::<Vec<_>>(), "topics": commands });
    let mut script: Vec<String> = steps.iter().map(|step| step.sql.clone()).collect();
    // Topic commands are comments, so that the whole script runs in psql.
    script.extend(commands.iter().map(|command| format!("-- {command}\n")));
    streams.print(stream, &script.join("\n"), || value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::outbox::TableName;

    #[test]
    fn a_table_that_may_not_be_read_is_no_news_to_who_names_the_topics() {
        let forbidden = || {
            let table = TableName::new("public", "outbox");
            Err(ControlError::TableForbidden { table, role: "relay".to_owned() }.into())
        };
        let named = BTreeSet::from(["OrderPaid".to_owned()]);
        assert!(own_topics(forbidden(), &named).unwrap().is_empty());
        assert!(own_topics(forbidden(), &BTreeSet::new()).unwrap().is_empty(), "it is warned of");
        let missing = || {
            let (table, database) = (TableName::new("public", "outbox"), "shop".to_owned());
            Err(ControlError::TableMissing { table, database }.into())
        };
        assert!(own_topics(missing(), &named).is_err());
    }
}
