//! `postrider import`: translates a Debezium configuration, or loads one directly for `--debezium`.
//!
//! Invariant: secrets are written only to a file of mode 0600. If an option is refused, stdout gets
//! no TOML without `--partial`. A file is replaced only with `--force`, and atomically.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_config::{ConfigError, FileChoice, FlagValue, Inputs, Loaded, load, to_read};
use postrider_debezium::{
    ImportError, ImportOutcome, Imported, OptionFinding, import, import_partially,
};
use postrider_relay::review;

/// The programs there are to come from.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Translate a Kafka Connect JSON or Debezium Server properties file
    #[command(
        after_help = "Examples:\n  postrider import debezium connector.json > postrider.toml\n  postrider import debezium application.properties --write postrider.toml\n  curl -s connect:8083/connectors/outbox | postrider import debezium -"
    )]
    Debezium(DebeziumArgs),
}

/// `import debezium FILE [--write FILE [--force]] [--partial]`
#[derive(Debug, Args)]
pub struct DebeziumArgs {
    /// The connector's JSON, or Debezium Server's properties; - for stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the TOML to this file, readable by its owner only and with its passwords, instead of
    /// stdout without them
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Replace the file of --write if it exists
    #[arg(long, requires = "write")]
    pub force: bool,
    /// Write what can be translated although options are refused: the TOML names them at its beginning, and records may
    /// differ without them
    #[arg(long)]
    pub partial: bool,
}

pub(crate) fn run(command: &ImportCommand, context: &Context) -> Result<ExitCode, CommandFailure> {
    let ImportCommand::Debezium(args) = command;
    let translate = if args.partial { import_partially } else { import };
    let imported = match translate(&read(&args.file)?) {
        Ok(imported) => imported,
        Err(error) => {
            if let (false, ImportError::Refused { report }) = (context.json(), &error) {
                tell(&account(&args.file, report));
            }
            return Err(error.into());
        }
    };
    if let Some(path) = &args.write {
        write(path, &imported.toml, args.force)?;
    }
    if context.json() {
        context.print_json(
            &json!({ "toml": imported.toml_without_secrets, "report": imported.report }),
        )?;
        return Ok(ExitCode::Ok);
    }
    let left_out = left_out(&imported.report);
    tell(&(account(&args.file, &imported.report) + &left_out + &refused_options(&imported)));
    if args.write.is_none() {
        context.print(&imported.toml_without_secrets)?;
    }
    Ok(ExitCode::Ok)
}

/// Loads a Debezium file, and logs the options whose meaning changes.
pub(super) fn load_imported(
    path: &Path,
    context: &Context,
    flags: Vec<FlagValue>,
) -> Result<Loaded, CommandFailure> {
    if context.names_file() {
        let what = "--config and --debezium both name the configuration";
        return Err(CommandFailure::new(ExitCode::Usage, ErrorCode::X008, what)
            .help("leave --config out and POSTRIDER_CONFIG unset"));
    }
    let Imported { toml: text, report, .. } = import(&read(path)?)?;
    // Mistakes refer to lines of the generated TOML.
    let name = PathBuf::from(format!("{} (imported)", path.display()));
    let loaded = context.load_file(FileChoice::Text { name, text }, flags)?;
    for OptionFinding { option, note, .. } in
        report.iter().filter(|finding| finding.outcome == ImportOutcome::Changed)
    {
        tracing::warn!("debezium `{option}`: {note}");
    }
    Ok(loaded)
}

fn read(path: &Path) -> Result<String, CommandFailure> {
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin().lock())
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|error| {
        let what = format!("cannot read `{}`", path.display());
        let failure = CommandFailure::new(ExitCode::Config, ErrorCode::FILE_UNREADABLE, what)
            .why(error.to_string());
        match to_read(error.kind()) {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}

/// Writes the file atomically. Temporary files are readable only by their owner.
fn write(path: &Path, toml: &str, force: bool) -> Result<(), CommandFailure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let written =
        tempfile::NamedTempFile::new_in(parent.unwrap_or(Path::new("."))).and_then(|mut file| {
            file.write_all(toml.as_bytes())?;
            let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
            kept.map(drop).map_err(|error| error.error)
        });
    written.map_err(|error| {
        let what = format!("cannot write `{}`", path.display());
        let failure = CommandFailure::new(ExitCode::CheckFailed, ErrorCode::X005, what);
        if error.kind() == io::ErrorKind::AlreadyExists {
            return failure.why("it exists").help("--force replaces it");
        }
        failure.why(error.to_string())
    })
}

fn account(path: &Path, report: &[OptionFinding]) -> String {
    let groups = [
        (ImportOutcome::Mapped, "mapped"),
        (ImportOutcome::Changed, "changed meaning"),
        (ImportOutcome::NotNeeded, "not needed"),
        (ImportOutcome::Refused, "refused"),
    ];
    let of =
        |outcome: ImportOutcome| report.iter().filter(move |finding| finding.outcome == outcome);
    let counts: Vec<String> =
        groups.iter().map(|(outcome, name)| format!("{} {name}", of(*outcome).count())).collect();
    let mut out = format!("{}: {}\n", path.display(), counts.join(", "));
    for (outcome, name) in groups.iter().filter(|(outcome, _)| *outcome != ImportOutcome::Refused) {
        if of(*outcome).next().is_some() {
            let _ = writeln!(out, "\n{name}:");
        }
        for finding in of(*outcome) {
            line(&mut out, finding);
        }
    }
    out
}

fn left_out(report: &[OptionFinding]) -> String {
    let refused = report.iter().filter(|finding| finding.outcome == ImportOutcome::Refused);
    let mut out = String::new();
    for finding in refused {
        if out.is_empty() {
            out.push_str("\nleft out, by hand before it runs:\n");
        }
        line(&mut out, finding);
    }
    out
}

fn line(out: &mut String, finding: &OptionFinding) {
    let value = match &finding.value {
        Some(value) => format!(" = {value}"),
        None => String::new(),
    };
    let arrow = if finding.outcome == ImportOutcome::Mapped { " -> " } else { ": " };
    let _ = writeln!(out, "  {}{value}{arrow}{}", finding.option, finding.note);
    if let Some(help) = &finding.help {
        let _ = writeln!(out, "      help: {help}");
    }
}

/// Options that this build or machine does not support, such as TLS.
fn refused_options(imported: &Imported) -> String {
    let file =
        FileChoice::Text { name: PathBuf::from("postrider.toml"), text: imported.toml.clone() };
    let mut out = String::new();
    if let Err(ConfigError::Mistakes(mistakes)) =
        load(&Inputs { file, ..Inputs::default() }, &review)
    {
        out.push_str("\nbefore it runs here:\n");
        for mistake in mistakes {
            let _ = writeln!(out, "  {}", mistake.kind);
            if let Some(help) = mistake.help {
                let _ = writeln!(out, "      help: {help}");
            }
        }
    }
    out
}

/// Prints text in which option names cannot control the terminal.
fn tell(text: &str) {
    let printable: String =
        text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
    let _ = io::stderr().write_all((printable + "\n").as_bytes());
}
