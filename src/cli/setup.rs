//! `postrider setup`: outbox table, publication and slot, made where they are missing.

use clap::Args;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

/// `setup [--print] [--table SCHEMA.NAME]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider setup --print | psql shop\n  postrider setup --table shop.outbox"
)]
pub struct SetupArgs {
    /// Print the SQL and do nothing
    #[arg(long)]
    pub print: bool,
    /// An existing outbox table; may be repeated [default: source.tables]
    #[arg(long, value_name = "SCHEMA.NAME")]
    pub table: Vec<String>,
}

/// Runs it.
pub fn run(_args: &SetupArgs, _context: &Context) -> Result<ExitCode, Failure> {
    Err(Failure::new(ExitCode::CheckFailed, "PR-X000", "not there yet"))
}
