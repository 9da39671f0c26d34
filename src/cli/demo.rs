//! `postrider demo`: the relay at work, with a verdict.

use std::time::Duration;

use clap::Args;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

/// `demo [--rate N] [--count N] [--kill-every 5s] [--brokers ..] [--database-url ..]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider demo\n  postrider demo --rate 2000 --count 20000 --kill-every 2s\n  postrider demo --count 20000 --output json"
)]
pub struct DemoArgs {
    /// Orders per second
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Orders in all
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Kill and restart the relay this often, such as 5s
    #[arg(long, value_name = "TIME", value_parser = super::parse_duration)]
    pub kill_every: Option<Duration>,
    /// A real Kafka instead of the embedded broker
    #[arg(long, value_name = "HOST:PORT,..")]
    pub brokers: Option<String>,
    /// A real Postgres instead of a private one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Runs it.
pub fn run(_args: &DemoArgs, context: &Context) -> Result<ExitCode, Failure> {
    context.start_logs()?;
    Err(Failure::new(ExitCode::CheckFailed, "PR-X000", "not there yet"))
}
