//! `postrider backfill` beside a writer, killed again and again: exactly once, every row of before the slot and of
//! after it arrives once, and those of a key in their order across the seam.
//!
//! Output: how many are missing, repeated or reordered, the most memory that the command took, and how many rows a
//! second it delivers when nobody kills it. `FULL=1 BACKFILL_ROWS=1000000` is something in between.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use support::chance::Chance;
use support::postgres::Database;
use support::relay::Relay;
use support::wait::let_pass;
use support::{kafka, postgres, topic, wait_for};

const PREFIX: &str = "backfill.";
const PARTITIONS: i32 = 6;
const KEYS: usize = 500;
/// Rows of one transaction of those that are there before.
const TRANSACTION: usize = 100_000;
/// A consumer that has seen nothing for so long has seen everything.
const QUIET: Duration = Duration::from_secs(5);

struct Scale {
    rows: usize,
    kills: usize,
    /// How long each attempt lives at most.
    life: Duration,
}

/// Whether nothing is missing, repeated or reordered.
pub(super) fn run(is_full: bool) -> bool {
    let Some(kafka) = kafka::shared() else { return true };
    let rows = std::env::var("BACKFILL_ROWS").ok().and_then(|rows| rows.parse().ok());
    let scale = if is_full {
        Scale { rows: rows.unwrap_or(5_000_000), kills: 30, life: Duration::from_secs(4) }
    } else {
        Scale { rows: 100_000, kills: 6, life: Duration::from_secs(1) }
    };
    let bootstrap = kafka.bootstrap();
    let database = Database::migrated(postgres::installed(), "backfill");
    let name = format!("{PREFIX}A");
    topic::create(&bootstrap, &name, PARTITIONS, &[]);
    topic::create(&bootstrap, &format!("{PREFIX}dead-letters"), 1, &[]);
    let slot = database.name().to_owned();
    let binary = env!("CARGO_BIN_EXE_postrider");
    let relay = Relay::new(binary, &database.address(), &slot, &bootstrap, PREFIX);
    let relay = relay.set("kafka.delivery", "exactly_once").unprepared();
    database.sql().run("CREATE SEQUENCE numbers");
    let mut before = 0;
    while before < scale.rows {
        let some = TRANSACTION.min(scale.rows - before);
        database.sql().run(&insert(some));
        before += some;
    }
    let writer = Writer::start(&database);
    let mut peak_kib = kill_again_and_again(&relay, &scale);
    let mut last = relay.start(&["backfill", "--execute", "--output", "json"]);
    while !last.has_ended() {
        peak_kib = peak_kib.max(peak_kib_of(last.id()));
        let_pass(Duration::from_millis(20), "it goes on to its end");
    }
    let last = last.outcome();
    // One that was killed after its last row has ended already.
    let has_ended = last.log.concat().contains("PR-P105");
    assert!(last.status.success() || has_ended, "{} {:?}", last.status, last.log);
    let done: Value = serde_json::from_str(&last.stdout).unwrap_or_default();
    let number = |name: &str| done["summary"][name].as_f64();
    let rate =
        number("confirmed").zip(number("streaming_seconds")).map(|(rows, s)| (rows / s).round());
    let running = relay.run();
    let written = writer.stop();
    let end = database.sql().value("SELECT pg_current_wal_lsn() - '0/0'");
    let is_done = format!(
        "SELECT confirmed_flush_lsn - '0/0' >= {end} FROM pg_replication_slots WHERE slot_name = '{slot}'"
    );
    wait_for("the acknowledgement", || (database.sql().value(&is_done) == "t").then_some(()));
    running.stop();
    let account = account(&bootstrap, &name);
    database.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    let missing = scale.rows + written - account.seen;
    println!(
        "{}",
        json!({
            "what": "backfill", "rows": scale.rows, "written_meanwhile": written,
            "missing": missing, "repeated": account.repeated, "reordered": account.reordered,
            "kills": scale.kills, "peak_rss_mib": peak_kib / 1024, "rows_per_s": rate,
        })
    );
    missing == 0 && account.repeated == 0 && account.reordered == 0
}

/// Begins it, and kills it, as often as that is asked for; the most memory that it took.
fn kill_again_and_again(relay: &Relay, scale: &Scale) -> u64 {
    let (mut chance, mut peak_kib) = (Chance::new(5), 0);
    for _ in 0..scale.kills {
        let running = relay.start(&["backfill", "--execute"]);
        let life = chance.below(usize::try_from(scale.life.as_millis()).unwrap());
        let until = Instant::now() + Duration::from_millis(u64::try_from(life).unwrap());
        while Instant::now() < until {
            peak_kib = peak_kib.max(peak_kib_of(running.id()));
            let_pass(Duration::from_millis(20), "each dies at another moment");
        }
        running.kill();
    }
    peak_kib
}

pub(crate) fn insert(count: usize) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', n % {KEYS}, 'A', to_jsonb(nextval('numbers')), clock_timestamp() \
         FROM generate_series(1, {count}) AS n"
    )
}

/// The most memory that a process has had resident; 0 once it is gone.
pub(super) fn peak_kib_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// One session that commits small transactions until it is stopped.
pub(super) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Writer {
    pub(super) fn start(database: &Database) -> Self {
        const ROWS: usize = 20;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, sql, insert) = (Arc::clone(&stop), database.sql(), insert(ROWS));
        let thread = std::thread::spawn(move || {
            let mut committed = 0;
            while !told.load(Ordering::SeqCst) {
                sql.run(&insert);
                committed += ROWS;
                let_pass(Duration::from_millis(10), "rows come all the time");
            }
            committed
        });
        Self { stop, thread }
    }

    pub(super) fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Different rows.
    pub(crate) seen: usize,
    pub(crate) repeated: usize,
    pub(crate) reordered: usize,
}

/// Reads the topic from its beginning. Rows are numbered in the order of their commits.
pub(crate) fn account(bootstrap: &str, name: &str) -> Account {
    let consumer: BaseConsumer = topic::client(bootstrap).create().unwrap();
    let mut partitions = TopicPartitionList::new();
    let mut left = 0;
    for (partition, end) in topic::ends(&consumer, name) {
        partitions.add_partition_offset(name, partition, Offset::Beginning).unwrap();
        left += usize::from(end > 0);
    }
    consumer.assign(&partitions).unwrap();
    let (mut account, mut ids) = (Account::default(), HashSet::new());
    let mut highest_of: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut quiet = Instant::now();
    while left > 0 && quiet.elapsed() < QUIET {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let Ok(message) = message else { continue };
        quiet = Instant::now();
        let headers = message.headers().unwrap();
        let id = headers.iter().find(|header| header.key == "id").and_then(|header| header.value);
        let id = uuid::Uuid::parse_str(std::str::from_utf8(id.unwrap()).unwrap()).unwrap();
        if !ids.insert(id.as_u128()) {
            account.repeated += 1;
            continue;
        }
        let number: u64 = std::str::from_utf8(message.payload().unwrap()).unwrap().parse().unwrap();
        let highest = highest_of.entry(message.key().unwrap().to_vec()).or_default();
        account.reordered += usize::from(number < *highest);
        *highest = number.max(*highest);
    }
    account.seen = ids.len();
    account
}
