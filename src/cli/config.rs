//! `postrider config`: prints effective settings with their origins, the streams of the file, or an
//! example.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::Subcommand;
use serde_json::json;

use super::context::Context;
use super::each_stream::EachStream;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_config::{Loaded, Shown, SourceMode, example_toml};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every value in effect and its origin, with secrets masked
    #[command(
        after_help = "Examples:\n  postrider config show\n  postrider config show --output json | jq .\n  PGHOST=db postrider config show --set kafka.compression=zstd"
    )]
    Show,
    /// List the streams ([[stream]] in the file) and their sources
    #[command(
        after_help = "Prints one line per stream with its name, or one JSON object. A configuration without [[stream]] has one\nstream without a name; in JSON the name is null.\n\nExamples:\n  postrider config streams\n  postrider config streams --output json | jq -r .slot"
    )]
    Streams,
    /// Print a commented configuration file with all defaults
    #[command(after_help = "Example:\n  postrider config example > postrider.toml")]
    Example,
}

pub(crate) fn run(command: &ConfigCommand, context: &Context) -> Result<ExitCode, CommandFailure> {
    match command {
        ConfigCommand::Example => context.print(&example_toml())?,
        ConfigCommand::Show => {
            let streams = EachStream::read(context)?;
            return streams.one_by_one(|loaded| {
                streams.print(loaded, &as_text(loaded), || as_json(loaded))?;
                Ok(ExitCode::Ok)
            });
        }
        ConfigCommand::Streams => list_streams(context)?,
    }
    Ok(ExitCode::Ok)
}

fn list_streams(context: &Context) -> Result<(), CommandFailure> {
    for Loaded { stream, config, .. } in context.read_streams()? {
        if !context.json() {
            match stream {
                Some(name) => context.print(&format!("{name}\n"))?,
                None => drop(io::stderr().write_all(b"the only stream has no name\n")),
            }
            continue;
        }
        let connect = &config.source.connect;
        let servers: Vec<_> = connect.endpoints.iter().map(ToString::to_string).collect();
        let is_polled = config.source.mode == SourceMode::Poll;
        let slot = (!is_polled).then_some(&config.source.slot);
        context.print_json(&json!({
            "stream": stream, "servers": servers, "database": connect.database, "slot": slot,
            "brokers": config.kafka.brokers,
        }))?;
    }
    Ok(())
}

fn as_text(loaded: &Loaded) -> String {
    let setting = |key: &str, value: &Shown| format!("{key} = {value}");
    let width = loaded
        .effective
        .iter()
        .map(|line| setting(&line.key, &line.value).chars().count())
        .filter(|&width| width <= 60)
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for line in &loaded.effective {
        let _ = writeln!(out, "{:width$}  # {}", setting(&line.key, &line.value), line.origin);
    }
    out
}

fn as_json(loaded: &Loaded) -> serde_json::Value {
    let lines: Vec<_> = loaded
        .effective
        .iter()
        .map(|line| {
            json!({ "key": line.key, "value": line.value, "origin": line.origin.to_string() })
        })
        .collect();
    let file = loaded.file.as_ref().map(|path| path.display().to_string());
    json!({ "file": file, "settings": lines })
}
