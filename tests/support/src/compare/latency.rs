//! Commit to receipt at a fixed rate: rows are committed one by one by the clock, whatever the contestant does, and a
//! `read_committed` consumer notes when each arrives.
//!
//! Input: a [`Load`]. Output: [`Figures`]. Invariant: the server's clock just before the commit is in the payload, and all
//! run on one machine, so on one clock; rows of the warm-up are not counted; each row must arrive once, in the order of its
//! key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider_sandbox::proc;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientConfig, Message as _};
use serde::Deserialize;

use super::contestants::{Contestant, Process, Stage, Task};
use super::drain::{count, drop_slot};
use super::figures::{Figures, per_row, quantile, to_mib};
use super::rows::{POLLED, topics};
use super::sampler::{Sampler, Samples, now_us};
use crate::sql::Sql;
use crate::wait::{let_pass, wait_for};
use crate::{topic, unique};

/// Sessions that commit: enough for a thousand commits a second each.
const WRITERS: u32 = 4;
/// Keys of each.
const KEYS: u32 = 25;
/// How long a contestant has to be ready, on a machine busy with other things.
const READY_LIMIT: Duration = Duration::from_mins(2);
/// How long rows may be missing after the last was committed.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often a row asks whether the contestant is ready.
const PROBE: Duration = Duration::from_millis(100);
/// How long it idles before its memory is looked at.
const IDLE: Duration = Duration::from_secs(2);
/// What is not told of a process that commits and reads rows, too.
const OF_A_RELAY: [&str; 5] =
    ["cpu_us_per_row", "peak_rss_mib", "peak_private_mib", "idle_rss_mib", "idle_private_mib"];
/// The number of rows that ask whether the contestant is ready.
const PROBE_ROW: i64 = -1;

/// What is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Rows a second.
    pub(super) rate: u32,
    /// Not counted: Java compiles what it runs often.
    pub(super) warm_up: Duration,
    pub(super) counted: Duration,
    pub(super) topics: usize,
    /// Bytes of the note in each payload.
    pub(super) bytes: usize,
}

impl Load {
    fn per_writer(&self) -> u32 {
        let seconds = (self.warm_up + self.counted).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some thousand"
        )]
        let rows = (f64::from(self.rate) * seconds) as u32 / WRITERS;
        rows
    }

    fn rows(&self) -> usize {
        usize::try_from(self.per_writer() * WRITERS).unwrap()
    }

    fn period(&self) -> Duration {
        Duration::from_secs(WRITERS.into()) / self.rate
    }

    /// Commits one row after the other at this writer's share of the rate; one that is late catches up.
    fn write(&self, session: &Session<'_>, writer: u32) {
        let begin = Instant::now() + self.period() * writer / WRITERS;
        for turn in 0..self.per_writer() {
            let due = begin + self.period() * turn;
            let ahead = due.saturating_duration_since(Instant::now());
            if !ahead.is_zero() {
                let_pass(ahead, "rows come at a fixed rate");
            }
            let key = writer * KEYS + turn % KEYS;
            session.commit(&self.insert(session.table, i64::from(turn * WRITERS + writer), key));
        }
    }

    fn insert(&self, table: &str, row: i64, key: u32) -> String {
        let (topics, bytes) = (self.topics, self.bytes);
        format!(
            "INSERT INTO {table} (id, aggregate_type, aggregate_id, event_type, payload) \
             SELECT gen_random_uuid(), 'order', 'order-{key}', 'Event{}', jsonb_build_object('row', {row}, \
             'note', repeat('x', {bytes}), 'us', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
            key as usize % topics,
        )
    }
}

/// Who sends rows after their commit, and what its topics begin with.
struct Sender {
    producer: ThreadedProducer<DefaultProducerContext>,
    prefix: String,
}

impl Sender {
    /// With the settings of the relays.
    fn connect(bootstrap: &str, prefix: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("enable.idempotence", "true");
        config.set("acks", "all").set("linger.ms", "0").set("compression.type", "lz4");
        Self { producer: config.create().unwrap(), prefix: prefix.to_owned() }
    }
}

/// A session that commits rows, into a table.
struct Session<'a> {
    sql: Sql,
    table: &'a str,
    sender: Option<&'a Sender>,
}

impl Session<'_> {
    fn commit(&self, insert: &str) {
        let Some(Sender { producer, prefix }) = self.sender else { return self.sql.run(insert) };
        let returning = format!("{insert} RETURNING event_type, aggregate_id, payload");
        for row in self.sql.rows(&returning) {
            let [Some(event), Some(key), Some(payload)] = &row[..] else {
                panic!("no value is null: {row:?}")
            };
            let topic = format!("{prefix}{event}");
            producer.send(BaseRecord::to(&topic).key(key).payload(payload)).unwrap();
        }
    }
}

/// What came, in its order.
#[derive(Debug, Clone)]
struct Arrival {
    key: Vec<u8>,
    row: i64,
    committed_us: i64,
    arrived_us: i64,
}

#[derive(Deserialize)]
struct Payload {
    row: i64,
    us: i64,
}

/// Measures one contestant.
pub(super) fn measure(
    stage: &Stage,
    sql: &Sql,
    contestant: Contestant,
    load: Load,
) -> Result<Figures, String> {
    let slot = unique("compare");
    let task = Task { prefix: format!("{slot}."), slot, end: None };
    let table = if contestant == Contestant::Poll { POLLED } else { "outbox" };
    sql.run(&format!("TRUNCATE {table}"));
    if contestant.has_slot() {
        let make =
            format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", task.slot);
        sql.run(&make);
    }
    let names = topics(&task.prefix, load.topics);
    stage.make_topics(&names);
    let consumer = follow(&stage.kafka.bootstrap(), &names);
    stage.prepare(contestant, &task);
    let mut process = stage.start(contestant, &task);
    let sender = (contestant == Contestant::Writer)
        .then(|| Sender::connect(&stage.kafka.bootstrap(), &task.prefix));
    let url = stage.cluster.unix_url();
    let session = || Session { sql: Sql::connect(&url), table, sender: sender.as_ref() };
    let measured = await_ready(&session(), &load, (&consumer, &mut process)).and_then(|()| {
        let idle_rss = proc::rss_bytes(process.id()).unwrap_or_default();
        let idle_private = proc::private_bytes(process.id()).unwrap_or_default();
        let sampler = Sampler::start(stage.processes(&process));
        let arrivals = deliver(&load, &session, &consumer);
        let mut figures = figures(&load, &arrivals, &sampler.finish())?;
        figures.set("idle_rss_mib", to_mib(idle_rss));
        figures.set("idle_private_mib", to_mib(idle_private));
        if sender.is_some() {
            figures.leave_out(&OF_A_RELAY);
        }
        Ok(figures)
    });
    drop(process);
    if contestant.has_slot() {
        drop_slot(sql, &task.slot);
    }
    stage.delete_topics(&task.prefix);
    measured
}

/// A consumer of all partitions from their beginnings; they are new.
fn follow(bootstrap: &str, names: &[String]) -> BaseConsumer {
    let mut config = topic::client(bootstrap);
    // A broker may hold an empty answer for so long, in milliseconds.
    let consumer: BaseConsumer = config.set("fetch.wait.max.ms", "5").create().unwrap();
    let mut assignment = TopicPartitionList::new();
    for name in names {
        for (partition, _) in topic::ends(&consumer, name) {
            assignment.add_partition_offset(name, partition, Offset::Beginning).unwrap();
        }
    }
    consumer.assign(&assignment).unwrap();
    consumer
}

/// Writes a row again and again until one arrives, and lets the contestant idle for a while.
fn await_ready(
    session: &Session<'_>,
    load: &Load,
    (consumer, process): (&BaseConsumer, &mut Process),
) -> Result<(), String> {
    let began = Instant::now();
    loop {
        session.commit(&load.insert(session.table, PROBE_ROW, 0));
        if consumer.poll(PROBE).is_some_and(|record| record.is_ok()) {
            break;
        }
        if let Some(why) = process.failure() {
            return Err(why);
        }
        if began.elapsed() > READY_LIMIT {
            return Err("no row arrived".to_owned());
        }
    }
    let_pass(IDLE, "memory is that of a contestant that idles");
    Ok(())
}

/// Commits all rows, and reads what comes.
fn deliver<'a>(
    load: &Load,
    session: &(impl Fn() -> Session<'a> + Sync),
    consumer: &BaseConsumer,
) -> Vec<Arrival> {
    let written = load.rows();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(consumer, written, &is_over));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || load.write(&session(), writer)))
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        wait_for("the last row", || {
            (reader.is_finished() || Instant::now() > deadline).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    })
}

fn figures(load: &Load, arrivals: &[Arrival], seen: &Samples) -> Result<Figures, String> {
    check(arrivals, load.rows())?;
    let mut committed: Vec<i64> = arrivals.iter().map(|arrival| arrival.committed_us).collect();
    committed.sort_unstable();
    let begin_us = committed[0] + i64::try_from(load.warm_up.as_micros()).unwrap();
    let counted: Vec<&Arrival> =
        arrivals.iter().filter(|arrival| arrival.committed_us >= begin_us).collect();
    let mut latencies: Vec<i64> =
        counted.iter().map(|arrival| arrival.arrived_us - arrival.committed_us).collect();
    latencies.sort_unstable();
    let end_us = counted.iter().map(|arrival| arrival.arrived_us).max().unwrap_or(begin_us);
    let cpu = seen.between((begin_us / 1_000, end_us / 1_000));
    let mut figures = Figures::default();
    for (name, per_mille) in [("p50_ms", 500), ("p99_ms", 990), ("p999_ms", 999)] {
        figures.set(
            name,
            Duration::from_micros(quantile(&latencies, per_mille).unsigned_abs()).as_secs_f64()
                * 1e3,
        );
    }
    let seconds = Duration::from_micros((end_us - begin_us).unsigned_abs()).as_secs_f64();
    figures.set("rows_per_s", count(counted.len()) / seconds);
    figures.set("cpu_us_per_row", per_row(cpu.relay, counted.len()));
    figures.set("broker_cpu_us_per_row", per_row(cpu.broker, counted.len()));
    figures.set("peak_rss_mib", to_mib(seen.peak_rss_bytes));
    figures.set("peak_private_mib", to_mib(seen.peak_private_bytes));
    Ok(figures)
}

/// Reads until so many rows have come, or it is over. Rows that asked whether all is ready may still come.
fn read(consumer: &BaseConsumer, wanted: usize, is_over: &AtomicBool) -> Vec<Arrival> {
    let mut arrivals = Vec::with_capacity(wanted);
    while arrivals.len() < wanted && !is_over.load(Ordering::Relaxed) {
        let Some(record) = consumer.poll(PROBE) else { continue };
        let record = record.unwrap();
        let arrived_us = now_us();
        let value = record.payload().unwrap_or_default();
        let Ok(Payload { row, us }) = serde_json::from_slice(value) else { continue };
        if row != PROBE_ROW {
            let key = record.key().unwrap_or_default().to_vec();
            arrivals.push(Arrival { key, row, committed_us: us, arrived_us });
        }
    }
    arrivals
}

/// Whether each row came once, and those of one key in their order.
fn check(arrivals: &[Arrival], written: usize) -> Result<(), String> {
    let mut last: HashMap<&[u8], i64> = HashMap::new();
    let mut wrong = 0;
    for Arrival { key, row, .. } in arrivals {
        // Of a row that came before, or again.
        wrong += usize::from(last.insert(key, *row).is_some_and(|before| before >= *row));
    }
    let arrived = arrivals.len();
    let is_right = arrived == written && wrong == 0;
    is_right
        .then_some(())
        .ok_or_else(|| format!("{arrived} of {written} rows, {wrong} out of order"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_again_or_late_are_seen() {
        let arrival = |row| Arrival { key: b"a".to_vec(), row, committed_us: 0, arrived_us: 0 };
        assert!(check(&[arrival(1), arrival(2)], 2).is_ok());
        for rows in [[1, 1], [2, 1]] {
            assert!(check(&rows.map(arrival), 2).is_err());
        }
        assert!(check(&[arrival(1)], 2).is_err());
    }
}
