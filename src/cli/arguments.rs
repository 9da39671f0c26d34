//! Defines the command line with clap: global options and one variant of `Command` per command.
//! Secrets in arguments are masked in printed mistakes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Arg, Args, ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::adopt::AdoptArgs;
use super::backfill::BackfillArgs;
use super::bench::BenchArgs;
use super::broker::BrokerArgs;
use super::codes::ErrorCode;
use super::completions::CompletionsArgs;
use super::config::ConfigCommand;
use super::ctl::CtlArgs;
use super::dead_letters::DeadLettersCommand;
#[cfg(feature = "demo")]
use super::demo::DemoArgs;
use super::doctor::DoctorArgs;
use super::exit::ExitCode;
use super::failure::{CommandFailure, Form};
use super::import::ImportCommand;
use super::lag::LagArgs;
use super::man::ManArgs;
use super::peek::PeekArgs;
use super::prune::PruneArgs;
use super::repair::RepairArgs;
use super::replay::ReplayArgs;
use super::route::RouteArgs;
use super::run::RunArgs;
use super::setup::SetupArgs;
use super::status::StatusArgs;
use super::tail::TailArgs;
#[cfg(feature = "top")]
use super::top::TopArgs;
use super::trace::TraceArgs;
use super::verify::VerifyArgs;
use crate::mask_arguments::clap_error_without_secrets;

/// Delivers a PostgreSQL transactional outbox to Kafka, straight from the write-ahead log.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options before or after any command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Configuration file [default: ./postrider.toml, then /etc/postrider/postrider.toml]
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        env = "POSTRIDER_CONFIG",
        hide_env = true
    )]
    pub config: Option<PathBuf>,
    /// Set one option, for example kafka.compression=zstd; repeatable
    #[arg(long, global = true, value_name = "A.B=V")]
    pub set: Vec<String>,
    /// Stream of this command, if the file has several ([[stream]])
    // `doctor` defines the same id, because its `--only` names a check.
    #[arg(id = "stream", long, alias = "only", global = true, value_name = "NAME")]
    pub only: Option<String>,
    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORM",
        hide_possible_values = true,
        help = "Output format: human or json"
    )]
    pub output: Output,
    /// When to use colours
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value_t,
        hide_possible_values = true,
        help = "Colours: auto, always or never"
    )]
    pub color: ColorChoice,
    /// Log more; twice for much more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log less; twice for errors only
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    pub quiet: u8,
    /// Log format: text or json [default: log.format, or else json with --output json]
    #[arg(long, global = true, value_name = "FORM", value_parser = ["text", "json"], hide_possible_values = true)]
    pub log_format: Option<String>,
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Human,
    /// JSON, one object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Deliver the outbox to Kafka until told to stop
    Run(RunArgs),
    /// Run a self-contained demo: private Postgres, embedded broker, shop, relay, verdict
    #[cfg(feature = "demo")]
    Demo(DemoArgs),
    /// Create the outbox table, publication and slot if they do not exist
    Setup(SetupArgs),
    /// Preview records without sending any
    Route(RouteArgs),
    /// Print the records of a topic
    Tail(TailArgs),
    /// Convert another program's configuration to Postrider's
    #[command(subcommand)]
    Import(ImportCommand),
    /// List, show and retry dead letters
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Check for problems that would stop or harm a run, and print how to fix them
    Doctor(DoctorArgs),
    /// Show database, slot, relay, brokers and progress on one screen
    Status(StatusArgs),
    /// Pause, resume, drain or reload a running relay, or set its log level
    Ctl(CtlArgs),
    /// Watch a running relay in the terminal
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Print how far delivery is behind, with an exit code
    Lag(LagArgs),
    /// Print pending rows of the slot without consuming them
    Peek(PeekArgs),
    /// Find rows: in the table, behind the slot, in a topic, among the dead letters
    Trace(TraceArgs),
    /// Compare the outbox tables with the topics: lost, duplicate or reordered records
    Verify(VerifyArgs),
    /// Start progress tracking at the slot's position
    Adopt(AdoptArgs),
    /// Deliver rows written before the slot existed, and create the slot
    Backfill(BackfillArgs),
    /// Recover from a lost slot: deliver the rows that Kafka lacks, and create the slot
    Repair(RepairArgs),
    /// Send rows of the outbox table again
    Replay(ReplayArgs),
    /// Delete old rows that every slot has passed, or drop their partitions
    Prune(PruneArgs),
    /// Measure the relay against Postgres's own client
    Bench(BenchArgs),
    /// Show the configuration in effect, or an example
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
    /// Print the version and build information
    Version,
    /// Run an embedded broker
    #[command(hide = true)]
    Broker(BrokerArgs),
}

pub(crate) fn command() -> clap::Command {
    let mut codes = String::from("Exit codes:\n");
    for (code, meaning) in ExitCode::ALL {
        let _ = writeln!(codes, "  {:>3}  {meaning}", code.number());
    }
    codes.push_str(
        "\nExamples:\n  postrider demo\n  postrider config example > postrider.toml\n  \
         postrider setup --print\n  postrider run\n",
    );
    // kcat's `tail -c N` is an alias of `-n N`, so the global option has only its long form there.
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .env("POSTRIDER_CONFIG")
        .hide_env(true)
        .help_heading("Global options")
        .help("Configuration file");
    Cli::command().after_long_help(codes).mut_subcommand("tail", |tail| tail.arg(config))
}

/// On a mistake or `--help`, prints clap's text, as JSON if the log is JSON, and returns the exit
/// code.
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, ExitCode> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let form = json_form(&arguments);
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let parsed = command()
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let fit = clap_error_without_secrets(&error, words);
        if let Some(form) = form
            && error.use_stderr()
        {
            let what = fit.unwrap_or_else(|| error.render().to_string());
            let what = what.strip_prefix("error: ").unwrap_or(&what).trim_end().to_owned();
            CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what).print(form);
        } else {
            let _ = match fit {
                Some(fit) => std::io::stderr().write_all(fit.as_bytes()),
                None => error.print(),
            };
        }
        if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok }
    })
}

pub(super) fn log_variable() -> Option<String> {
    std::env::var("POSTRIDER_LOG__FORMAT").ok()
}

/// JSON form of a failure, if an unparsable command line asks for one.
fn json_form(arguments: &[std::ffi::OsString]) -> Option<Form> {
    let words: Vec<_> = arguments.iter().filter_map(|word| word.to_str()).collect();
    let asks = |option: &str| {
        let joined = format!("{option}=json");
        words.windows(2).any(|two| two == [option, "json"]) || words.contains(&joined.as_str())
    };
    if asks("--output") {
        Some(Form::Object)
    } else if asks("--log-format") || log_variable().is_some_and(|format| format == "json") {
        Some(Form::LogLines)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Cli {
        let matches = command().try_get_matches_from(line.split(' ')).unwrap();
        Cli::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_tree_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn globals_go_before_and_after_the_command() {
        for line in ["postrider -c a.toml --set x.y=z run", "postrider run -c a.toml --set x.y=z"] {
            let cli = read(line);
            assert_eq!(cli.globals.config.as_deref(), Some("a.toml".as_ref()), "{line}");
            assert_eq!(cli.globals.set, ["x.y=z"]);
        }
    }

    #[test]
    fn tail_counts_by_n_and_by_kcats_c() {
        for short in ["-n", "-c"] {
            let cli = read(&format!("postrider tail {short} 5 orders"));
            assert!(matches!(cli.command, Command::Tail(tail) if tail.count == Some(5)));
        }
        let cli = read("postrider tail --config a.toml -c 5 orders");
        assert_eq!(cli.globals.config.as_deref(), Some("a.toml".as_ref()));
        let cli = read("postrider -c a.toml tail -c 5 orders");
        assert_eq!(cli.globals.config.as_deref(), Some("a.toml".as_ref()));
    }

    #[test]
    fn a_stream_is_named_before_and_after_a_command_and_doctors_checks_stay_what_they_are() {
        for line in
            ["postrider --stream a run", "postrider run --only a", "postrider doctor --stream a"]
        {
            assert_eq!(read(line).globals.only.as_deref(), Some("a"), "{line}");
        }
        for line in
            ["postrider --stream a doctor --check slot", "postrider --only a doctor --only slot"]
        {
            let cli = read(line);
            assert_eq!(cli.globals.only.as_deref(), Some("a"));
            assert!(matches!(cli.command, Command::Doctor(doctor) if doctor.only == ["slot"]));
        }
        assert_eq!(read("postrider doctor --only slot").globals.only, None);
    }

    #[test]
    fn every_command_has_help_and_later_ones_are_absent() {
        for command in command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
