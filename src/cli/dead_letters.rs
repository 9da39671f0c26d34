//! `postrider dead-letters`: what could not be delivered, to look at and to send again.
//!
//! Enters: the configured Kafka side and the dead-letter topic. Leaves: lists, whole records, and
//! with `retry --execute` records in the topics they were meant for. What always holds: Postgres is
//! not touched; only `retry --execute` writes anything; dead letters are never taken away, a receipt
//! beside them says what was retried. Called by the command tree.

mod error;
mod filter;
mod layout;
mod letter;
mod list;
mod plan;
mod progress;
mod redrive;
mod retry;
mod show;
mod survey;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;
use super::specs::kafka_spec;
use crate::kafka::{KafkaSpec, Reader, ReaderSpec, Start};
use crate::route::{FormatSpec, TopicsSpec};

pub use error::DeadLettersError;

/// How long the brokers may take to answer and to name the topic's partitions.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// The three commands.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// One line for each, and a summary by code
    List(list::ListArgs),
    /// One of them whole: headers, key, value
    Show(show::ShowArgs),
    /// Send them to the topics they were meant for; a plan only, unless --execute is given
    Retry(retry::RetryArgs),
}

/// Where dead letters are read from.
#[derive(Debug, Clone, clap::Args)]
pub struct SourceArgs {
    /// The dead-letter topic [default: dead_letters.topic]
    #[arg(long, value_name = "TOPIC")]
    pub from: Option<String>,

    /// Kafka's addresses, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
}

/// Runs one of them.
pub fn run(command: &DeadLettersCommand, context: &Context) -> Result<ExitCode, Failure> {
    match command {
        DeadLettersCommand::List(args) => list::run(args, context),
        DeadLettersCommand::Show(args) => show::run(args, context),
        DeadLettersCommand::Retry(args) => retry::run(args, context),
    }
}

/// The dead-letter topic and how to reach it.
struct Source {
    kafka: KafkaSpec,
    topic: String,
    /// Where rows may go.
    topics: TopicsSpec,
    /// `[format]` makes more of a row than its columns' bytes.
    formatted: bool,
}

impl Source {
    fn of(args: &SourceArgs, context: &Context) -> Result<Self, Failure> {
        let config = context.load(super::brokers_flag(args.brokers.as_deref()))?.config;
        let mut kafka = kafka_spec(&config);
        "postrider-dead-letters".clone_into(&mut kafka.client_id);
        let mut topics = config.topics_spec();
        let topic = args.from.clone().unwrap_or(config.dead_letters.topic);
        topics.own.push(topic.clone());
        Ok(Self { kafka, topic, topics, formatted: config.format != FormatSpec::default() })
    }

    /// Reads the topic, or one partition of it, from there to its end.
    fn open(&self, partition: Option<i32>, start: Start) -> Result<Reader, DeadLettersError> {
        let spec = ReaderSpec { partition, start, ..ReaderSpec::whole(&[&self.topic]) };
        Ok(Reader::open(&self.kafka, spec, CONNECT_LIMIT)?)
    }

    /// For a producer that has one record of a key under way, and names the record that is refused.
    fn producer(&self) -> KafkaSpec {
        KafkaSpec { cautious: true, ..self.kafka.clone() }
    }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
