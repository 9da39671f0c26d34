//! `postrider dead-letters`: lists, shows and retries records that could not be delivered.
//!
//! A submodule has each command; shared arguments are here. Invariant: Postgres is not contacted.
//! Only `retry --execute` writes. A dead letter is never removed: a record beside it, the receipt,
//! states that it was retried.

mod error;
mod layout;
mod list;
mod plan;
mod retry;
mod show;

use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::progress_display::ProgressDisplay;
use postrider_core::route::{FormatSpec, RejectionCode, TopicsSpec};
use postrider_patterns::dead_letter::{
    DeadLetterError, DeadLetterTopic, Filter, Keep, Survey, Target, now_ms,
};
use postrider_relay::{Meter, Total, Unit, kafka_spec};

pub(crate) use error::DeadLettersError;

/// The three commands.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// List dead letters, one per line, with a summary by code
    List(list::ListArgs),
    /// Show one dead letter: headers, key, value
    Show(show::ShowArgs),
    /// Send dead letters to their original topics; without --execute, only print the plan
    Retry(retry::RetryArgs),
}

/// Where dead letters are read from.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SourceArgs {
    /// Dead-letter topic [default: dead_letters.topic]
    #[arg(long, value_name = "TOPIC")]
    pub from: Option<String>,

    /// Kafka brokers, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
}

/// What `list` and `retry` choose by; all that is given must hold.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FilterArgs {
    /// Only letters with this rejection code
    #[arg(long, value_name = "CODE", value_parser = codes())]
    pub code: Option<String>,

    /// Only letters for this topic
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,

    /// Only letters from this table, as the list prints it, for example public.outbox
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,

    /// Only letters with this `event_type` header
    #[arg(long, value_name = "TYPE")]
    pub event_type: Option<String>,

    /// Only letters of the row with this id
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,

    /// Only letters of this last period, for example 30m or 24h
    #[arg(long, value_name = "DURATION", value_parser = crate::parse_duration)]
    pub since: Option<Duration>,

    /// Only the first N letters, by partition and offset
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Include letters that were already retried
    #[arg(long)]
    pub all: bool,
}

fn codes() -> PossibleValuesParser {
    PossibleValuesParser::new(RejectionCode::ALL.map(RejectionCode::as_str))
}

impl FilterArgs {
    fn most(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn filter(&self, targets: Vec<Target>) -> Filter {
        let ago_ms = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Filter {
            code: self.code.clone(),
            topic: self.topic.clone(),
            table: self.table.clone(),
            event_type: self.event_type.clone(),
            id: self.id.clone(),
            since_ms: self.since.map(|since| now_ms().saturating_sub(ago_ms(since))),
            targets,
        }
    }
}

pub(crate) fn run(
    command: &DeadLettersCommand,
    context: &Context,
) -> Result<ExitCode, CommandFailure> {
    match command {
        DeadLettersCommand::List(args) => list::run(args, context),
        DeadLettersCommand::Show(args) => show::run(args, context),
        DeadLettersCommand::Retry(args) => retry::run(args, context),
    }
}

struct Source {
    topic: DeadLetterTopic,
    topics: TopicsSpec,
    /// Whether `[format]` derives records from more than the columns' bytes.
    formatted: bool,
}

impl Source {
    fn of(args: &SourceArgs, context: &Context) -> Result<Self, CommandFailure> {
        let config = context.load(super::brokers_flag(args.brokers.as_deref()))?.config;
        let mut kafka = kafka_spec(&config);
        "postrider-dead-letters".clone_into(&mut kafka.client_id);
        let mut topics = config.topics_spec();
        let name = args.from.clone().unwrap_or(config.dead_letters.topic);
        topics.own.push(name.clone());
        let formatted = config.format != FormatSpec::default();
        Ok(Self { topic: DeadLetterTopic { kafka, name }, topics, formatted })
    }

    /// Selected dead letters without their values.
    fn survey(&self, filter: &Filter, context: &Context) -> Result<Survey, DeadLetterError> {
        let meter = Meter::default();
        meter.begin("reading dead letters", Unit::Records, Total::Unknown);
        let read = meter.clone();
        let _display = ProgressDisplay::start(context, move || read.reading());
        self.topic.survey(filter, Keep::Summary, &mut |read| meter.set_done(read))
    }
}
