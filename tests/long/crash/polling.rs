//! Rows that are polled, by two processes of four workers, under kill -9: of the relays, of Postgres, of their sessions; and
//! relays that stand still and wake up as zombies. Then an account of every row.
//!
//! Truth is the table, which keeps its rows; the order is that of numbers which each writer gives to its own keys, one
//! transaction after the other. Input: a [`Scale`]. Output: an [`Account`]. Nothing here shares code with the relay but
//! the sandbox that starts Postgres.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options, Stop};
use rustix::process::Signal;
use serde_json::{Value, json};

use support::chance::Chance;
use support::postgres::{self, Database};
use support::relay::{Relay, Running};
use support::sql::Sql;
use support::topic::Stored;
use support::{kafka, topic};

const PREFIX: &str = "polled.";
const WORKERS: &str = "4";
const WRITERS: u64 = 4;
/// Of each writer.
const KEYS: usize = 12;
/// Rows of a batch: what one kill may repeat of each worker.
const BATCH: usize = 200;
/// How long the relays may take for what is left.
const REST_LIMIT: Duration = Duration::from_mins(3);
/// A backend notices within this that its postmaster is gone.
const RESTART_LIMIT: Duration = Duration::from_secs(30);
/// Rows a second, and for how long, while nothing happens.
const QUIET_ROWS_PER_S: u64 = 500;
const QUIET: Duration = Duration::from_secs(6);

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
}

/// What became of the rows.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) rows: usize,
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
    pub(crate) reordered: usize,
    pub(crate) phantom: usize,
    pub(crate) unmarked: usize,
    /// From the insert to the broker's own time, in a quiet time.
    pub(crate) p50_ms: i64,
}

impl Account {
    /// Whether the guarantee held. A kill repeats what its workers had under way.
    pub(crate) fn is_sound(&self, kills: u32) -> bool {
        let cap = usize::try_from(kills).unwrap() * 2 * 4 * BATCH;
        let nothing = self.lost + self.reordered + self.phantom + self.unmarked;
        nothing == 0 && self.duplicated <= cap
    }

    /// For the line on stdout.
    pub(crate) fn line(&self, scale: Scale) -> Value {
        json!({
            "mode": "poll", "kills": scale.kills, "seed": scale.seed, "workers": 4, "processes": 2, "rows": self.rows,
            "lost": self.lost, "duplicated": self.duplicated, "reordered": self.reordered, "phantom": self.phantom,
            "unmarked": self.unmarked, "p50_ms": self.p50_ms,
        })
    }
}

/// Whether the guarantee held, after a line on stdout.
pub(crate) fn run(scale: Scale) -> bool {
    eprintln!("{} kills, poll, SEED={}", scale.kills, scale.seed);
    let Some(account) = strike(scale) else { return true };
    println!("{}", account.line(scale));
    account.is_sound(scale.kills)
}

/// Does it; `None` where this machine has no Kafka.
pub(crate) fn strike(scale: Scale) -> Option<Account> {
    let kafka = kafka::start(&kafka::Options::default())?;
    let bootstrap = kafka.bootstrap();
    let mut cluster = postgres::start(&Options::default());
    let database = Database::create(&cluster, "polled");
    // The broker's time shows when a record was stored.
    let settings = [("message.timestamp.type", "LogAppendTime")];
    for name in ["A", "B", "dead-letters"] {
        topic::create(&bootstrap, &format!("{PREFIX}{name}"), 3, &settings);
    }
    let relay = relay(&database, &bootstrap);
    let made = relay.start(&["setup"]).outcome();
    assert!(made.status.success(), "{made:?}");
    let mut chance = Chance::new(scale.seed);
    let mut pair = [relay.run(), relay.run()];
    let writers = Writers::start(&database, scale.seed, Duration::from_millis(12), 20);
    for kill in 1..=scale.kills {
        std::thread::sleep(Duration::from_millis(chance.between(0, 700)));
        let who = chance.below(2);
        match chance.below(20) {
            0 => kill_postgres(&mut cluster, &mut chance),
            1..4 => terminate(&database),
            4..8 => freeze(&pair[who], &database, &mut chance),
            8..10 => {
                for one in &mut pair {
                    std::mem::replace(one, relay.run()).kill();
                }
            }
            _ => std::mem::replace(&mut pair[who], relay.run()).kill(),
        }
        if kill % 10 == 0 {
            let marked = wait_for_more(&database);
            eprintln!("{kill} of {}: {} written, {marked} marked", scale.kills, writers.written());
        }
    }
    writers.stop();
    wait_for_rest(&database);
    let from = database.sql().value("SELECT count(*) FROM outbox").parse().unwrap();
    let pause = Duration::from_secs(WRITERS) / u32::try_from(QUIET_ROWS_PER_S).unwrap();
    // As autovacuum does, which comes once a minute.
    database.sql().run("VACUUM outbox");
    let writers = Writers::start(&database, scale.seed + 1, pause, 1);
    std::thread::sleep(QUIET);
    writers.stop();
    wait_for_rest(&database);
    for one in pair {
        one.stop();
    }
    Some(account(&database, &bootstrap, from))
}

fn relay(database: &Database, bootstrap: &str) -> Relay {
    let binary = env!("CARGO_BIN_EXE_postrider");
    let relay = Relay::new(binary, &database.address(), database.name(), bootstrap, PREFIX);
    relay
        .set("source.mode", "poll")
        .set("kafka.delivery", "at_least_once")
        .set("source.poll.workers", WORKERS)
        .set("source.poll.batch", &BATCH.to_string())
        .set("source.poll.notify", "outbox")
        .set("source.poll.interval", "200ms")
        .set("retry.max", "500ms")
        // Kills have consequences.
        .allow_log("")
}

/// kill -9 of the postmaster, and a start at once.
fn kill_postgres(cluster: &mut Cluster, chance: &mut Chance) {
    std::thread::sleep(Duration::from_millis(chance.between(0, 300)));
    cluster.stop(Stop::Kill).unwrap();
    // It is refused as long as a backend of before lives, which has to notice first.
    let deadline = Instant::now() + RESTART_LIMIT;
    while let Err(error) = cluster.start_again() {
        assert!(Instant::now() < deadline, "{error}");
    }
}

/// Ends the sessions that have a batch.
fn terminate(database: &Database) {
    database.sql().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND query LIKE '%postrider.buckets%' AND pid <> pg_backend_pid()",
    );
}

/// A relay that stands still while others take what it had, and wakes up with all that it still has to send.
fn freeze(relay: &Running, database: &Database, chance: &mut Chance) {
    relay.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(chance.between(0, 100)));
    if chance.percent(70) {
        terminate(database);
    }
    std::thread::sleep(Duration::from_millis(chance.between(0, 500)));
    relay.signal(Signal::CONT);
}

fn count(sql: &Sql, condition: &str) -> Option<u64> {
    let rows = sql.try_rows(&format!("SELECT count(*) FROM outbox WHERE {condition}")).ok()?;
    rows.first()?.first()?.as_deref()?.parse().ok()
}

/// Waits until rows are marked that were not.
fn wait_for_more(database: &Database) -> u64 {
    let (sql, deadline) = (database.sql(), Instant::now() + REST_LIMIT);
    let before = count(&sql, "processed_at IS NOT NULL").unwrap();
    loop {
        let now = count(&sql, "processed_at IS NOT NULL").unwrap();
        if now > before {
            return now;
        }
        assert!(Instant::now() < deadline, "no row was marked in {REST_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_for_rest(database: &Database) {
    let (sql, deadline) = (database.sql(), Instant::now() + REST_LIMIT);
    while count(&sql, "processed_at IS NULL") != Some(0) {
        assert!(Instant::now() < deadline, "rows wait after {REST_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Those who write: each has keys of its own, and numbers of its own, which rise.
struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Transactions of up to so many rows, with this pause between two of one writer.
    fn start(database: &Database, seed: u64, pause: Duration, rows_max: u64) -> Self {
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let threads = (0..WRITERS).map(|name| {
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            let url = database.address().unix_url();
            let mut chance = Chance::new(seed ^ (name << 32));
            std::thread::spawn(move || {
                let mut number = seed * 10_000_000;
                let mut due = Instant::now();
                while !stop.load(Ordering::SeqCst) {
                    // Postgres may be killed under our feet; what became of the rest, the table knows.
                    let Ok(sql) = Sql::try_connect(&url) else {
                        std::thread::sleep(Duration::from_millis(20));
                        continue;
                    };
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        due =
                            due.max(Instant::now().checked_sub(pause * 20).unwrap_or(due)) + pause;
                        let rows = chance.between(1, rows_max);
                        let insert = insert(name, number, rows, &mut chance);
                        number += rows;
                        let end =
                            if rows_max > 1 && chance.percent(10) { "ROLLBACK" } else { "COMMIT" };
                        let done = match rows_max {
                            1 => sql.try_run(&insert),
                            _ => sql.try_run(&format!("BEGIN; {insert}; {end}")),
                        };
                        if done.is_err() {
                            break;
                        }
                        written.fetch_add(rows, Ordering::SeqCst);
                    }
                }
            })
        });
        Self { threads: threads.collect(), stop, written }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn insert(writer: u64, first: u64, rows: u64, chance: &mut Chance) -> String {
    let values: Vec<String> = (first..first + rows)
        .map(|number| {
            let key = chance.below(KEYS);
            let name = if key.is_multiple_of(2) { "A" } else { "B" };
            format!(
                "('t', '{writer}.{key}', '{name}', jsonb_build_object('n', {number}, 't', \
                 (extract(epoch FROM clock_timestamp()) * 1000)::bigint))"
            )
        })
        .collect();
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES {}",
        values.join(",")
    )
}

/// Holds the topics against the table. Latencies are those of rows from this one on, in the order of their sequence.
fn account(database: &Database, bootstrap: &str, quiet_from: usize) -> Account {
    let sql = database.sql();
    let rows = sql.rows("SELECT id FROM outbox ORDER BY sequence");
    let ids: Vec<String> = rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect();
    let quiet: HashSet<&str> = ids.iter().skip(quiet_from).map(String::as_str).collect();
    let known: HashSet<&str> = ids.iter().map(String::as_str).collect();
    let mut stored = topic::read(bootstrap, &["A", "B"].map(|name| format!("{PREFIX}{name}")));
    stored
        .sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
    let mut account = Account {
        rows: ids.len(),
        unmarked: usize::try_from(count(&sql, "processed_at IS NULL").unwrap()).unwrap(),
        ..Account::default()
    };
    let (mut seen, mut latencies) = (HashSet::new(), Vec::new());
    let mut highest: HashMap<&[u8], u64> = HashMap::new();
    for record in &stored {
        let id = record.header("id").unwrap();
        account.phantom += usize::from(!known.contains(id));
        if !seen.insert(id) {
            account.duplicated += 1;
            continue;
        }
        let (number, written_ms) = read(record);
        let highest = highest.entry(record.key.as_deref().unwrap()).or_default();
        account.reordered += usize::from(number < *highest);
        *highest = number.max(*highest);
        if quiet.contains(id) {
            latencies.push(record.timestamp_ms.unwrap() - written_ms);
        }
    }
    account.lost = known.iter().filter(|id| !seen.contains(*id)).count();
    latencies.sort_unstable();
    account.p50_ms = latencies.get(latencies.len() / 2).copied().unwrap_or(i64::MAX);
    eprintln!(
        "of {} quiet rows: p50 {} ms, p99 {:?} ms",
        latencies.len(),
        account.p50_ms,
        latencies.get(latencies.len() * 99 / 100)
    );
    account
}

/// The number of a row, and when it was written.
fn read(record: &Stored) -> (u64, i64) {
    let value: Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    (value["n"].as_u64().unwrap(), value["t"].as_i64().unwrap())
}
