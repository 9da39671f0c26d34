//! Shared by the benchmarks of the relay: a private server with the outbox of the first migration,
//! and checked drains.
//!
//! Invariant: autovacuum is off during measurements; a drain that did not deliver every row is an
//! error.

use clap::Args;

use super::BenchError;
use super::drain::ResourceUsage;
use super::programs::{EmbeddedBroker, RelayTarget, RunSummary, drain};
use postrider_postgres::control::{self, Client};
use postrider_postgres::libpq::ConnectInfo;
use postrider_sandbox::postgres::{Cluster, Options};

/// About 350 bytes of JSON.
pub(super) const NOTE_WORDS: u32 = 26;

/// What to write.
#[derive(Debug, Clone, Copy, Args)]
pub struct LoadArgs {
    /// Rows to write, and to deliver each time.
    #[arg(long, default_value_t = 300_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=50_000_000))]
    pub rows: u32,
    /// Rows per transaction of the writer.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub per_transaction: u32,
}

pub(super) async fn start() -> Result<(Cluster, Client), BenchError> {
    let options = Options::default()
        .with("shared_buffers", "512MB")
        .with("max_wal_size", "16GB")
        .with("autovacuum", "off");
    let cluster = Cluster::start(&options)?;
    let info = ConnectInfo::resolve(&cluster.unix_url(), &|_| None)?.0;
    let client = control::connect(&info).await?;
    client.sql().batch_execute(include_str!("../migrations/0001_outbox.sql")).await?;
    Ok((cluster, client))
}

/// Delivers all rows of a slot on this server, or of its table.
pub(super) fn drain_whole(
    (cluster, broker): (&Cluster, &EmbeddedBroker),
    slot: &str,
    settings: &[String],
    rows: u32,
) -> Result<(ResourceUsage, RunSummary), BenchError> {
    let source = cluster.unix_url();
    let target = RelayTarget { source: &source, slot, bootstrap: &broker.bootstrap, settings };
    let (usage, summary) = drain(target, cluster.process().unwrap_or_default())?;
    if summary.confirmed != u64::from(rows) || summary.dead_letters > 0 {
        let reason = format!("{} of {rows} rows confirmed", summary.confirmed);
        return Err(BenchError::NotWhole { drain: format!("drain of slot `{slot}`"), reason });
    }
    Ok((usage, summary))
}
