//! The command line of `postrider`: one file per command.
//!
//! Invariant: stdout is data only; every error states what, why, help and a code; no secret is
//! printed.
//!
//! ```
//! use postrider_cli::{Command, parse};
//!
//! let arguments = ["postrider", "run", "--once"].map(Into::into);
//! let cli = parse(arguments).expect("a command line");
//! assert!(matches!(cli.command, Command::Run(run) if run.once));
//! ```

mod adopt;
mod arguments;
mod backfill;
mod bench;
mod broker;
mod codes;
mod completions;
mod config;
mod context;
mod counted;
mod ctl;
mod dead_letters;
#[cfg(feature = "demo")]
mod demo;
mod display_bytes;
mod doctor;
mod each_stream;
mod exit;
mod failure;
mod failures;
mod import;
mod lag;
pub mod logs;
mod man;
mod marks;
pub mod mask_arguments;
mod peek;
mod progress_display;
mod prune;
mod repair;
mod replay;
mod route;
mod run;
mod setup;
mod status;
mod stream_position;
mod tail;
#[cfg(feature = "top")]
mod top;
mod topic_help;
mod trace;
mod verify;
mod version;

pub use arguments::{Cli, Command, Output, parse};
pub use codes::ErrorCode;
pub use context::Context;
pub use exit::ExitCode;
pub use failure::{CommandFailure, Diagnostic, Form};
use postrider_config::{Config, FlagValue, SourceMode};
use postrider_kafka::ReaderError;
use postrider_service::units::parse_duration;

/// The help of a failure names the stream of `--stream`.
pub fn dispatch(command: &Command, context: &Context) -> Result<ExitCode, CommandFailure> {
    let result = run_command(command, context);
    result.map_err(|failure| match context.only() {
        Some(name) => failure.of_stream(name),
        None => failure,
    })
}

fn run_command(command: &Command, context: &Context) -> Result<ExitCode, CommandFailure> {
    match command {
        Command::Run(args) => run::run(args, context),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args, context),
        Command::Route(args) => route::run(args, context),
        Command::Setup(args) => setup::run(args, context),
        Command::Tail(args) => follow(args, context),
        Command::DeadLetters(command) => dead_letters::run(command, context),
        Command::Adopt(args) => adopt::run(args, context),
        Command::Backfill(args) => backfill::run(args, context),
        Command::Repair(args) => repair::run(args, context),
        Command::Replay(args) => replay::run(args, context),
        Command::Prune(args) => prune::run(args, context),
        Command::Status(args) => status::run(args, context),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(args, context),
        Command::Lag(args) => lag::run(args, context),
        Command::Peek(args) => peek::run(args, context),
        Command::Trace(args) => trace::run(args, context),
        Command::Verify(args) => verify::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Ctl(args) => ctl::run(args, context),
        Command::Bench(args) => bench::run(args, context),
        Command::Import(command) => import::run(command, context),
        Command::Config(command) => config::run(command, context),
        Command::Completions(args) => completions::run(args, arguments::command(), context),
        Command::Man(args) => man::run(args, arguments::command(), context),
        Command::Version => version::run(context),
        Command::Broker(args) => Ok(broker::run(args).map(|()| ExitCode::Ok)?),
    }
}

/// The address is passed in a variable, because it may hold a password and command lines are
/// public.
fn set_source(command: &mut std::process::Command, url: &str) {
    const VARIABLE: &str = "POSTRIDER_SOURCE__URL";
    command.env(VARIABLE, url).env_remove(format!("{VARIABLE}_FILE"));
}

fn follow(args: &tail::TailArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let loaded = context.load(brokers_flag(args.brokers.as_deref()))?;
    let mut args = args.clone();
    args.json |= context.json() && args.format.is_none();
    let kafka = postrider_relay::kafka_spec(&loaded.config);
    match tail::run(&args, kafka.clone(), context.color_stdout()) {
        Err(tail::TailError::Reader(ReaderError::UnknownTopic(topic))) => {
            // Without a list of topics, the help names none.
            let there = postrider_kafka::topic_names(&kafka).unwrap_or_default();
            let help = topic_help::missing_topic_help(&topic, &there, &kafka.brokers);
            Err(CommandFailure::from(ReaderError::UnknownTopic(topic)).help(help))
        }
        ended => Ok(ended.map(|()| ExitCode::Ok)?),
    }
}

fn brokers_flag(brokers: Option<&str>) -> Vec<FlagValue> {
    let flag =
        |value: &str| FlagValue { key: "kafka.brokers", value: value.to_owned(), flag: "-b" };
    brokers.map(flag).into_iter().collect()
}

fn with_brokers(help: &str, brokers: &[String]) -> String {
    help.replace("BROKER", &brokers.join(","))
}

/// Refuses a command about a slot if rows are polled.
fn needs_slot(config: &Config, what: &str) -> Result<(), CommandFailure> {
    if config.source.mode == SourceMode::Stream {
        return Ok(());
    }
    let reason =
        format!("`{what}` is about a replication slot, and source.mode = \"poll\" has none");
    let failure = CommandFailure::new(ExitCode::Config, ErrorCode::P110, reason);
    Err(failure.help(
        "rows wait in their tables, and source.poll.mark marks the delivered ones: `postrider \
         run` delivers those that are there, `postrider replay` sends some again, `postrider \
         route --from-database` shows what would be sent; delivered rows may be deleted by SQL",
    ))
}

/// Runtime of the control plane, with one thread; the hot path has its own.
fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::of(ExitCode::CheckFailed, ErrorCode::X003, &error, None))
}
