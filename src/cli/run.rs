//! `postrider run`: the relay.

use clap::Args;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

/// `run [--once] [--dry-run] [--no-wait]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider run\n  postrider run --once\n  PGHOST=db PGUSER=postrider POSTRIDER_KAFKA__BROKERS=kafka:9092 postrider run"
)]
pub struct RunArgs {
    /// Deliver what was committed when it started, acknowledge it, exit
    #[arg(long)]
    pub once: bool,
    /// Decode and route to stdout; nothing is sent and nothing acknowledged
    #[arg(long)]
    pub dry_run: bool,
    /// Exit with code 75 instead of waiting when another relay holds the slot
    #[arg(long)]
    pub no_wait: bool,
}

/// Runs it.
pub fn run(_args: &RunArgs, context: &Context) -> Result<ExitCode, Failure> {
    let _loaded = context.load(Vec::new())?;
    Err(Failure::new(ExitCode::CheckFailed, "PR-X000", "not there yet"))
}
