//! `bench source`: compares the log with polling, on the same rows: rates, CPU time per row, dead
//! rows and growth of the table. Autovacuum is off. A relay that did not deliver every row is an
//! error.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use super::programs::EmbeddedBroker;
use super::server::{self, LoadArgs, NOTE_WORDS};
use super::wal_load::{self, Rows};
use super::{BenchError, round, to_mib};
use postrider_core::outbox::TableName;
use postrider_postgres::control::{OutboxPartitions, PollSetup, PollSetupMark};
use postrider_sandbox::postgres::Cluster;
use postrider_sandbox::proc;

const SLOT: &str = "bench_stream";
/// Attempts and pause to wait for statistics of a session that has ended.
const LOOKS: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct SourceArgs {
    /// What to write.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Topics, of three partitions each.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub topics: u32,
    /// Workers that poll.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Further settings of the relay, as for `run --set`.
    #[arg(long = "relay-set", value_name = "A.B=V")]
    pub relay_set: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Sources {
    rows: u32,
    per_transaction: u32,
    workers: u32,
    stream: SourceFigures,
    poll: SourceFigures,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct SourceFigures {
    rows_per_s: f64,
    relay_cpu_us_per_row: f64,
    server_cpu_us_per_row: f64,
    dead_rows: i64,
    grown_mib: f64,
}

impl std::fmt::Display for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, per_transaction, workers, stream, poll } = self;
        writeln!(f, "{rows} rows, {per_transaction} per transaction; poll: {workers} workers")?;
        writeln!(f, "                              stream           poll")?;
        let lines = [
            ("rows/s", stream.rows_per_s, poll.rows_per_s),
            ("relay CPU us/row", stream.relay_cpu_us_per_row, poll.relay_cpu_us_per_row),
            ("server CPU us/row", stream.server_cpu_us_per_row, poll.server_cpu_us_per_row),
            ("table grown by MiB", stream.grown_mib, poll.grown_mib),
        ];
        for (what, stream, poll) in lines {
            writeln!(f, "{what:<20} {stream:>14} {poll:>14}")?;
        }
        writeln!(f, "{:<20} {:>14} {:>14}", "dead rows", stream.dead_rows, poll.dead_rows)
    }
}

pub(super) async fn measure(args: &SourceArgs) -> Result<Sources, BenchError> {
    let (cluster, client) = server::start().await?;
    polled_table().make(&client, &mut Vec::new()).await?;
    wal_load::make_slot(client.sql(), SLOT).await?;
    let plan = Rows {
        count: args.load.rows,
        per_transaction: args.load.per_transaction,
        topics: args.topics,
        note_words: NOTE_WORDS,
    };
    wal_load::write(client.sql(), plan).await?;
    client.sql().batch_execute("ANALYZE outbox; CHECKPOINT").await?;
    tracing::info!(rows = args.load.rows, "rows written");
    let poll = ["source.mode=poll".to_owned(), format!("source.poll.workers={}", args.workers)];
    let stream = one_way(args, &[], (&cluster, client.sql())).await?;
    let poll = one_way(args, &poll, (&cluster, client.sql())).await?;
    let SourceArgs { load: LoadArgs { rows, per_transaction }, workers, .. } = *args;
    Ok(Sources { rows, per_transaction, workers, stream, poll })
}

fn polled_table() -> PollSetup {
    PollSetup {
        tables: vec![TableName::new("public", "outbox")],
        existing_tables: false,
        partitions: OutboxPartitions::None,
        mark: PollSetupMark::ProcessedAt("processed_at".to_owned()),
        retry_count: None,
        notify: None,
        order_by: Vec::new(),
        id: "id".to_owned(),
        created_at: "created_at".to_owned(),
    }
}

async fn one_way(
    args: &SourceArgs,
    settings: &[String],
    (cluster, client): (&Cluster, &Client),
) -> Result<SourceFigures, BenchError> {
    let broker = EmbeddedBroker::start(args.topics)?;
    let postmaster = cluster.process().unwrap_or_default();
    let (size, dead) = (size(client).await?, dead_rows(client).await?);
    let cpu = proc::server_cpu(postmaster).unwrap_or_default();
    let settings: Vec<String> = settings.iter().chain(&args.relay_set).cloned().collect();
    let (usage, summary) =
        server::drain_whole((cluster, &broker), SLOT, &settings, args.load.rows)?;
    let server = proc::server_cpu(postmaster).unwrap_or_default().saturating_sub(cpu);
    let rows = f64::from(args.load.rows);
    let per_row = |time: Duration| round(time.as_secs_f64() * 1e6 / rows, 2);
    let grown = self::size(client).await?.saturating_sub(size);
    Ok(SourceFigures {
        rows_per_s: (rows / summary.streaming_seconds).round(),
        relay_cpu_us_per_row: per_row(usage.cpu),
        server_cpu_us_per_row: per_row(server),
        dead_rows: dead_rows(client).await?.saturating_sub(dead),
        grown_mib: to_mib(u64::try_from(grown).unwrap_or(0)),
    })
}

/// Size with indexes, in bytes.
async fn size(client: &Client) -> Result<i64, tokio_postgres::Error> {
    let row = client.query_one("SELECT pg_total_relation_size('outbox')", &[]).await?;
    row.try_get(0)
}

/// Number of dead rows, once it is stable.
async fn dead_rows(client: &Client) -> Result<i64, tokio_postgres::Error> {
    const SQL: &str = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass";
    let mut before = -1;
    for _ in 0..LOOKS {
        let now: i64 = client.query_one(SQL, &[]).await?.try_get(0)?;
        if now == before {
            break;
        }
        before = now;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(before)
}
