//! `bench delivery`: compares the throughput of at-least-once and exactly-once delivery.
//!
//! Each run reads the same WAL from its own slot and is checked. The order within a pair
//! alternates, so that drift in the machine's speed affects both equally.

use serde::Serialize;
use tokio_postgres::Client;

use super::drain::ResourceUsage;
use super::programs::{PARTITIONS, ProgramError, RelayTarget, RunSummary, drain};
use super::server::{self, NOTE_WORDS};
use super::visible::{self, Latencies};
use super::wal_load::{self, Rows};
use super::{BenchError, DeliveryArgs, round, to_mib};
use postrider_config::Delivery as Guarantee;
use postrider_core::lsn::Lsn;
use postrider_kafka::{KafkaSpec, TopicsError, create_missing};
use postrider_sandbox::postgres::Cluster;

const BOTH: [Guarantee; 2] = [Guarantee::AtLeastOnce, Guarantee::ExactlyOnce];

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Delivery {
    Drains(Drains),
    Visible(Latencies),
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Drains {
    broker: &'static str,
    topics: u32,
    rows: u32,
    per_transaction: u32,
    pairs: u32,
    at_least_once_rows_per_s: f64,
    exactly_once_rows_per_s: f64,
    ratio: f64,
    cpu_us_per_row: PerGuarantee,
    rss_mib: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct PerGuarantee {
    at_least_once: f64,
    exactly_once: f64,
}

impl std::fmt::Display for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let drains = match self {
            Self::Drains(drains) => drains,
            Self::Visible(visible) => return visible.fmt(f),
        };
        let Drains { rows, per_transaction, topics, pairs, cpu_us_per_row, .. } = drains;
        writeln!(
            f,
            "{rows} rows, {per_transaction} per transaction, {topics} topics, broker: {}, medians of \
             {pairs}",
            drains.broker
        )?;
        writeln!(f, "                      at least once   exactly once")?;
        let (left, right) = (drains.at_least_once_rows_per_s, drains.exactly_once_rows_per_s);
        writeln!(f, "{:<20} {left:>14} {right:>14}", "rows/s")?;
        let PerGuarantee { at_least_once, exactly_once } = cpu_us_per_row;
        writeln!(f, "{:<20} {at_least_once:>14} {exactly_once:>14}", "CPU us/row")?;
        writeln!(f, "ratio {}, peak memory {} MiB", drains.ratio, drains.rss_mib)
    }
}

pub(super) async fn measure(args: &DeliveryArgs) -> Result<Delivery, BenchError> {
    if let Some(brokers) = &args.brokers {
        prepare(brokers, args.topics).await?;
    }
    let (cluster, client) = server::start().await?;
    if let Some(rate) = args.latency {
        return Ok(Delivery::Visible(visible::measure(args, rate, &cluster, &client).await?));
    }
    let mut runs = Vec::new();
    for pair in 0..args.pairs {
        let first = usize::from(pair % 2 == 1);
        let [a, b] = [first, 1 - first].map(|at| BOTH.get(at).copied());
        runs.extend(
            [a, b].into_iter().flatten().map(|guarantee| DeliveryRun::new(guarantee, pair)),
        );
    }
    for run in &runs {
        wal_load::make_slot(client.sql(), &run.slot).await?;
    }
    let plan = Rows {
        count: args.rows,
        per_transaction: args.per_transaction,
        topics: args.topics,
        note_words: NOTE_WORDS,
    };
    let end = wal_load::write(client.sql(), plan).await?;
    tracing::info!(rows = args.rows, %end, "rows written");
    for run in &mut runs {
        run.drain(args, &cluster)?;
        run.check(client.sql(), args.rows, end).await?;
    }
    Ok(Delivery::Drains(figures(args, &runs)))
}

async fn prepare(brokers: &str, topics: u32) -> Result<(), TopicsError> {
    let kafka = KafkaSpec::of_brokers(brokers);
    create_missing(&kafka, &wal_load::topics(topics), PARTITIONS.cast_signed()).await
}

#[derive(Debug)]
struct DeliveryRun {
    guarantee: Guarantee,
    slot: String,
    usage: ResourceUsage,
    summary: Option<RunSummary>,
}

impl DeliveryRun {
    fn new(guarantee: Guarantee, pair: u32) -> Self {
        let slot = format!("bench_{}_{pair}", guarantee.as_str());
        Self { guarantee, slot, usage: ResourceUsage::default(), summary: None }
    }

    fn drain(&mut self, args: &DeliveryArgs, cluster: &Cluster) -> Result<(), ProgramError> {
        let (bootstrap, _broker) = args.brokers()?;
        let target = RelayTarget {
            source: &cluster.unix_url(),
            slot: &self.slot,
            bootstrap: &bootstrap,
            settings: &args.relay_settings(self.guarantee),
        };
        let (usage, summary) = drain(target, cluster.process().unwrap_or_default())?;
        (self.usage, self.summary) = (usage, Some(summary));
        tracing::info!(
            guarantee = self.guarantee.as_str(),
            seconds = summary.streaming_seconds,
            cpu_s = usage.cpu.as_secs_f64(),
            walsender_cpu_s = usage.walsender_cpu.as_secs_f64(),
            "drained"
        );
        Ok(())
    }

    async fn check(&self, client: &Client, rows: u32, end: Lsn) -> Result<(), BenchError> {
        let not_whole = |reason: String| {
            Err(BenchError::NotWhole { drain: format!("drain of slot `{}`", self.slot), reason })
        };
        let confirmed = self.summary.map_or(0, |summary| summary.confirmed);
        let dead_letters = self.summary.map_or(0, |summary| summary.dead_letters);
        if confirmed != u64::from(rows) || dead_letters != 0 {
            return not_whole(format!(
                "{confirmed} of {rows} rows confirmed, {dead_letters} dead letters"
            ));
        }
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
        let confirmed: String = client.query_one(sql, &[&self.slot]).await?.get(0);
        match confirmed.parse::<Lsn>() {
            Ok(confirmed) if confirmed >= end => Ok(()),
            _ => not_whole(format!("it is at {confirmed}, the last commit at {end}")),
        }
    }

    fn seconds(&self) -> f64 {
        self.summary.map_or(f64::NAN, |summary| summary.streaming_seconds)
    }
}

fn figures(args: &DeliveryArgs, runs: &[DeliveryRun]) -> Drains {
    let rows = f64::from(args.rows);
    let of = |guarantee| move |run: &&DeliveryRun| run.guarantee == guarantee;
    let rate = |guarantee| {
        rows / median(runs.iter().filter(of(guarantee)).map(DeliveryRun::seconds).collect())
    };
    let cpu = |guarantee| {
        let seconds = |run: &DeliveryRun| run.usage.cpu.as_secs_f64();
        let median = median(runs.iter().filter(of(guarantee)).map(seconds).collect());
        round(median * 1e6 / rows, 2)
    };
    let exactly_once = runs.iter().filter(of(Guarantee::ExactlyOnce));
    let peak = exactly_once.map(|run| run.usage.peak_rss_bytes).max();
    let [left, right] = BOTH.map(rate);
    Drains {
        broker: args.broker_name(),
        topics: args.topics,
        rows: args.rows,
        per_transaction: args.per_transaction,
        pairs: args.pairs,
        at_least_once_rows_per_s: left.round(),
        exactly_once_rows_per_s: right.round(),
        ratio: round(right / left, 3),
        cpu_us_per_row: PerGuarantee {
            at_least_once: cpu(Guarantee::AtLeastOnce),
            exactly_once: cpu(Guarantee::ExactlyOnce),
        },
        rss_mib: to_mib(peak.unwrap_or_default()),
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or(f64::NAN);
    match middle.checked_sub(1).and_then(|lower| values.get(lower)) {
        Some(lower) if values.len().is_multiple_of(2) => f64::midpoint(*lower, upper),
        _ => upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let close = |values: &[f64], expected: f64| {
            assert!((median(values.to_vec()) - expected).abs() < 1e-9, "{values:?}");
        };
        close(&[3.0, 1.0, 2.0], 2.0);
        close(&[4.0, 1.0, 2.0, 3.0], 2.5);
        close(&[7.0], 7.0);
        assert!(median(Vec::new()).is_nan());
    }
}
