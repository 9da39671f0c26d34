//! `postrider verify`: compares the outbox tables with the topics. Only temporary files are
//! written; the unknown is reported separately; memory does not grow with the rows.

mod judge;
mod report;
mod run;
mod tables;
mod verdict;

use std::io::stdout;
use std::path::PathBuf;
use std::time::Duration;

use crate::context::Context;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use crate::marks::columns;
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
Compares the rows of the outbox tables, read in one snapshot, with the records of their topics.
Rows that the slot has not passed are pending, not lost. Records of deleted rows are counted and
are no finding, unless --all-rows-kept is given.

Exit code: 0 clean; 1 findings, or an error, which stderr prints.

Examples:
  postrider verify                        all rows of the tables
  postrider verify --since 24h --output json
  postrider verify --follow --every 5m    the last hour, every 5 minutes
  postrider verify --order-column sequence --all-rows-kept")]
pub struct VerifyArgs {
    /// Only rows written at or after this time (outbox.created_at): a duration ago, for example
    /// 2h, or a time as Postgres reads it
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,

    /// Only rows written before this time
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    pub until: Option<String>,

    /// Integer column that increases within a key, for example a sequence; verify checks the
    /// order by it, too
    #[arg(long, value_name = "COLUMN")]
    pub order_column: Option<String>,

    /// Additional topic to read, besides the topics that rows are routed to; repeatable
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// Declare that rows are never deleted: a record without a row is a phantom
    #[arg(long, conflicts_with_all = ["since", "until", "follow"])]
    pub all_rows_kept: bool,

    /// Whether duplicates are allowed: allow or forbid [default: by kafka.delivery]
    #[arg(long, value_enum, value_name = "RULE", hide_possible_values = true)]
    pub duplicates: Option<Duplicates>,

    /// Time to wait for pending rows
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::parse_duration)]
    pub grace: Duration,

    /// Folder for temporary files, about 210 bytes per row [default: the system's]
    #[arg(long, value_name = "FOLDER")]
    pub work_dir: Option<PathBuf>,

    /// Repeat until a signal, for the rows of the last hour or of --since
    #[arg(long)]
    pub follow: bool,

    /// With --follow: interval between the starts of two rounds
    #[arg(long, value_name = "DURATION", default_value = "1m", requires = "follow",
          value_parser = crate::parse_duration)]
    pub every: Duration,

    /// Kafka brokers, comma-separated [default: as configured]
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
    let text = if context.json() { None } else { Some(report.to_text(columns(stdout()))) };
    match text {
        None => context.print_json(&report.to_json())?,
        Some(text) => context.print(&text)?,
    }
    Ok(if report.is_clean() { ExitCode::Ok } else { ExitCode::CheckFailed })
}
