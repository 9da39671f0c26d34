//! How much memory exactly-once delivery takes at worst, on real Apache Kafka: `make bench-memory`.
//!
//! First one transaction of many rows, then an outage of the only broker while rows are written.
//! Leaves one line of JSON with the highest resident set of each, read from `/proc/PID/status`, and
//! fails above the limit or when a row is missing. A plain `cargo bench` runs nothing of it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is a bench; what goes wrong should stop it"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use support::kafka::Kafka;
use support::postgres::Database;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::{kafka, postgres, topic, wait_for};

/// What has to be said for it to run.
const WORD: &str = "figures";
const LIMIT_MIB: f64 = 96.0;
const ROWS: u64 = 10_000_000;
const OUTAGE_S: u64 = 600;
/// During the outage.
const ROWS_PER_S: u64 = 1_000;
const TOPIC: &str = "memory";
/// For the brokers to take what was written.
const DRAIN_LIMIT: Duration = Duration::from_mins(30);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    if arguments.next().is_none_or(|word| word != WORD) {
        return ExitCode::SUCCESS;
    }
    let mut number = |usual: u64| arguments.next().map_or(usual, |text| text.parse().unwrap());
    let (rows, outage_s) = (number(ROWS), number(OUTAGE_S));
    let Some(kafka) = kafka::start(&kafka::Options { measured: true, ..Default::default() }) else {
        return ExitCode::FAILURE;
    };
    let mut scene = Scene::new(kafka);
    let (transaction_mib, transaction_s) = scene.drain_one_transaction(rows);
    eprintln!("{rows} rows of one transaction: {transaction_mib} MiB, {transaction_s} s");
    let (outage_mib, written) = scene.outlast_an_outage(outage_s);
    let fits = transaction_mib.max(outage_mib) <= LIMIT_MIB;
    let line = json!({
        "delivery": "exactly_once", "transaction_rows": rows, "transaction_s": transaction_s,
        "transaction_peak_mib": transaction_mib, "outage_s": outage_s, "outage_rows": written,
        "outage_peak_mib": outage_mib, "limit_mib": LIMIT_MIB, "fits": fits,
    });
    println!("{line}");
    if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Scene {
    kafka: Kafka,
    database: Database,
    relay: Relay,
}

impl Scene {
    fn new(kafka: Kafka) -> Self {
        let database = Database::migrated(postgres::installed(), "memory");
        let name = database.name();
        let slot = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
        database.sql().run(&slot);
        topic::create(&kafka.bootstrap(), TOPIC, 3, &[]);
        topic::create(&kafka.bootstrap(), "dead-letters", 3, &[]);
        let relay = Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            &database.address(),
            name,
            &kafka.bootstrap(),
            "",
        )
        .set("kafka.delivery", "exactly_once")
        .allow_log("");
        Self { kafka, database, relay }
    }

    fn insert(&self, rows: u64) {
        self.database.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % 1000, '{TOPIC}', jsonb_build_object('n', n, 'note', repeat('x', 60)) \
             FROM generate_series(1, {rows}) AS n"
        ));
    }

    /// MiB, and seconds from the relay's start until Postgres was told.
    fn drain_one_transaction(&mut self, rows: u64) -> (f64, u64) {
        self.insert(rows);
        let end = self.log_end();
        let begun = Instant::now();
        let mut running = self.relay.run();
        let face = RelayHttp::of(&mut running);
        self.await_acknowledged(end);
        let took = begun.elapsed().as_secs();
        let peak = peak_mib(&running);
        stop(running, &face, rows);
        (peak, took)
    }

    /// MiB, and the rows written meanwhile.
    fn outlast_an_outage(&mut self, outage_s: u64) -> (f64, u64) {
        let mut running = self.relay.run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        self.insert(ROWS_PER_S);
        self.await_acknowledged(self.log_end());
        self.kafka.kill_broker(0);
        for _ in 0..outage_s {
            let second = Instant::now();
            self.insert(ROWS_PER_S);
            std::thread::sleep(Duration::from_secs(1).saturating_sub(second.elapsed()));
        }
        self.kafka.start_broker(0);
        self.await_acknowledged(self.log_end());
        let peak = peak_mib(&running);
        let written = ROWS_PER_S * outage_s;
        stop(running, &face, ROWS_PER_S + written);
        (peak, written)
    }

    fn log_end(&self) -> u64 {
        let sql = self.database.sql();
        sql.value("SELECT pg_current_wal_insert_lsn() - '0/0'").parse().unwrap()
    }

    fn await_acknowledged(&self, position: u64) {
        let sql = self.database.sql();
        let question = format!(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{}'",
            self.database.name()
        );
        let deadline = Instant::now() + DRAIN_LIMIT;
        while sql.value(&question).parse::<u64>().unwrap() < position {
            assert!(Instant::now() < deadline, "rows wait after {DRAIN_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Ends a relay that must have seen so many rows stored; the next one begins to count at zero.
fn stop(running: Running, face: &RelayHttp, rows: u64) {
    wait_for(&format!("{rows} records"), || {
        let confirmed = face.count("postrider_records_confirmed_total");
        (confirmed >= Some(rows)).then_some(())
    });
    running.stop();
}

/// The highest resident set so far.
fn peak_mib(running: &Running) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u32 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (f64::from(kib) / 1024.0 * 10.0).round() / 10.0
}
