//! How much `postrider verify` finds, in how much memory: rows with their records, of which nothing is wrong; then
//! a hundred losses, repeats, records out of order, records that nobody wrote and changed bytes among them.
//!
//! The records are written here and not by a relay, so that what is wrong is known, and nothing of the product has
//! a part in it but what is measured. `FULL=1` takes 10,000,000 rows, `VERIFY_ROWS=` another number. Prints one line
//! of JSON, and fails when one of the planted is not found, anything else is, or more than [`RSS_MAX_MIB`] were
//! needed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod records;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use records::{Records, id};
use support::kafka::{self, Options};
use support::postgres::{self, Database};
use support::{topic, unique, wait_for};

/// What the command promises.
const RSS_MAX_MIB: u64 = 64;

/// Of each kind.
const PLANTED: u64 = 100;

/// Kinds of findings, in the order in which their rows follow those of which nothing is wrong.
const KINDS: [&str; 5] = ["lost", "different", "reordered", "duplicated", "phantom"];

const PARTITIONS: i32 = 12;

const SLOT: &str = "postrider";

/// Whether all is as it should be.
pub(super) fn run(is_full: bool) -> bool {
    let rows = std::env::var("VERIFY_ROWS").ok().and_then(|rows| rows.parse().ok());
    let rows = rows.unwrap_or(if is_full { 10_000_000 } else { 20_000 });
    // Said already: this machine has no Kafka.
    let Some(kafka) = kafka::start(&Options { measured: is_full, ..Options::default() }) else {
        return true;
    };
    find(rows, &kafka.bootstrap())
}

fn find(rows: u64, bootstrap: &str) -> bool {
    let cluster = postgres::start(&postrider::sandbox::postgres::Options {
        fsync: false,
        settings: vec![("wal_level".to_owned(), "logical".to_owned())],
        ..postrider::sandbox::postgres::Options::default()
    });
    let database = Database::migrated(&cluster, "verify");
    let prefix = format!("{}.", unique("verify"));
    let name = format!("{prefix}orders");
    topic::create(bootstrap, &name, PARTITIONS, &[]);
    let begun = Instant::now();
    insert(&database, 1, rows);
    let mut records = Records::to(bootstrap, &name);
    records.send(1..=rows);
    eprintln!("{rows} rows and records after {:.1} s", begun.elapsed().as_secs_f64());
    database.sql().run(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"));
    let look = Look { url: database.address().url(), bootstrap, prefix: &prefix };
    let clean = look.verify();
    plant(&database, &mut records, rows);
    pass(&database);
    let planted = look.verify();
    // Before its database, so that no log is kept for it.
    database.sql().run(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
    let faults = faults(rows, &clean, &planted);
    for fault in &faults {
        eprintln!("{fault}");
    }
    let peak = clean["peak_rss_mib"].as_u64().max(planted["peak_rss_mib"].as_u64());
    let found: serde_json::Map<String, Value> =
        KINDS.iter().map(|kind| ((*kind).to_owned(), planted[kind].clone())).collect();
    println!(
        "{}",
        json!({
            "what": "verify", "rows": clean["rows"], "records": clean["records"], "planted": PLANTED,
            "found": found, "found_when_clean": number_found(&clean), "peak_rss_mib": peak,
            "rows_per_s": clean["rows_per_s"], "seconds": clean["seconds"],
            "spilled_mib": clean["spilled_mib"], "faults": faults.len(),
        })
    );
    faults.is_empty()
}

/// Lets the slot pass what has committed so far. Of several places at which the log names the running transactions
/// an advance takes the first: it may be one of before the rows.
fn pass(database: &Database) {
    let sql = database.sql();
    let next = sql.value("SELECT txid_snapshot_xmax(txid_current_snapshot())");
    let passed = format!("SELECT catalog_xmin::text::bigint >= {next} FROM pg_replication_slots");
    wait_for("the slot to pass the rows", || {
        sql.run("CHECKPOINT");
        sql.run(&format!("SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())"));
        (sql.value(&passed) == "t").then_some(())
    });
}

/// Rows with these numbers, whose records are those of [`Records`].
fn insert(database: &Database, first: u64, last: u64) {
    database.sql().run(&format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT lpad(to_hex(n), 32, '0')::uuid, 'order', (n % {keys})::text, 'orders', \
             jsonb_build_object('n', n) \
         FROM generate_series({first}::bigint, {last}::bigint) AS n",
        keys = records::KEYS
    ));
}

/// Adds rows and records of which something is wrong.
fn plant(database: &Database, records: &mut Records, rows: u64) {
    let of = |kind: u64| rows + kind * PLANTED + 1..=rows + (kind + 1) * PLANTED;
    // Of those out of order there are pairs of one key, the later one first; they have room enough behind.
    let late = |n: u64| n + 10 * PLANTED * records::KEYS;
    insert(database, *of(0).start(), *of(2).end());
    for n in of(2) {
        insert(database, late(n), late(n));
    }
    for n in of(1) {
        records.send_changed(n);
    }
    for n in of(2) {
        records.send(late(n)..=late(n));
        records.send(n..=n);
    }
    // Of those that come twice the rows are of before.
    for n in 1..=PLANTED {
        let known = n * (rows / PLANTED);
        records.send(known..=known);
    }
    for n in of(4) {
        records.send(n..=n);
    }
}

/// How a look is made.
struct Look<'a> {
    url: String,
    bootstrap: &'a str,
    prefix: &'a str,
}

impl Look<'_> {
    fn verify(&self) -> Value {
        let words = "verify --output json --grace 0s --all-rows-kept --duplicates forbid -q";
        let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .args(words.split(' '))
            .env("POSTRIDER_SOURCE__URL", &self.url)
            .env("POSTRIDER_SOURCE__SLOT", SLOT)
            .env("POSTRIDER_KAFKA__BROKERS", self.bootstrap)
            .env("POSTRIDER_ROUTE__TOPIC", format!("{}${{routedByValue}}", self.prefix))
            .env("POSTRIDER_DEAD_LETTERS__TOPIC", format!("{}dead-letters", self.prefix))
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("no verdict: {stdout}"))
    }
}

fn number_found(json: &Value) -> u64 {
    KINDS.iter().map(|kind| json[kind].as_u64().unwrap()).sum()
}

/// What is not as it should be.
fn faults(rows: u64, clean: &Value, planted: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    if number_found(clean) > 0 || clean["rows"] != json!(rows) || clean["records"] != json!(rows) {
        faults.push("of rows of which nothing is wrong something is said to be".to_owned());
    }
    for (at, kind) in (0..).zip(KINDS) {
        if planted[kind] != json!(PLANTED) {
            faults.push(format!("{PLANTED} {kind} were planted, and {} found", planted[kind]));
        }
        let known: BTreeSet<String> = if kind == "duplicated" {
            (1..=PLANTED).map(|n| id(n * (rows / PLANTED))).collect()
        } else {
            (rows + at * PLANTED + 1..=rows + (at + 1) * PLANTED).map(id).collect()
        };
        let named = planted["samples"][kind].as_array().cloned().unwrap_or_default();
        let is_known = |sample: &Value| known.contains(sample["id"].as_str().unwrap_or_default());
        if named.is_empty() || !named.iter().all(is_known) {
            faults.push(format!("{kind}: not those that were planted: {named:?}"));
        }
    }
    for look in [clean, planted] {
        if look["peak_rss_mib"].as_u64().is_none_or(|peak| peak > RSS_MAX_MIB) {
            faults.push(format!("{} MiB of memory", look["peak_rss_mib"]));
        }
    }
    faults
}
