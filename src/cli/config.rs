//! `postrider config`: `show` prints every effective setting and where it came from, `example` prints a
//! configuration file with every option at its default.
//!
//! Input: for `show` the configuration as `run` would read it. Output: text or JSON on stdout, secrets
//! masked.

use std::fmt::Write as _;

use clap::Subcommand;
use serde_json::json;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_config::{Loaded, Shown, example_toml};

/// The two commands.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every value in effect and where it came from, secrets masked
    #[command(
        after_help = "Examples:\n  postrider config show\n  postrider config show --output json | jq .\n  PGHOST=db postrider config show --set kafka.compression=zstd"
    )]
    Show,
    /// Print a commented configuration file with every option at its default
    #[command(after_help = "Example:\n  postrider config example > postrider.toml")]
    Example,
}

/// Runs it.
pub(crate) fn run(command: &ConfigCommand, context: &Context) -> Result<ExitCode, CommandFailure> {
    match command {
        ConfigCommand::Example => context.print(&example_toml())?,
        ConfigCommand::Show => {
            let loaded = context.read(Vec::new())?;
            if context.json() {
                context.print_json(&as_json(&loaded))?;
            } else {
                context.print(&as_text(&loaded))?;
            }
        }
    }
    Ok(ExitCode::Ok)
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
