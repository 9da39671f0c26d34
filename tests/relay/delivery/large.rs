//! Rows larger than the relay holds: they pass in pieces, and become dead letters.

use std::fs;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::Cluster;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_postgres::error::SqlState;

use crate::stage::Stage;
use crate::trial::{DELIVERIES, Trial};
use support::broker::Broker;
use support::fault::link::{Fault, Kind, Way};
use support::fault::proxy::{Proxy, blind};
use support::postgres;
use support::relay_http::RelayHttp;
use support::topic::Stored;

const MIB: usize = 1 << 20;

/// An outbox of an application's own, which keeps nothing out.
fn unguard(stage: &Stage) {
    stage.sql().run("ALTER TABLE outbox DROP CONSTRAINT outbox_row_size");
}

/// A row with `size` bytes of `x` in one of its columns, written in a transaction of its own.
fn insert(stage: &Stage, column: &str, size: usize) {
    let value = |name: &str, small: &str| {
        if name == column { format!("repeat('x', {size})") } else { small.to_owned() }
    };
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', {}, {}, to_jsonb({}))",
        value("aggregate_id", "'k'"),
        value("event_type", "'A'"),
        value("payload", "1"),
    ));
}

fn sha256_of(size: usize, quote: &str) -> String {
    let text = format!("{quote}{}{quote}", "x".repeat(size));
    format!("{:x}", Sha256::digest(text))
}

fn letters(stage: &Stage) -> Vec<Stored> {
    let topic = stage.topic("dead-letters");
    let mut letters = stage.records();
    letters.retain(|record| record.topic == topic);
    letters.sort_by_key(|letter| letter.header("postrider-lsn").map(str::to_owned));
    letters
}

fn note(letter: &Stored) -> Value {
    assert_eq!(letter.header("postrider-error-code"), Some("too_large"));
    assert_eq!(letter.header("postrider-table"), Some("public.outbox"));
    let note: Value = serde_json::from_slice(letter.value.as_ref().unwrap()).unwrap();
    assert_eq!(note["id"].as_str(), letter.header("id"), "{note}");
    note
}

/// Large rows in each column, among small ones, in transactions of their own and together; a value that
/// is small where it lies; rows that are changed, with all of them in the log before and after.
fn write(stage: &Stage) {
    let sql = stage.sql();
    sql.run("ALTER TABLE outbox REPLICA IDENTITY FULL");
    sql.run("ALTER PUBLICATION postrider SET (publish = 'insert, update, delete, truncate')");
    stage.insert("A", 3);
    insert(stage, "aggregate_id", 2 * MIB);
    stage.insert("A", 1);
    sql.run(&format!("CREATE TABLE source AS SELECT to_jsonb(repeat('x', {})) AS j", 20 * MIB));
    let stored: usize = sql.value("SELECT pg_column_size(j) FROM source").parse().unwrap();
    assert!(stored < MIB, "{stored}");
    sql.run(
        "BEGIN; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'k', 'A', '1'); \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 't', 'k', 'A', j FROM source; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'k', 'A', '2'); \
         COMMIT",
    );
    insert(stage, "event_type", 3 * MIB);
    sql.run(
        "UPDATE outbox SET aggregate_type = 'u' WHERE event_type <> 'A'; \
         DELETE FROM outbox WHERE event_type <> 'A'",
    );
    stage.insert("A", 2);
}

#[test]
fn g1_g3_g4_g6_rows_too_large_to_be_held_become_dead_letters_and_the_rest_goes_on() {
    for cluster in postgres::versions() {
        for delivery in DELIVERIES {
            one_of_each(cluster, delivery);
        }
    }
}

fn one_of_each(cluster: &Cluster, delivery: &'static str) {
    let trial = Trial::new(cluster, "large", delivery);
    let stage = &trial.stage;
    unguard(stage);
    write(stage);
    let relay = trial.relay().set("source.frame_max", "1MiB").set("outbox.on_update", "ignore");
    let relay = relay.allow_log("are decoded for nothing");
    relay.clone().expect_log("became a dead letter").run_once();
    let verdict = trial.assert_kept();
    assert_eq!((verdict.committed, verdict.delivered), (11, 11));
    assert_eq!(verdict.duplicated, [""; 0]);

    let letters = letters(stage);
    let [key, payload, kind] = letters.as_slice() else { panic!("{} letters", letters.len()) };
    let cut = |letter: &Stored, column: &str, size: usize, quote: &str| {
        let note = note(letter);
        let [cut] = note["cut"].as_array().unwrap().as_slice() else { panic!("{note}") };
        assert_eq!(
            (&cut["column"], &cut["size"]),
            (&column.into(), &(size + 2 * quote.len()).into())
        );
        assert_eq!(cut["sha256"], sha256_of(size, quote));
        assert!(note["row_size"].as_u64().unwrap() > size as u64);
        note
    };
    assert_eq!(cut(key, "aggregate_id", 2 * MIB, "")["size"], 1);
    assert_eq!(
        (key.key.as_deref(), key.header("postrider-topic")),
        (None, Some(&*stage.topic("A")))
    );
    let told = cut(payload, "payload", 20 * MIB, "\"");
    assert_eq!(
        (&told["size"], &told["sha256"]),
        (&told["cut"][0]["size"], &told["cut"][0]["sha256"])
    );
    assert_eq!(payload.key.as_deref(), Some(&b"k"[..]));
    cut(kind, "event_type", 3 * MIB, "");
    assert_eq!((kind.header("postrider-topic"), kind.header("event_type")), (None, None));

    // The next start finds nothing of it again.
    stage.insert("A", 1);
    relay.run_once();
    assert_eq!(trial.assert_kept().delivered, 12);
    assert_eq!(self::letters(stage).len(), 3);
}

/// The most memory that the process had so far.
fn resident_bytes_max(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

/// With default settings, whatever the size: `LARGE_ROW_MIB=900` is what Postgres can just send.
#[test]
fn g3_memory_does_not_grow_with_a_row() {
    let size = std::env::var("LARGE_ROW_MIB").map_or(300, |size| size.parse().unwrap()) * MIB;
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "memory");
    unguard(&stage);
    stage.insert("A", 1);
    let running = stage.relay().expect_log("became a dead letter").run();
    stage.wait_for_records(1);
    let before = resident_bytes_max(running.id());
    insert(&stage, "event_type", size);
    stage.insert("A", 1);
    let begun = Instant::now();
    stage.wait_for_records(3);
    let grown = resident_bytes_max(running.id()) - before;
    eprintln!("{size} bytes in {:?}, {grown} bytes of memory over {before}", begun.elapsed());
    assert!(grown < 16 * MIB, "{grown}");
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let letters = letters(&stage);
    let [letter] = letters.as_slice() else { panic!("{} letters", letters.len()) };
    assert_eq!(note(letter)["cut"][0]["size"], size);
}

/// Ten seconds of a row, before a server that ends a connection after two of silence.
#[test]
fn g3_g8_a_row_may_take_longer_than_the_server_waits_and_a_stop_is_obeyed_meanwhile() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "thin");
    let oracle = stage.oracle();
    unguard(&stage);
    let timeout = format!("ALTER DATABASE {} SET wal_sender_timeout = '2s'", stage.slot());
    stage.sql().run(&timeout);
    let target = stage.database.address();
    let proxy = Proxy::postgres(&target, Box::new(blind));
    proxy.greet(|link| {
        if link.kind == Kind::Stream {
            link.inject(Way::ToClient, Fault::Throttle { bytes_per_s: 1_000_000 });
        }
    });
    let url = format!("{}?sslmode=disable", proxy.address(&target).url());
    let relay = stage.relay().set("source.url", &url).set("source.frame_max", "1MiB");
    // Other tests write to the same log: a backlog of it would be read over a connection that is not slow.
    let relay = relay.set("source.catch_up", "false").set("http.bind", "127.0.0.1:0");
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 5);
    stage.wait_for_records(5);
    insert(&stage, "payload", 10 * MIB);
    let received = || face.metric("postrider_received_bytes_total").unwrap_or_default();
    let passing = || received() > 4_000_000.0;
    support::wait_for("four seconds of the row", || passing().then_some(()));
    let asked = Instant::now();
    running.stop();
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    assert_eq!(letters(&stage).len(), 0, "it was still passing");
    stage.insert("A", 5);
    let running = relay.expect_log("became a dead letter").run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &[]);
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 11);
}

/// Logical messages have no table that could keep them out.
#[test]
fn g4_logical_messages_too_large_to_be_held_are_rows_or_nothing_like_small_ones() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::empty(cluster, &broker.bootstrap(), "messages");
        let relay = stage.relay().set("source.tables", "").set("messages.prefixes", "outbox*");
        let relay = relay.set("source.frame_max", "1MiB").creates_slot();
        relay.run_once();
        let sql = stage.sql();
        let emit = |transactional: bool, prefix: &str, content: &str| {
            sql.run(&format!(
                "SELECT pg_logical_emit_message({transactional}, {prefix}, {content})"
            ));
        };
        let row = |id: &str, size: usize| {
            format!(
                "'{{\"id\":\"{id}\",\"event_type\":\"A\",\"aggregate_type\":\"t\",\
                 \"aggregate_id\":\"k\",\"payload\":\"' || repeat('y', {size}) || '\"}}'"
            )
        };
        for transactional in [true, false] {
            emit(transactional, "'outbox'", &row("small", 1));
            emit(transactional, "'outbox'", &row("large", 3 * MIB));
            emit(transactional, "'other'", &row("other", 3 * MIB));
            emit(transactional, "'outbox' || repeat('p', 3000000)", &row("named", 1));
            emit(transactional, "repeat('p', 3000000)", &row("foreign", 1));
        }
        relay.expect_log("became a dead letter").run_once();
        assert!(stage.acknowledged() > 0);
        let letters = letters(&stage);
        let ids: Vec<_> = letters.iter().map(|letter| letter.header("id")).collect();
        assert_eq!(ids, [Some("large"), Some("named"), Some("large"), Some("named")]);
        assert_eq!(stage.records().len(), 6);
    }
}

/// A row that cannot be held is shown by a dry run like every other, and is still there afterwards.
#[test]
fn a_dry_run_shows_the_dead_letter_of_a_row_too_large_to_be_held() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "dry");
    unguard(&stage);
    insert(&stage, "aggregate_id", 2 * MIB);
    let relay = stage.relay().set("source.frame_max", "1MiB");
    let running = relay.start(&["run", "--dry-run", "--once"]);
    let (status, printed) = running.wait_printed();
    assert!(status.success(), "{status}");
    let record: Value = serde_json::from_str(&printed[0]).unwrap();
    assert_eq!(record["topic"], stage.topic("dead-letters"));
    let told: Value = serde_json::from_str(record["value"].as_str().unwrap()).unwrap();
    assert_eq!(told["cut"][0]["column"], "aggregate_id");
    relay.expect_log("became a dead letter").run_once();
    assert_eq!(letters(&stage).len(), 1);
}

/// What `pg_column_size` let pass: text of 20 MiB that takes some kilobytes where it lies.
#[test]
fn the_table_that_the_migration_makes_refuses_a_row_by_what_is_sent_of_it() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::new(cluster, &broker.bootstrap(), "guarded");
        let sql = stage.sql();
        let refused = |statement: &str| {
            let error = sql.try_run(statement).unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION), "{error}");
        };
        let write = |column: &str, size: usize| {
            let value = |name: &str| if name == column { size } else { 1 };
            format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES \
                 (repeat('x', {}), repeat('x', {}), repeat('x', {}), to_jsonb(repeat('x', {})))",
                value("aggregate_type"),
                value("aggregate_id"),
                value("event_type"),
                value("payload")
            )
        };
        for column in ["aggregate_type", "aggregate_id", "event_type", "payload"] {
            refused(&write(column, 17 * MIB));
        }
        sql.run(&format!("CREATE TABLE source AS SELECT to_jsonb(repeat('x', {})) AS j", 20 * MIB));
        refused(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', 'k', 'A', j FROM source",
        );
        sql.run(&write("payload", 15 * MIB));
        // An outbox of an earlier version gets the same, once; its rows are not looked at.
        sql.run(
            "ALTER TABLE outbox DROP CONSTRAINT outbox_row_size, \
             ADD CONSTRAINT outbox_payload_check CHECK (pg_column_size(payload) <= 16777216)",
        );
        sql.run(&write("aggregate_id", 17 * MIB));
        for _ in 0..2 {
            sql.run(include_str!("../../../migrations/0005_outbox_row_size.sql"));
        }
        let checks = "SELECT string_agg(conname || convalidated, ' ') FROM pg_constraint \
                      WHERE conrelid = 'outbox'::regclass AND contype = 'c'";
        assert_eq!(sql.value(checks), "outbox_row_sizefalse");
        refused(&write("aggregate_id", 17 * MIB));
    }
}
