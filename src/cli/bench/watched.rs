//! `bench watched`: the cost of watching a relay.
//!
//! Each pair drains the same WAL twice, without HTTP and with a visitor of dashboard, metrics and
//! live tail; the order alternates. Then a relay with the visitor idles. A relay that did not
//! deliver every row is an error.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::delivery::median;
use super::programs::{EmbeddedBroker, ProgramError, RelayTarget, carry};
use super::server::{self, LoadArgs, NOTE_WORDS};
use super::wal_load::{self, Rows};
use super::{BenchError, round, to_mib};
use crate::status::relay::answer;
use postrider_sandbox::postgres::Cluster;
use postrider_sandbox::proc;

const TOPICS: u32 = 5;
/// Interval and paths of the dashboard and Prometheus.
const ASK_EVERY: Duration = Duration::from_secs(1);
const PATHS: [&str; 5] =
    ["/api/v1/state", "/api/v1/history", "/api/v1/tail", "/metrics", "/readyz"];
/// Time after which memory is stable.
const IDLE: Duration = Duration::from_secs(20);

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct WatchedArgs {
    /// What to write.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Pairs of drains.
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub pairs: u32,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Watched {
    rows: u32,
    per_transaction: u32,
    pairs: u32,
    rows_per_s_alone: f64,
    rows_per_s_visited: f64,
    /// Ratio of the watched rate to the rate alone, per pair.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    /// Answers that the visitor received during drains.
    answers: u64,
    idle_rss_mib: f64,
}

impl std::fmt::Display for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, per_transaction, pairs, ratio, ratio_min, ratio_max, .. } = self;
        writeln!(f, "{rows} rows, {per_transaction} per transaction, {pairs} pairs")?;
        writeln!(f, "rows/s alone {}, watched {}", self.rows_per_s_alone, self.rows_per_s_visited)?;
        writeln!(f, "ratio {ratio} ({ratio_min} to {ratio_max}), {} answers", self.answers)?;
        writeln!(f, "idle and watched: {} MiB resident", self.idle_rss_mib)
    }
}

pub(super) async fn measure(args: &WatchedArgs) -> Result<Watched, BenchError> {
    let (cluster, client) = server::start().await?;
    let slot = |pair: u32, watched: bool| format!("bench_watched_{pair}_{}", u8::from(watched));
    for pair in 0..args.pairs {
        for watched in [false, true] {
            wal_load::make_slot(client.sql(), &slot(pair, watched)).await?;
        }
    }
    let WatchedArgs { load: LoadArgs { rows, per_transaction }, pairs } = *args;
    let plan = Rows { count: rows, per_transaction, topics: TOPICS, note_words: NOTE_WORDS };
    wal_load::write(client.sql(), plan).await?;
    let (mut alone, mut watched, mut answers) = (Vec::new(), Vec::new(), 0);
    for pair in 0..pairs {
        let mut seconds = [0.0; 2];
        for is_watched in [pair % 2 == 1, pair % 2 == 0] {
            let (took, asked) = one_drain(&cluster, &slot(pair, is_watched), rows, is_watched)?;
            answers += asked;
            if let Some(seconds) = seconds.get_mut(usize::from(is_watched)) {
                *seconds = took;
            }
        }
        let [without, with] = seconds;
        tracing::info!(alone_s = without, watched_s = with, "drained");
        alone.push(without);
        watched.push(with);
    }
    let ratios: Vec<f64> = alone.iter().zip(&watched).map(|(alone, with)| alone / with).collect();
    let idle = idle_rss_bytes(&cluster, &slot(0, true))?;
    Ok(Watched {
        rows,
        per_transaction,
        pairs,
        rows_per_s_alone: (f64::from(rows) / median(alone)).round(),
        rows_per_s_visited: (f64::from(rows) / median(watched)).round(),
        ratio_min: round(ratios.iter().copied().fold(f64::INFINITY, f64::min), 3),
        ratio_max: round(ratios.iter().copied().fold(0.0, f64::max), 3),
        ratio: round(median(ratios), 3),
        answers,
        idle_rss_mib: to_mib(idle),
    })
}

/// Seconds of a drain, and answers that the visitor received.
fn one_drain(
    cluster: &Cluster,
    slot: &str,
    rows: u32,
    is_watched: bool,
) -> Result<(f64, u64), BenchError> {
    let broker = EmbeddedBroker::start(TOPICS)?;
    let visitor = if is_watched { Some(Visitor::start()?) } else { None };
    let settings: Vec<_> = visitor.iter().map(Visitor::setting).collect();
    let (_, summary) = server::drain_whole((cluster, &broker), slot, &settings, rows)?;
    Ok((summary.streaming_seconds, visitor.map_or(0, |visitor| visitor.answers())))
}

fn idle_rss_bytes(cluster: &Cluster, slot: &str) -> Result<u64, BenchError> {
    let (broker, visitor) = (EmbeddedBroker::start(TOPICS)?, Visitor::start()?);
    let settings = [visitor.setting()];
    let (source, bootstrap) = (cluster.unix_url(), broker.bootstrap.as_str());
    let relay = carry(RelayTarget { source: &source, slot, bootstrap, settings: &settings })?;
    std::thread::sleep(IDLE);
    if visitor.answers() == 0 {
        return Err(BenchError::Part("relay that idles"));
    }
    proc::rss_bytes(relay.id()).ok_or(BenchError::Part("relay that idles"))
}

struct Visitor {
    address: SocketAddr,
    answers: Arc<AtomicU64>,
}

impl Visitor {
    fn start() -> Result<Self, ProgramError> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|source| ProgramError::Start { what: "the visitor", source })?;
        let answers = Arc::new(AtomicU64::new(0));
        let counted = Arc::downgrade(&answers);
        std::thread::spawn(move || {
            while let Some(counted) = counted.upgrade() {
                let got = PATHS.iter().filter(|path| answer(address, path).is_ok()).count();
                counted.fetch_add(u64::try_from(got).unwrap_or(0), Ordering::Relaxed);
                drop(counted);
                std::thread::sleep(ASK_EVERY);
            }
        });
        Ok(Self { address, answers })
    }

    fn setting(&self) -> String {
        format!("http.bind={}", self.address)
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}
