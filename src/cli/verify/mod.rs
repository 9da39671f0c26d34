//! `postrider verify`: compares the outbox tables with the topics. Only temporary files are
//! written; the unknown is reported separately; memory does not grow with the rows.

mod judge;
mod report;
mod run;
mod tables;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use crate::context::Context;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::progress_display::{ProgressDisplay, tell_interrupted};
use postrider_config::{Config, Delivery};
use postrider_relay::{Meter, StopSignal};

pub(crate) use postrider_relay::compare::CompareError as VerifyError;
use run::Run;

/// Default window of `--follow`.
const FOLLOWED: &str = "1h";

/// `verify [--since T] [--until T] [--follow] ..`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Reads the rows that are still in the outbox tables, in one snapshot, and the records of the topics that
they are routed to. Rows that the slot has not passed are pending, not lost. Records whose row was
deleted are counted and are no finding, unless --all-rows-kept says that no row is ever deleted.

Exit code: 0 clean, 1 not clean (or an error, which stderr tells).

Examples:
  postrider verify                        everything that is in the tables
  postrider verify --since 24h --output json
  postrider verify --follow --every 5m    the last hour, again and again
  postrider verify --order-column sequence --all-rows-kept")]
pub struct VerifyArgs {
    /// Rows of this time (outbox.created_at) or later: a duration ago, such as 2h, or a time as Postgres reads it
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,

    /// Rows of before this time
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    pub until: Option<String>,

    /// A column of whole numbers that rise within a key, such as a sequence: the order is judged by it too
    #[arg(long, value_name = "COLUMN")]
    pub order_column: Option<String>,

    /// A topic to read besides those that the rows are routed to; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// No row is ever deleted: a record without row is a phantom
    #[arg(long, conflicts_with_all = ["since", "until", "follow"])]
    pub all_rows_kept: bool,

    /// Whether records may come more than once: allow or forbid [default: by kafka.delivery]
    #[arg(long, value_enum, value_name = "RULE", hide_possible_values = true)]
    pub duplicates: Option<Duplicates>,

    /// How long to look again for rows that are pending
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::parse_duration)]
    pub grace: Duration,

    /// The folder for temporary files, some 210 bytes for each row [default: the system's]
    #[arg(long, value_name = "FOLDER")]
    pub work_dir: Option<PathBuf>,

    /// Do it again and again, for the rows of the last hour or of --since, until a signal
    #[arg(long)]
    pub follow: bool,

    /// With --follow: from one beginning to the next
    #[arg(long, value_name = "DURATION", default_value = "1m", requires = "follow",
          value_parser = crate::parse_duration)]
    pub every: Duration,

    /// Kafka's addresses, comma-separated [default: as configured]
    #[arg(short = 'b', long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
}

/// Whether records may come more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Duplicates {
    /// They are counted.
    Allow,
    /// They are a finding.
    Forbid,
}

impl VerifyArgs {
    fn since(&self) -> Option<&str> {
        self.since.as_deref().or(self.follow.then_some(FOLLOWED))
    }

    fn duplicates_count(&self, config: &Config) -> bool {
        match self.duplicates {
            Some(rule) => rule == Duplicates::Forbid,
            None => config.kafka.delivery == Delivery::ExactlyOnce,
        }
    }
}

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(super::brokers_flag(args.brokers.as_deref()))?.config;
    let stop = StopSignal::default();
    let (signals, listener) = (super::runtime()?, stop.clone());
    std::thread::spawn(move || {
        signals.block_on(async { super::run::listen_for_signals(listener).await });
    });
    let meter = Meter::default();
    let read = meter.clone();
    let display = ProgressDisplay::start(context, move || read.reading());
    let run = Run { args, config: &config, stop: &stop, runtime: super::runtime()?, meter };
    if args.follow {
        drop(display);
        return run.follow(context);
    }
    let report = run.once()?;
    drop(display);
    let report = report.ok_or_else(|| {
        tell_interrupted(run.meter.reading(), "nothing", (&[], &[]));
        VerifyError::Stopped
    })?;
    let text = if context.json() { None } else { Some(report.to_text()) };
    match text {
        None => context.print_json(&report.to_json())?,
        Some(text) => context.print(&text)?,
    }
    Ok(if report.is_clean() { ExitCode::Ok } else { ExitCode::CheckFailed })
}
