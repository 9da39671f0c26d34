//! `postrider bench`: figures.

mod ceiling;
mod drain;
mod proc;
mod wal_load;

use clap::{Args, Subcommand};

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

pub use ceiling::CeilingArgs;

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
    /// Drain the same log with pg_recvlogical and with the relay, and compare
    #[command(
        after_help = "Examples:\n  postrider bench ceiling\n  postrider bench ceiling --rows 300000 --tx-rows 1000 --transport tcp --output json"
    )]
    Ceiling(CeilingArgs),
}

/// Runs it.
pub fn run(args: &BenchArgs, context: &Context) -> Result<ExitCode, Failure> {
    context.start_logs()?;
    let Bench::Ceiling(args) = &args.what;
    let runtime = super::runtime()?;
    let figures = runtime
        .block_on(ceiling::measure(args))
        .map_err(|error| Failure::of(ExitCode::CheckFailed, "PR-X010", &error, None))?;
    if context.json() {
        context.print_json(&figures)?;
    } else {
        context.print(&figures.to_string())?;
    }
    Ok(ExitCode::Ok)
}
