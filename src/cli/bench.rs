//! `postrider bench`: figures.

use clap::{Args, Subcommand, ValueEnum};

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

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

/// `ceiling [--rows N] [--tx-rows N] [--topics N] [--transport unix|tcp]`
#[derive(Debug, Args)]
pub struct CeilingArgs {
    /// Rows in all
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Rows per transaction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub tx_rows: u32,
    /// Topics, of three partitions each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub topics: u32,
    /// How Postgres is reached
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
}

/// How Postgres is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Transport {
    /// A unix socket.
    #[default]
    Unix,
    /// TCP over loopback.
    Tcp,
}

/// Runs it.
pub fn run(_args: &BenchArgs, context: &Context) -> Result<ExitCode, Failure> {
    context.start_logs()?;
    Err(Failure::new(ExitCode::CheckFailed, "PR-X000", "not there yet"))
}
