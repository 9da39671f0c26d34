//! `bench delivery --latency`: measures the time from a row's commit until a `read_committed`
//! consumer gets it.
//!
//! Eight connections commit one row at a time at a fixed rate. The payload holds the server's clock
//! just before the commit; all programs share one clock. The first tenth of the rows is ignored. A
//! row that does not arrive is an error.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::programs::{RelayTarget, carry};
use super::{BenchError, DeliveryArgs, round, wal_load};
use postrider_config::Delivery as Guarantee;
use postrider_kafka::{KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, StartOffset};
use postrider_postgres::control::{self, Client};
use postrider_postgres::libpq::ConnectInfo;
use postrider_relay::telemetry::unix_us;
use postrider_sandbox::postgres::Cluster;

const LOAD_SECONDS: u32 = 20;
/// Share of the time that belongs to the relay's start: a tenth.
const START_SHARE: u32 = 10;
/// Connections that write: enough for thousands of commits per second.
const WRITERS: u32 = 8;
/// Maximum wait for missing rows after the last was written.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Milliseconds that a broker holds an empty answer.
const FETCH_WAIT_MS: u32 = 5;
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Serialize)]
pub(super) struct Latencies {
    broker: &'static str,
    topics: u32,
    rate: u32,
    rows: usize,
    visible_p50_ms: f64,
    visible_p99_ms: f64,
    visible_max_ms: f64,
    at_least_once_p50_ms: f64,
    at_least_once_p99_ms: f64,
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rate, topics, broker, .. } = self;
        writeln!(f, "{rate} rows/s over {topics} topics, broker: {broker}")?;
        writeln!(
            f,
            "commit to visible, exactly once: p50 {} ms, p99 {} ms, longest {} ms",
            self.visible_p50_ms, self.visible_p99_ms, self.visible_max_ms
        )?;
        let (p50, p99) = (self.at_least_once_p50_ms, self.at_least_once_p99_ms);
        writeln!(f, "the same, at least once: p50 {p50} ms, p99 {p99} ms")
    }
}

pub(super) async fn measure(
    args: &DeliveryArgs,
    rate: u32,
    cluster: &Cluster,
    client: &Client,
) -> Result<Latencies, BenchError> {
    let at_least_once = live(Guarantee::AtLeastOnce, args, rate, (cluster, client)).await?;
    let exactly_once = live(Guarantee::ExactlyOnce, args, rate, (cluster, client)).await?;
    Ok(Latencies {
        broker: args.broker_name(),
        topics: args.topics,
        rate,
        rows: exactly_once.len(),
        visible_p50_ms: quantile_ms(&exactly_once, 500),
        visible_p99_ms: quantile_ms(&exactly_once, 990),
        visible_max_ms: quantile_ms(&exactly_once, 1_000),
        at_least_once_p50_ms: quantile_ms(&at_least_once, 500),
        at_least_once_p99_ms: quantile_ms(&at_least_once, 990),
    })
}

async fn live(
    guarantee: Guarantee,
    args: &DeliveryArgs,
    rate: u32,
    (cluster, client): (&Cluster, &Client),
) -> Result<Vec<i64>, BenchError> {
    let (bootstrap, _broker) = args.brokers()?;
    let slot = format!("bench_live_{}", guarantee.as_str());
    wal_load::make_slot(client.sql(), &slot).await?;
    let written = (rate / WRITERS).max(1) * WRITERS * LOAD_SECONDS;
    let consumer = VisibilityConsumer::start(&bootstrap, args.topics, written)?;
    let _relay = carry(RelayTarget {
        source: &cluster.unix_url(),
        slot: &slot,
        bootstrap: &bootstrap,
        settings: &args.relay_settings(guarantee),
    })?;
    let info = ConnectInfo::resolve(&cluster.unix_url(), &|_| None)?.0;
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let client = control::connect(&info).await?;
        let topics = args.topics;
        writers.spawn(async move { write(&client, number, rate, topics).await });
    }
    while let Some(done) = writers.join_next().await {
        done.map_err(|_| BenchError::Part("writer"))??;
    }
    let mut arrivals = consumer.arrivals().await?;
    let expected = usize::try_from(written).unwrap_or(usize::MAX);
    if arrivals.len() != expected {
        return Err(BenchError::Missing { arrived: arrivals.len(), written: expected });
    }
    arrivals.sort_by_key(|arrival| arrival.committed_us);
    let start = arrivals.len() / START_SHARE as usize;
    let steady = arrivals.get(start..).unwrap_or_default();
    let mut latencies: Vec<i64> =
        steady.iter().map(|arrival| arrival.arrived_us - arrival.committed_us).collect();
    latencies.sort_unstable();
    Ok(latencies)
}

/// Commits rows at this writer's share of the rate; a late writer catches up.
async fn write(
    client: &Client,
    number: u32,
    rate: u32,
    topics: u32,
) -> Result<(), tokio_postgres::Error> {
    let sql = client.sql();
    sql.batch_execute("SET synchronous_commit = on").await?;
    let insert = sql
        .prepare(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT gen_random_uuid(), 'order', 'order-' || $1::int % 1000,
                    'BenchEvent' || $1::int % $2::int,
                    jsonb_build_object('order_id', $1::int, 'note', repeat('postrider ', 28),
                        'committed_us',
                        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
        )
        .await?;
    let per_writer = (rate / WRITERS).max(1);
    let period = Duration::from_secs(1) / per_writer;
    let mut tick = interval_at(Instant::now() + period * number / WRITERS, period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for row in 0..per_writer * LOAD_SECONDS {
        tick.tick().await;
        let row = (row * WRITERS + number).cast_signed();
        sql.execute(&insert, &[&row, &topics.cast_signed()]).await?;
    }
    Ok(())
}

/// Times in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    committed_us: i64,
    arrived_us: i64,
}

#[derive(Deserialize)]
struct Payload {
    committed_us: i64,
}

struct VisibilityConsumer {
    end: tokio::sync::oneshot::Sender<()>,
    arrivals: tokio::sync::oneshot::Receiver<Result<Vec<Arrival>, ReaderError>>,
}

impl VisibilityConsumer {
    /// Waits at the end of every topic for `rows` rows.
    fn start(bootstrap: &str, topics: u32, rows: u32) -> Result<Self, ReaderError> {
        let names = wal_load::topics(topics);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let spec = ReaderSpec {
            start: StartOffset::End,
            fetch_wait_ms: FETCH_WAIT_MS,
            ..ReaderSpec::following(&names)
        };
        let mut reader = Reader::open(&KafkaSpec::of_brokers(bootstrap), spec, OPEN_LIMIT)?;
        let (end, mut ended) = tokio::sync::oneshot::channel();
        let (done, arrivals) = tokio::sync::oneshot::channel();
        let wanted = usize::try_from(rows).unwrap_or(usize::MAX);
        std::thread::spawn(move || {
            let mut all = Vec::with_capacity(wanted);
            let failed = loop {
                match reader.next(TICK) {
                    Ok(ReaderEvent::Record(record)) => all.extend(arrival(record.value())),
                    Ok(ReaderEvent::Idle | ReaderEvent::End) => {}
                    Err(error) => break Some(error),
                }
                if all.len() >= wanted || ended.try_recv().is_ok() {
                    break None;
                }
            };
            // A bench that failed elsewhere has dropped the receiver.
            let _ = done.send(failed.map_or(Ok(all), Err));
        });
        Ok(Self { end, arrivals })
    }

    async fn arrivals(mut self) -> Result<Vec<Arrival>, BenchError> {
        let broken = |_| BenchError::Part("consumer");
        if let Ok(all) = tokio::time::timeout(PATIENCE, &mut self.arrivals).await {
            return Ok(all.map_err(broken)??);
        }
        let _ = self.end.send(());
        Ok(self.arrivals.await.map_err(broken)??)
    }
}

/// `None` for a record of another load.
fn arrival(value: Option<&[u8]>) -> Option<Arrival> {
    let arrived_us = unix_us();
    let Payload { committed_us } = serde_json::from_slice(value?).ok()?;
    Some(Arrival { committed_us, arrived_us })
}

/// Smallest latency that `per_mille` of 1,000 rows do not exceed.
fn quantile_ms(sorted_us: &[i64], per_mille: usize) -> f64 {
    let rank = (sorted_us.len() * per_mille).div_ceil(1_000).saturating_sub(1);
    let value = sorted_us.get(rank).copied().unwrap_or_default();
    round(Duration::from_micros(value.unsigned_abs()).as_secs_f64() * 1e3, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ranks() {
        let sorted: Vec<i64> = (1..=100).map(|value| value * 1_000).collect();
        for (per_mille, expected) in [(500, 50.0), (990, 99.0), (1_000, 100.0)] {
            assert!((quantile_ms(&sorted, per_mille) - expected).abs() < 1e-9, "{per_mille}");
        }
        assert!(quantile_ms(&[], 500).abs() < 1e-9);
    }

    #[test]
    fn what_carries_no_time_is_of_another_load() {
        assert!(
            arrival(Some(b"{\"committed_us\": 5}")).is_some_and(|found| found.committed_us == 5)
        );
        assert!(arrival(Some(b"{\"order_id\": 5}")).is_none() && arrival(None).is_none());
    }
}
