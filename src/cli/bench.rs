//! `postrider bench`: declares its subcommands, runs one, and prints figures as text or JSON.
//!
//! A submodule measures each comparison. A relay that did not deliver every row is a
//! [`BenchError`].

mod ceiling;
mod delivery;
mod drain;
mod programs;
mod server;
mod source;
mod visible;
mod wal_load;
mod watched;

use std::fmt::Display;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_config::Delivery as Guarantee;
use postrider_kafka::{ReaderError, TopicsError};
use postrider_postgres::control::ControlError;
use postrider_postgres::libpq::ConnectInfoError;
use postrider_sandbox::SandboxError;

use drain::DrainError;
use programs::{EmbeddedBroker, ProgramError};
use visible::PATIENCE;

pub(crate) use ceiling::CeilingArgs;

/// `bench ceiling ..`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Drain the same WAL with pg_recvlogical and with the relay, and compare
    #[command(
        after_help = "Examples:\n  postrider bench ceiling\n  postrider bench ceiling --rows 300000 --tx-rows 1000 --transport tcp --output json"
    )]
    Ceiling(CeilingArgs),
    /// Drain the same WAL with at_least_once and exactly_once in turn, and compare
    #[command(
        after_help = "Examples:\n  postrider bench delivery --topics 50\n  postrider bench delivery --brokers localhost:9092 --output json\n  postrider bench delivery --brokers localhost:9092 --latency 1000"
    )]
    Delivery(DeliveryArgs),
    /// Deliver the same rows from the WAL and by polling, and compare
    #[command(
        after_help = "Examples:\n  postrider bench source\n  postrider bench source --rows 1000000 --workers 4 --output json"
    )]
    Source(source::SourceArgs),
    /// Drain the same WAL with and without a visitor of dashboard, metrics and live tail, and
    /// compare
    #[command(
        after_help = "Examples:\n  postrider bench watched\n  postrider bench watched --rows 1000000 --pairs 15 --output json"
    )]
    Watched(watched::WatchedArgs),
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct DeliveryArgs {
    /// Rows to write and to drain each time.
    #[arg(long, default_value_t = 300_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=50_000_000))]
    pub rows: u32,
    /// Rows per transaction.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub per_transaction: u32,
    /// Topics, of three partitions each.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub topics: u32,
    /// Pairs of drains.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub pairs: u32,
    /// Brokers to use, HOST:PORT; otherwise an embedded one.
    #[arg(short, long, value_name = "LIST")]
    pub brokers: Option<String>,
    /// Instead: rows per second to commit for 20 s, and how long until they are visible.
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub latency: Option<u32>,
    /// Further settings of the relay, as for `run --set`.
    #[arg(long = "relay-set", value_name = "A.B=V")]
    pub relay_set: Vec<String>,
}

impl DeliveryArgs {
    const fn broker_name(&self) -> &'static str {
        if self.brokers.is_some() { "kafka" } else { "embedded" }
    }

    fn brokers(&self) -> Result<(String, Option<EmbeddedBroker>), ProgramError> {
        if let Some(brokers) = &self.brokers {
            return Ok((brokers.clone(), None));
        }
        let broker = EmbeddedBroker::start(self.topics)?;
        Ok((broker.bootstrap.clone(), Some(broker)))
    }

    fn relay_settings(&self, guarantee: Guarantee) -> Vec<String> {
        let delivery = format!("kafka.delivery={}", guarantee.as_str());
        std::iter::once(delivery).chain(self.relay_set.iter().cloned()).collect()
    }
}

pub(crate) fn run(args: &BenchArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    context.start_logs()?;
    let runtime = super::runtime()?;
    match &args.what {
        Bench::Ceiling(args) => {
            let figures = runtime.block_on(ceiling::measure(args));
            tell(context, figures?)
        }
        Bench::Delivery(args) => {
            let figures = runtime.block_on(delivery::measure(args));
            tell(context, figures?)
        }
        Bench::Source(args) => {
            let figures = runtime.block_on(source::measure(args));
            tell(context, figures?)
        }
        Bench::Watched(args) => {
            let figures = runtime.block_on(watched::measure(args));
            tell(context, figures?)
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Address(#[from] ConnectInfoError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the bench's SQL failed")]
    Sql(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Drain(#[from] DrainError),
    #[error(transparent)]
    Topics(#[from] TopicsError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// Figures of such a relay mean nothing.
    #[error("the {drain} did not deliver every row: {reason}")]
    NotWhole {
        /// For example ``drain of slot `bench_relay` ``.
        drain: String,
        reason: String,
    },
    /// A thread or task of the bench panicked.
    #[error("a {0} broke down")]
    Part(&'static str),
    #[error("{arrived} of {written} rows were visible {} s after the last", PATIENCE.as_secs())]
    Missing {
        /// Rows that a consumer could read.
        arrived: usize,
        written: usize,
    },
}

impl From<BenchError> for CommandFailure {
    fn from(error: BenchError) -> Self {
        let hint = match &error {
            BenchError::Sandbox(error) => error.hint(),
            BenchError::Topics(error) => error.hint(),
            BenchError::Reader(error) => error.hint(),
            _ => None,
        };
        Self::of(ExitCode::CheckFailed, ErrorCode::X010, &error, hint)
    }
}

fn tell(context: &Context, figures: impl Serialize + Display) -> Result<ExitCode, CommandFailure> {
    if context.json() {
        context.print_json(&figures)?;
    } else {
        context.print(&figures.to_string())?;
    }
    Ok(ExitCode::Ok)
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

fn to_mib(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "memory is far below 2^53 bytes")]
    let bytes = bytes as f64;
    round(bytes / f64::from(1 << 20), 1)
}
