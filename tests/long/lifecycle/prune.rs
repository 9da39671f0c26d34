//! `postrider prune` on an outbox in daily partitions: the relay is killed, its slot is dropped with rows that were
//! not delivered and made anew by hand, and prune runs while it is away, and again beside the relay and a writer.
//!
//! Output: how many of the rows that were never delivered are gone (none may be), what was dropped, and how long
//! commits took to reach a consumer without prune and beside it. `FULL=1 PRUNE_ROWS=2000000` is something in between.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postrider::sandbox::postgres::{Cluster, Options};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use support::postgres::Database;
use support::relay::{Relay, Running};
use support::sql::Sql;
use support::wait::{let_pass, within};
use support::{kafka, postgres, topic};

const SLOT: &str = "lifecycle";
const PREFIX: &str = "lifecycle.";
const PARTITIONS: i32 = 4;
/// Rows of one transaction of the backlog.
const TRANSACTION: usize = 10_000;
/// Longer than any part of the full run takes on two cores.
const LIMIT: Duration = Duration::from_hours(2);
/// Between two rows of the writer.
const WRITER_PAUSE: Duration = Duration::from_millis(5);
/// What latency may be told of.
const SAMPLES_MIN: usize = 1_000;
/// What latency beside prune may be, in hundredths of that without, and the noise of a clock of whole
/// milliseconds.
const P99_MAX: (u64, u64) = (110, 1);

/// Parts of the run that latency is told of.
const IDLE: u8 = 0;
const WITHOUT: u8 = 1;
const BESIDE: u8 = 2;

struct Scale {
    rows: usize,
    days: usize,
    /// How long latency without prune is measured.
    rest: Duration,
}

struct Scene {
    scale: Scale,
    sql: Sql,
    relay: Relay,
    reader: Reader,
    // Last: the slot and the sessions go first.
    database: Database,
    _cluster: Cluster,
}

/// Whether no row is gone that was not delivered.
pub(super) fn run(is_full: bool) -> bool {
    let Some(kafka) = kafka::shared() else { return true };
    let rows = std::env::var("PRUNE_ROWS").ok().and_then(|rows| rows.parse().ok());
    let scale = if is_full {
        Scale { rows: rows.unwrap_or(20_000_000), days: 20, rest: Duration::from_mins(1) }
    } else {
        Scale { rows: 100_000, days: 10, rest: Duration::from_secs(2) }
    };
    let scene = Scene::set(scale, &kafka.bootstrap());
    let half = scene.scale.rows / 2;
    let undelivered = scene.lose_the_slot(half);
    let refused = scene.prune();
    let is_refused = refused.0 == 70 && scene.count() == half;
    let relay = scene.relay.clone().allow_log("rows committed between them are not delivered");
    let mut running = relay.run();
    running.wait_for_log("streaming");
    scene.insert(half, scene.scale.rows);
    scene.delivered(scene.scale.rows - undelivered.len());
    scene.pass(&running);
    let writer = Writer::start(&scene.database, scene.scale.rows);
    scene.reader.phase(WITHOUT);
    let_pass(scene.scale.rest, "latency without prune is measured meanwhile");
    scene.reader.phase(BESIDE);
    let begun = Instant::now();
    let (exit, tables) = scene.prune();
    let seconds = begun.elapsed().as_secs_f64();
    scene.reader.phase(IDLE);
    writer.stop();
    running.stop();
    let dropped = count_of(&tables, "dropped");
    let [without, beside] = scene.reader.p99();
    let (lost, waiting) = scene.account(half);
    println!(
        "{}",
        json!({
            "what": "prune", "rows": scene.scale.rows, "partitions": scene.scale.days, "dropped": dropped,
            "kept": count_of(&tables, "kept"), "undelivered": waiting, "undelivered_dropped": lost,
            "refused_while_lost": is_refused, "kills": 1, "slots_lost": 1,
            "seconds": (seconds * 100.0).round() / 100.0,
            "p99_ms_without": without, "p99_ms_beside": beside,
        })
    );
    let (hundredths, noise) = P99_MAX;
    let is_quick = without
        .zip(beside)
        .is_none_or(|(without, beside)| !is_full || beside <= without * hundredths / 100 + noise);
    let is_sound = is_refused && exit == 0 && lost == 0 && waiting > 0 && dropped > 0;
    if !is_sound || !is_quick {
        eprintln!("prune ended with {exit}: {tables:?}");
    }
    is_sound && is_quick
}

fn count_of(tables: &[Value], is: &str) -> usize {
    let parts = tables.iter().filter_map(|table| table["partitions"].as_array()).flatten();
    parts.filter(|part| part["is"] == is).count()
}

impl Scene {
    fn set(scale: Scale, bootstrap: &str) -> Self {
        let cluster = postgres::start(&Options::default());
        let database = Database::create(&cluster, "lifecycle");
        let sql = database.sql();
        let mut text = "CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), \
            aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, \
            payload jsonb, created_at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (created_at); \
            CREATE TABLE rest PARTITION OF outbox DEFAULT;"
            .to_owned();
        for day in 0..scale.days {
            let back = scale.days + 2 - day;
            write!(
                text,
                "DO $$BEGIN EXECUTE format('CREATE TABLE day_{day} PARTITION OF outbox \
                 FOR VALUES FROM (%L) TO (%L)', current_date - {back}, current_date - {back} + 1); END$$;"
            )
            .unwrap();
        }
        sql.run(&text);
        let relay = Relay::new(
            env!("CARGO_BIN_EXE_postrider"),
            &database.address(),
            SLOT,
            bootstrap,
            PREFIX,
        );
        let relay = relay.set("progress.at_least_once", "true");
        let name = format!("{PREFIX}rows");
        topic::create(bootstrap, &name, PARTITIONS, &[]);
        let topics = format!("--topics={name}");
        let made = relay.start(&["setup", "--table", "public.outbox", &topics]).outcome();
        assert!(made.status.success(), "{:?}", made.log);
        let reader = Reader::start(bootstrap, &name, scale.rows);
        Self { scale, sql, relay, reader, database, _cluster: cluster }
    }

    /// Writes rows from `from` on below `to`, their age by their number.
    fn insert(&self, from: usize, to: usize) {
        let Scale { rows, days, .. } = self.scale;
        for first in (from..to).step_by(TRANSACTION) {
            let last = (first + TRANSACTION).min(to) - 1;
            self.sql.run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                 SELECT 't', n, 'rows', '{{\"amount\": 1.50}}', \
                     current_date - {days} - 2 + n::float8 * {days} / {rows} * interval '1 day' \
                 FROM generate_series({first}, {last}) AS n"
            ));
        }
    }

    /// Half of these rows are delivered, the relay is killed in the midst of the others, and its slot dropped and
    /// made anew. What was not delivered.
    fn lose_the_slot(&self, half: usize) -> BTreeSet<usize> {
        let running = self.relay.run();
        self.insert(0, half / 4 * 3);
        self.delivered(half / 2);
        running.kill();
        self.insert(half / 4 * 3, half);
        let free = || self.sql.value("SELECT NOT active FROM pg_replication_slots") == "t";
        within(LIMIT, || free().then_some(())).unwrap();
        self.sql.run(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
        self.sql.run(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"));
        self.reader.missing(half)
    }

    fn delivered(&self, rows: usize) {
        let came = within(LIMIT, || (self.reader.came() >= rows).then_some(()));
        assert!(came.is_some(), "{} rows of {rows} came", self.reader.came());
    }

    /// Waits until the relay has let the slot pass what has committed so far.
    fn pass(&self, _running: &Running) {
        let next = self.sql.value("SELECT txid_snapshot_xmax(txid_current_snapshot())");
        let passed = within(LIMIT, || {
            self.sql.run("CHECKPOINT");
            let sql =
                format!("SELECT catalog_xmin::text::bigint >= {next} FROM pg_replication_slots");
            (self.sql.value(&sql) == "t").then_some(())
        });
        assert!(passed.is_some(), "the slot stands still");
    }

    /// Its exit code, and what it did.
    fn prune(&self) -> (i32, Vec<Value>) {
        let line = ["prune", "--older-than", "1d", "--execute", "--output", "json"];
        let outcome = self.relay.start(&line).outcome();
        let tables = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
        (outcome.status.code().unwrap(), tables.collect())
    }

    fn count(&self) -> usize {
        self.sql.value("SELECT count(*) FROM outbox").parse().unwrap()
    }

    /// How many rows were neither delivered nor are in the table, and how many wait there.
    fn account(&self, half: usize) -> (usize, usize) {
        let missing: Vec<usize> = self.reader.missing(self.scale.rows).into_iter().collect();
        assert!(missing.iter().all(|row| *row < half), "the new slot has them");
        self.sql.run("CREATE TEMP TABLE missing (n text)");
        for some in missing.chunks(TRANSACTION) {
            let values: Vec<String> = some.iter().map(|row| format!("('{row}')")).collect();
            self.sql.run(&format!("INSERT INTO missing VALUES {}", values.join(", ")));
        }
        let sql = "SELECT count(*) FROM missing JOIN outbox ON aggregate_id = n";
        let waiting: usize = self.sql.value(sql).parse().unwrap();
        (missing.len() - waiting, waiting)
    }
}

/// Reads the topic all the time.
struct Reader {
    shared: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

struct Seen {
    ended: AtomicBool,
    phase: AtomicU8,
    came: AtomicUsize,
    /// By the row's number.
    rows: Mutex<Vec<bool>>,
    /// From commit to here, in ms, without prune and beside it.
    latency: Mutex<[Vec<u64>; 2]>,
}

impl Reader {
    fn start(bootstrap: &str, name: &str, rows: usize) -> Self {
        let shared = Arc::new(Seen {
            ended: AtomicBool::new(false),
            phase: AtomicU8::new(IDLE),
            came: AtomicUsize::new(0),
            rows: Mutex::new(vec![false; rows]),
            latency: Mutex::default(),
        });
        let consumer: BaseConsumer = topic::client(bootstrap).create().unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(name, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&all).unwrap();
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !seen.ended.load(Ordering::Relaxed) {
                if let Some(record) = consumer.poll(Duration::from_millis(100)) {
                    let record = record.unwrap();
                    let row = std::str::from_utf8(record.key().unwrap()).unwrap().parse().unwrap();
                    seen.take(row, record.timestamp().to_millis().unwrap());
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    fn phase(&self, phase: u8) {
        self.shared.phase.store(phase, Ordering::Relaxed);
    }

    /// Rows of the backlog that came, each counted once.
    fn came(&self) -> usize {
        self.shared.came.load(Ordering::Relaxed)
    }

    /// Rows below `end` that have not come.
    fn missing(&self, end: usize) -> BTreeSet<usize> {
        let rows = self.shared.rows.lock().unwrap();
        rows.iter().take(end).enumerate().filter(|(_, came)| !**came).map(|(row, _)| row).collect()
    }

    /// Of both parts, where enough rows came.
    fn p99(&self) -> [Option<u64>; 2] {
        let mut latency = self.shared.latency.lock().unwrap();
        latency.each_mut().map(|part| {
            part.sort_unstable();
            let at = part.len() * 99 / 100;
            (part.len() >= SAMPLES_MIN).then(|| part.get(at).copied()).flatten()
        })
    }
}

impl Seen {
    fn take(&self, row: usize, committed_ms: i64) {
        if let Some(came) = self.rows.lock().unwrap().get_mut(row) {
            if !std::mem::replace(came, true) {
                self.came.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let part = match self.phase.load(Ordering::Relaxed) {
            WITHOUT => 0,
            BESIDE => 1,
            _ => return,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let late = i64::try_from(now).unwrap().saturating_sub(committed_ms);
        if let Some(part) = self.latency.lock().unwrap().get_mut(part) {
            part.push(u64::try_from(late).unwrap_or(0));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// A service that writes a row now and then.
struct Writer {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(database: &Database, first: usize) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (told, database) = (Arc::clone(&ended), database.clone());
        let thread = std::thread::spawn(move || {
            let sql = database.sql();
            let mut row = first;
            while !told.load(Ordering::Relaxed) {
                sql.run(&format!(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                     VALUES ('t', '{row}', 'rows', '{{}}')"
                ));
                row += 1;
                let_pass(WRITER_PAUSE, "the writer's pace");
            }
        });
        Self { ended, thread }
    }

    fn stop(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
