//! Many databases in one process: a stream for each while rows flow, then the same with one stream that is stuck, and an
//! account of every row.
//!
//! `make streams STREAMS=50` prints one line of JSON and fails when a row is lost or out of order. The time of a row is from
//! its insert to the broker's append, both by the clock of this machine; the stuck stream waits for a topic that does not
//! exist, with rows of its own behind it, which are delivered once the topic is there. Plain `cargo test` runs a few streams.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Options;
use rustix::process::Signal;
use serde_json::{Value, json};

use support::postgres::Database;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::sql::Sql;
use support::topic::Stored;
use support::wait::{let_pass, wait_until};
use support::{kafka, postgres, topic, unique};

/// Streams, and rows a second of all of them together, where nobody asks for a number.
const STREAMS: usize = 4;
const ROWS_PER_S: u64 = 100;
/// Of each of the two parts.
const SECONDS: u64 = 5;
/// Keys of each database.
const KEYS: u64 = 4;
const PARTITIONS: i32 = 8;
/// So many streams are held to [`RSS_MIB`] and [`RSS_MIB_EACH`].
const MANY: u64 = 50;
/// What a process may have in memory, in MiB, beside what each stream may have.
const RSS_MIB: u64 = 32;
const RSS_MIB_EACH: u64 = 4;

/// A database, and who writes to it.
struct Tenant {
    database: Database,
    sql: Sql,
    /// Rows that were committed.
    rows: u64,
}

/// What the topics hold of a run.
#[derive(Debug, Default)]
struct Account {
    lost: usize,
    reordered: usize,
    /// By the part of the run: from insert to append, in ms.
    times: BTreeMap<u64, Vec<i64>>,
}

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    let Some(kafka) = kafka::strict() else { return true };
    let count = read("STREAMS").unwrap_or(STREAMS as u64);
    let seconds = read("STREAMS_SECONDS").unwrap_or(SECONDS);
    assert!(count >= 2, "STREAMS is at least 2");
    let options = Options::default().with("max_connections", "400").with("max_wal_senders", "200");
    let cluster = postgres::start(&options);
    let (bootstrap, name) = (kafka.bootstrap(), unique("streams"));
    let rows_topic = format!("{name}.rows");
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    topic::create(&bootstrap, &rows_topic, PARTITIONS, &stamped);
    topic::create(&bootstrap, &format!("{name}.dead-letters"), 1, &[]);
    let tenant = |number: u64| {
        let database = Database::migrated(&cluster, &format!("tenant{number}"));
        let sql = database.sql();
        let slot = database.name();
        sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        Tenant { database, sql, rows: 0 }
    };
    let mut tenants: Vec<Tenant> = (0..count).map(tenant).collect();
    eprintln!("{count} databases");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("postrider.toml");
    std::fs::write(&file, file_of(&tenants, &name)).unwrap();
    let (mut running, face) = start(&tenants, &bootstrap, &file);
    face.wait_ready(200);
    let idle_rss = rss_mib(&face);

    // The first one is to be stuck later, and takes no part.
    let [stuck, others @ ..] = &mut tenants[..] else { panic!("two at least") };
    // A producer asks for its partitions before its first record; that is not what is measured.
    for tenant in others.iter_mut() {
        tenant.insert(0, "rows");
    }
    others.iter().for_each(Tenant::await_delivery);
    write(others, 1, seconds);
    stuck.insert(2, "absent");
    wait_until("a stream to be stuck", || {
        let (_, health) = face.probe("/readyz?stream=t0");
        health["checks"].as_array().unwrap().iter().any(|check| check["ok"] == false)
    });
    write(others, 2, seconds);
    let rss = rss_mib(&face);
    assert!(!running.has_ended(), "the process ended by itself");
    topic::create(&bootstrap, &format!("{name}.absent"), 1, &stamped);
    tenants.iter().for_each(Tenant::await_delivery);
    running.signal(Signal::TERM);
    let outcome = running.outcome();
    let records = topic::read(&bootstrap, &[rows_topic, format!("{name}.absent")]);
    let account = judge(&tenants, &records);
    let p99 = |part: u64| percentile_99(account.times.get(&part).cloned().unwrap_or_default());
    let line = json!({
        "what": "streams",
        "streams": count,
        "rows": tenants.iter().map(|tenant| tenant.rows).sum::<u64>(),
        "rss_mib": rss,
        "idle_rss_mib": idle_rss,
        "lost": account.lost,
        "reordered": account.reordered,
        "p99_ms": p99(1),
        "p99_ms_one_stuck": p99(2),
    });
    println!("{line}");
    let is_whole = account.lost == 0 && account.reordered == 0;
    let is_sound = is_whole && is_lean(count, rss) && outcome.status.success();
    if !is_sound {
        eprintln!("{}\n{}", outcome.status, outcome.log.join("\n"));
    }
    is_sound
}

/// What all of them share is most of what a few of them have.
fn is_lean(count: u64, rss: u64) -> bool {
    count < MANY || rss <= RSS_MIB + count * RSS_MIB_EACH
}

fn read(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not understood")))
}

/// A table for each, `t0` and so on; all rows go to one topic.
fn file_of(tenants: &[Tenant], name: &str) -> String {
    let mut text = format!(
        "[route]\ntopic = \"{name}.${{routedByValue}}\"\nmissing_topic = \"wait\"\n\
         [dead_letters]\ntopic = \"{name}.dead-letters\"\n[retry]\nmax = \"1s\"\n"
    );
    for (number, tenant) in tenants.iter().enumerate() {
        let (url, slot) = (tenant.database.address().url(), tenant.database.name());
        write!(
            text,
            "[[stream]]\nname = \"t{number}\"\nsource.url = \"{url}\"\nsource.slot = \"{slot}\"\n"
        )
        .unwrap();
    }
    text
}

fn start(tenants: &[Tenant], bootstrap: &str, file: &std::path::Path) -> (Running, RelayHttp) {
    let database = &tenants[0].database;
    let binary = env!("CARGO_BIN_EXE_postrider");
    let relay = Relay::new(binary, &database.address(), database.name(), bootstrap, "");
    let own = ["source.url", "source.slot", "route.topic", "dead_letters.topic", "kafka.delivery"];
    let relay = own.iter().fold(relay, |relay, option| relay.unset(option)).allow_log("");
    let mut running = relay.start(&["-c", file.to_str().unwrap(), "run"]);
    let face = RelayHttp::of(&mut running);
    (running, face)
}

fn rss_mib(face: &RelayHttp) -> u64 {
    face.count("process_resident_memory_bytes").unwrap() >> 20
}

/// One row after the other, of each in turn.
fn write(tenants: &mut [Tenant], part: u64, seconds: u64) {
    let begun = Instant::now();
    let pause = Duration::from_micros(1_000_000 / ROWS_PER_S);
    for (count, number) in (1_u32..).zip((0..tenants.len()).cycle()) {
        if begun.elapsed() >= Duration::from_secs(seconds) {
            return;
        }
        tenants[number].insert(part, "rows");
        let_pass((pause * count).saturating_sub(begun.elapsed()), "the pace of the writer");
    }
}

impl Tenant {
    fn insert(&mut self, part: u64, topic: &str) {
        self.rows += 1;
        let (number, key) = (self.rows, self.rows % KEYS);
        let name = self.database.name();
        self.sql.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 't', '{name}/{key}', '{topic}', \
             jsonb_build_object('tenant', '{name}', 'number', {number}, 'part', {part}, \
             'at_ms', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
        ));
    }

    /// Waits until all that was committed is acknowledged.
    fn await_delivery(&self) {
        let end = self.sql.value("SELECT pg_current_wal_lsn()");
        let settled = format!(
            "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
            self.database.name()
        );
        wait_until("a slot to be acknowledged", || self.sql.value(&settled) == "t");
    }
}

fn judge(tenants: &[Tenant], records: &[Stored]) -> Account {
    let mut account = Account::default();
    let mut seen: BTreeSet<(String, u64)> = BTreeSet::new();
    let mut latest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for record in records {
        let value: Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        let number = value["number"].as_u64().unwrap();
        let is_new = seen.insert((value["tenant"].as_str().unwrap().to_owned(), number));
        if is_new {
            // A key is in one partition, and numbers rise with the commits.
            let last = latest.entry(record.key.clone().unwrap()).or_insert(number);
            account.reordered += usize::from(number < *last);
            *last = number.max(*last);
            let time = record.timestamp_ms.unwrap() - value["at_ms"].as_i64().unwrap();
            if !record.topic.ends_with(".absent") {
                account.times.entry(value["part"].as_u64().unwrap()).or_default().push(time);
            }
        }
    }
    let wanted = tenants.iter().flat_map(|tenant| {
        (1..=tenant.rows).map(|number| (tenant.database.name().to_owned(), number))
    });
    account.lost = wanted.filter(|row| !seen.contains(row)).count();
    account
}

fn percentile_99(mut times: Vec<i64>) -> i64 {
    times.sort_unstable();
    let rank = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(rank).copied().unwrap_or_default()
}
