//! `bench ceiling`: compares the relay's throughput with `pg_recvlogical`, which shows how fast the
//! server can send. Two slots read the same WAL, into /dev/null and an embedded broker. An
//! unconfirmed row is an error.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;

use super::drain::{ResourceUsage, run_measured};
use super::programs::{DRAIN_LIMIT, EmbeddedBroker, RelayTarget, RunSummary, drain};
use super::wal_load::{self, Rows};
use super::{BenchError, round, to_mib};
use postrider_core::lsn::Lsn;
use postrider_postgres::control;
use postrider_postgres::libpq::ConnectInfo;
use postrider_sandbox::postgres::{Address, Cluster, Options};

const RECEIVE_SLOT: &str = "bench_recvlogical";
const RELAY_SLOT: &str = "bench_relay";

/// About 310 bytes of JSON.
const NOTE_WORDS: u32 = 22;

/// How Postgres is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PostgresTransport {
    /// Its unix socket.
    Unix,
    /// TCP over loopback.
    Tcp,
}

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct CeilingArgs {
    /// Rows to write and drain.
    #[arg(long, default_value_t = 300_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=50_000_000))]
    pub rows: u32,
    /// Rows per transaction.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tx_rows: u32,
    /// Topics, of three partitions each.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub topics: u32,
    /// How the server is reached.
    #[arg(long, default_value = "unix")]
    pub transport: PostgresTransport,
    /// Further settings of the relay, as for `run --set`.
    #[arg(long = "relay-set", value_name = "A.B=V")]
    pub relay_set: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Ceiling {
    rows: u32,
    tx_rows: u32,
    topics: u32,
    recvlogical_rows_per_s: f64,
    relay_rows_per_s: f64,
    ratio: f64,
    relay_cpu_us_per_row: f64,
    recvlogical_cpu_us_per_row: f64,
    walsender_cpu_us_per_row: f64,
    recvlogical_walsender_cpu_us_per_row: f64,
    peak_rss_mib: f64,
}

impl std::fmt::Display for Ceiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, tx_rows, topics, .. } = self;
        writeln!(f, "{rows} rows, {tx_rows} per transaction, {topics} topics")?;
        writeln!(f, "                     pg_recvlogical      postrider")?;
        let mut line =
            |name: &str, left: f64, right: f64| writeln!(f, "{name:<20} {left:>14} {right:>14}");
        line("rows/s", self.recvlogical_rows_per_s, self.relay_rows_per_s)?;
        line("CPU us/row", self.recvlogical_cpu_us_per_row, self.relay_cpu_us_per_row)?;
        line(
            "walsender us/row",
            self.recvlogical_walsender_cpu_us_per_row,
            self.walsender_cpu_us_per_row,
        )?;
        writeln!(f, "ratio {}, peak memory {} MiB", self.ratio, self.peak_rss_mib)
    }
}

pub(super) async fn measure(args: &CeilingArgs) -> Result<Ceiling, BenchError> {
    let options = Options::default()
        .with("shared_buffers", "1GB")
        .with("max_wal_size", "16GB")
        .with("autovacuum", "off");
    let cluster = Cluster::start(&options)?;
    let info = ConnectInfo::resolve(&cluster.unix_url(), &|_| None)?.0;
    let client = control::connect(&info).await?;
    let end = load(client.sql(), args).await?;
    tracing::info!(rows = args.rows, %end, "rows written");
    let receive = receive(&cluster, args.transport, end)?;
    let (relay, summary) = relay(&cluster, args)?;
    check(client.sql(), args, end, &summary).await?;
    Ok(figures(args, &receive, &relay, &summary))
}

/// Writes the rows behind two slots, and returns the position behind the last row.
async fn load(client: &Client, args: &CeilingArgs) -> Result<Lsn, BenchError> {
    client.batch_execute(include_str!("../migrations/0001_outbox.sql")).await?;
    for slot in [RECEIVE_SLOT, RELAY_SLOT] {
        wal_load::make_slot(client, slot).await?;
    }
    let plan = Rows {
        count: args.rows,
        per_transaction: args.tx_rows,
        topics: args.topics,
        note_words: NOTE_WORDS,
    };
    Ok(wal_load::write(client, plan).await?)
}

fn receive(
    cluster: &Cluster,
    transport: PostgresTransport,
    end: Lsn,
) -> Result<ResourceUsage, BenchError> {
    let address = cluster.address();
    // Other users can read the command line, so the password is not in it.
    let shown = Address { password: None, ..address.clone() };
    let mut command = Command::new(cluster.binaries().join("pg_recvlogical"));
    command
        .args(["--start", "--no-loop", "-f", "/dev/null", "--slot", RECEIVE_SLOT])
        .args(["-o", "proto_version=1", "-o", "publication_names=postrider"])
        .arg(format!("--endpos={end}"))
        .args(["-d", &url(&shown, transport)])
        .envs(address.password.map(|password| ("PGPASSWORD", password)))
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    Ok(run_measured(command, cluster.process().unwrap_or_default(), DRAIN_LIMIT)?.0)
}

fn relay(cluster: &Cluster, args: &CeilingArgs) -> Result<(ResourceUsage, RunSummary), BenchError> {
    let broker = EmbeddedBroker::start(args.topics)?;
    let target = RelayTarget {
        source: &url(&cluster.address(), args.transport),
        slot: RELAY_SLOT,
        bootstrap: &broker.bootstrap,
        settings: &args.relay_set,
    };
    Ok(drain(target, cluster.process().unwrap_or_default())?)
}

async fn check(
    client: &Client,
    args: &CeilingArgs,
    end: Lsn,
    summary: &RunSummary,
) -> Result<(), BenchError> {
    let not_whole =
        |reason: String| Err(BenchError::NotWhole { drain: "relay's drain".to_owned(), reason });
    if summary.confirmed != u64::from(args.rows) || summary.dead_letters != 0 {
        return not_whole(format!(
            "{} of {} rows confirmed, {} dead letters",
            summary.confirmed, args.rows, summary.dead_letters
        ));
    }
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let confirmed: String = client.query_one(sql, &[&RELAY_SLOT]).await?.get(0);
    match confirmed.parse::<Lsn>() {
        Ok(confirmed) if confirmed >= end => Ok(()),
        _ => not_whole(format!("the slot is at {confirmed}, the last commit at {end}")),
    }
}

fn figures(
    args: &CeilingArgs,
    receive: &ResourceUsage,
    relay: &ResourceUsage,
    summary: &RunSummary,
) -> Ceiling {
    let rows = f64::from(args.rows);
    let per_row = |time: Duration| round(time.as_secs_f64() * 1e6 / rows, 2);
    let recvlogical = rows / receive.wall.as_secs_f64();
    let relayed = rows / summary.streaming_seconds;
    Ceiling {
        rows: args.rows,
        tx_rows: args.tx_rows,
        topics: args.topics,
        recvlogical_rows_per_s: recvlogical.round(),
        relay_rows_per_s: relayed.round(),
        ratio: round(relayed / recvlogical, 3),
        relay_cpu_us_per_row: per_row(relay.cpu),
        recvlogical_cpu_us_per_row: per_row(receive.cpu),
        walsender_cpu_us_per_row: per_row(relay.walsender_cpu),
        recvlogical_walsender_cpu_us_per_row: per_row(receive.walsender_cpu),
        peak_rss_mib: to_mib(relay.peak_rss_bytes),
    }
}

fn url(address: &Address, transport: PostgresTransport) -> String {
    match transport {
        PostgresTransport::Unix => address.unix_url(),
        PostgresTransport::Tcp => address.url(),
    }
}
