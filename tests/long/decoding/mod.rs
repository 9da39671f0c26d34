//! Random workloads, decoded by servers of two versions with little memory for it, streamed and in windows: what the relay
//! sends is compared with what PostgreSQL's own `test_decoding` says, and with what the workload knows that it committed.
//!
//! `make decoding ROUNDS=1000` prints one line of JSON and fails when a record differs or a relay stops. A round is a
//! workload drawn from the seed; the rounds of a run share a database, a log, and one start of the relay in each way. Plain
//! `cargo test` runs a few rounds.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod workload;

use std::collections::{BTreeMap, BTreeSet};

use postrider::sandbox::postgres::{Cluster, Options};
use rdkafka::mocking::MockCluster;
use serde_json::json;

use support::chance::Chance;
use support::postgres::Database;
use support::relay::Relay;
use support::topic::Stored;
use support::{postgres, topic};
use workload::{SCHEMA, Workload};

/// Rounds where nobody asks for a number.
const ROUNDS: u64 = 20;
/// Rounds of a run.
const ROUNDS_A_RUN: u64 = 20;
/// A relay reads windows where more than 64 MiB of log wait: a run skips more than that, a segment of 16 MiB in one round of
/// so many.
const ROUNDS_A_SEGMENT: u64 = 3;
/// What large transactions have to exceed, in each of the servers.
const WORK_MEM: &str = "64kB";
/// The server writes what is larger to its disk, and PostgreSQL 18 looks whether it was rolled back.
const UNLIMITED: &str = "SET logical_decoding_work_mem = '1GB'";
const WINDOWS: &str = "reading the backlog in windows of the log";

/// What came of it.
#[derive(Debug, Default)]
struct Tally {
    rows: usize,
    differences: usize,
    stuck: usize,
    /// Messages that say that a transaction was rolled back of which nothing was sent.
    stream_aborts: u64,
}

/// A row, as it is sent: its key, and its number with the payload behind it.
type Sequences = BTreeMap<String, Vec<(String, String)>>;

/// Whether all is as it should be.
pub(crate) fn all() -> bool {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (rounds, seed) = (read("ROUNDS").unwrap_or(ROUNDS), read("SEED").unwrap_or(1));
    let little = |options: Options| options.with("logical_decoding_work_mem", WORK_MEM);
    let mut clusters = vec![postgres::start(&little(Options::default()))];
    clusters.extend(postgres::eighteen_options().map(|options| postgres::start(&little(options))));
    let mut total = Tally::default();
    let mut done = 0;
    while done < rounds {
        let count = ROUNDS_A_RUN.min(rounds - done);
        for cluster in &clusters {
            run(cluster, seed + done, count, &mut total);
        }
        done += count;
        eprintln!("{done} rounds: {total:?}");
    }
    let Tally { rows, differences, stuck, stream_aborts } = total;
    let line = json!({
        "what": "decoding", "rounds": rounds, "seed": seed, "servers": clusters.len(), "rows": rows,
        "differences": differences, "stuck": stuck, "stream_aborts": stream_aborts,
    });
    println!("{line}");
    // PostgreSQL 18 says so of what it has decoded in part.
    let has_aborts = clusters.len() == 1 || rounds < ROUNDS || stream_aborts > 0;
    if !has_aborts {
        eprintln!("no server said that a transaction was rolled back: another SEED draws one");
    }
    rows > 0 && differences == 0 && stuck == 0 && has_aborts
}

/// Some rounds in a database of their own, delivered in both ways.
fn run(cluster: &Cluster, seed: u64, rounds: u64, total: &mut Tally) {
    let mut chance = Chance::new(seed);
    let database = Database::migrated(cluster, "decoding");
    let sql = database.sql();
    sql.run(SCHEMA);
    if chance.percent(50) {
        sql.run("ALTER PUBLICATION postrider SET (publish = 'insert, update, delete, truncate')");
    }
    let name = database.name();
    let slots = ["windows", "streamed", "judge"].map(|way| format!("{name}_{way}"));
    for (slot, plugin) in slots.iter().zip(["pgoutput", "pgoutput", "test_decoding"]) {
        sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', '{plugin}')"));
    }
    let mut workload = Workload::new(&mut chance, || database.sql());
    for round in 0..rounds {
        workload.round();
        if round.is_multiple_of(ROUNDS_A_SEGMENT) {
            workload.skip_log(1);
        }
    }
    let committed = std::mem::take(&mut workload.committed);
    drop(workload);
    total.rows += committed.len();
    total.stream_aborts += stream_aborts(&database, &slots[0]);
    let expected = judged(&database, &slots[2]);
    let numbers: BTreeSet<u64> = expected.values().flatten().map(|(n, _)| number(n)).collect();
    let is_known = numbers == committed;
    if !is_known {
        eprintln!("seed {seed}: test_decoding says other rows than were committed");
        total.differences += numbers.symmetric_difference(&committed).count();
    }
    for (slot, in_windows) in slots.iter().zip([true, false]) {
        let mock = MockCluster::new(1).unwrap();
        let bootstrap = mock.bootstrap_servers();
        let prefix = format!("{slot}.");
        let binary = env!("CARGO_BIN_EXE_postrider");
        let relay = Relay::new(binary, &database.address(), slot, &bootstrap, &prefix)
            .set("source.catch_up", &in_windows.to_string());
        let outcome = relay.start(&["run", "--once"]).outcome();
        let log = outcome.log.join("\n");
        // The last run may have few rounds, and too little log.
        let is_read = !in_windows || rounds < ROUNDS_A_RUN || log.contains(WINDOWS);
        if !outcome.status.success() || !is_read {
            eprintln!("seed {seed}, {slot}: {}\n{log}", outcome.status);
            total.stuck += 1;
        }
        let sent = sequences(&topic::read(&bootstrap, &topic::names(&bootstrap, &prefix)));
        let differences = differences(&expected, &sent);
        if differences > 0 {
            eprintln!("seed {seed}, {slot}: {differences} rows differ");
        }
        total.differences += differences;
    }
    for slot in &slots {
        sql.run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    }
}

/// What test_decoding says of the outbox, in the order of the commits. It is not asked where memory is short: of a
/// transaction that was rolled back it is told what it does not expect, and PostgreSQL 18 crashes.
fn judged(database: &Database, slot: &str) -> Sequences {
    let sql = database.sql();
    sql.run(UNLIMITED);
    let rows = sql.rows(&format!(
        "SELECT substring(data FROM $$ aggregate_id\\[text\\]:'([^']*)'$$), \
                substring(data FROM $$ aggregate_type\\[text\\]:'([^']*)'$$), \
                substring(data FROM $$ payload\\[jsonb\\]:'([^']*)'$$) \
         FROM pg_logical_slot_peek_changes('{slot}', NULL, NULL) \
         WHERE data LIKE 'table public.outbox: INSERT:%'"
    ));
    let mut sequences = Sequences::new();
    for row in rows {
        let [Some(key), Some(n), Some(payload)] = <[_; 3]>::try_from(row).unwrap() else {
            panic!("a row without a value")
        };
        sequences.entry(key).or_default().push((n, payload));
    }
    sequences
}

/// Messages of a kind that a stream without `streaming` should not have.
fn stream_aborts(database: &Database, slot: &str) -> u64 {
    let count = format!(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, \
         'proto_version', '1', 'publication_names', 'postrider') WHERE get_byte(data, 0) = ascii('A')"
    );
    database.sql().value(&count).parse().unwrap()
}

fn sequences(records: &[Stored]) -> Sequences {
    let mut sequences = Sequences::new();
    for record in records {
        let text =
            |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap_or_default()).unwrap();
        let n = record.header("aggregate_type").unwrap_or_default().to_owned();
        sequences.entry(text(&record.key)).or_default().push((n, text(&record.value)));
    }
    sequences
}

/// The number of a row, without the letter before it.
fn number(n: &str) -> u64 {
    n[1..].parse().unwrap()
}

/// Places at which the rows of a key are others.
fn differences(expected: &Sequences, sent: &Sequences) -> usize {
    let keys: BTreeSet<&String> = expected.keys().chain(sent.keys()).collect();
    let none = Vec::new();
    let of = |key: &String| {
        let (one, other) = (expected.get(key).unwrap_or(&none), sent.get(key).unwrap_or(&none));
        let differing = one.iter().zip(other).filter(|(one, other)| one != other).count();
        differing + one.len().abs_diff(other.len())
    };
    keys.into_iter().map(of).sum()
}
