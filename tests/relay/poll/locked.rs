//! Rows that somebody has locked hold back their keys alone, however many they are, and their holder is named.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options};

use super::{Scene, records};
use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::sql::Sql;
use support::topic::{self, Stored};
use support::{kafka, postgres, wait_for};

/// The first rows of tables, and how others lock them.
#[derive(Debug, Clone, Copy)]
struct Case {
    tables: usize,
    locked: usize,
    /// All have one key, and the first one is locked alone.
    is_one_key: bool,
}

/// A server for these tests: no slot of another one is made while a transaction that was begun before is open.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| postgres::start(&Options::default()))
}

/// So many tables, with topics whose records have the time at which they were stored.
fn scene(bootstrap: &str, tables: usize, settings: &[(&str, &str)]) -> (Scene, Vec<String>) {
    let tables: Vec<String> =
        ["outbox", "second", "third"].iter().take(tables).map(|name| (*name).to_owned()).collect();
    let names: Vec<_> = tables.iter().map(|table| format!("public.{table}")).collect();
    let names = names.join(",");
    let stage = Stage::empty(cluster(), bootstrap, "poll_past");
    let stamped = [("message.timestamp.type", "LogAppendTime")];
    for name in ["A", "B", "dead-letters"] {
        topic::create(bootstrap, &stage.topic(name), 1, &stamped);
    }
    let settings = [settings, &[("source.tables", names.as_str())]].concat();
    let scene = Scene::of(stage, &settings);
    let made = scene.owner(&settings).start(&["setup"]).outcome();
    assert!(made.status.success(), "{made:?}");
    for table in &tables {
        scene.grant(table);
    }
    (scene, tables)
}

/// Commits rows of topic `A` in this table. Their values are the time.
fn insert(sql: &Sql, table: &str, key: &str, count: usize) {
    sql.run(&format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', {key}, 'A', to_jsonb((extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
         FROM generate_series(1, {count}) AS n"
    ));
}

/// How long a row took to its broker.
fn latency_ms(record: &Stored) -> i64 {
    let value = String::from_utf8(record.value.clone().unwrap()).unwrap();
    record.timestamp_ms.unwrap() - value.trim().parse::<i64>().unwrap()
}

fn of_others(scene: &Scene) -> Vec<Stored> {
    let mut records = records(&scene.stage);
    records.retain(|record| record.key.as_ref().is_some_and(|key| key.starts_with(b"free")));
    records
}

/// The 99th percentile of the latency of rows of other keys that are committed for some seconds, while the relay that has just
/// been started has rows before them that are locked.
fn p99_ms(bootstrap: &str, case: Case, lasting: Duration) -> i64 {
    let Case { tables, locked, is_one_key } = case;
    let (scene, tables) = scene(bootstrap, tables, &[]);
    let (sql, holder) = (scene.stage.sql(), scene.stage.sql());
    for table in &tables {
        insert(&sql, table, if is_one_key { "'held'" } else { "'held' || n" }, locked);
    }
    holder.run("BEGIN");
    let limit = if is_one_key { "LIMIT 1" } else { "" };
    for table in &tables {
        holder.run(&format!(
            "SELECT count(*) FROM (SELECT FROM {table} ORDER BY sequence {limit} FOR UPDATE) AS held"
        ));
    }
    let running = scene.relay.clone().allow_log("row lock").run();
    let mut committed = 0;
    let begun = Instant::now();
    while begun.elapsed() < lasting {
        for table in &tables {
            insert(&sql, table, "'free' || n % 7", 5);
            committed += 5;
        }
        support::wait::let_pass(Duration::from_millis(50), "rows come one after the other");
    }
    wait_for("rows of other keys", || (of_others(&scene).len() >= committed).then_some(()));
    let others = of_others(&scene);
    assert_eq!(others.len(), committed, "none is repeated");
    assert_eq!(records(&scene.stage).len(), committed, "what is locked waits");
    let mut latencies: Vec<_> = others.iter().map(latency_ms).collect();
    latencies.sort_unstable();
    holder.run("COMMIT");
    wait_for("the others", || {
        (records(&scene.stage).len() == committed + locked * tables.len()).then_some(())
    });
    running.stop();
    let at = latencies.len() * 99 / 100;
    let (median, p99) = (latencies[latencies.len() / 2], latencies[at]);
    eprintln!("{case:?}: rows {committed}, p50 {median} ms, p99 {p99} ms");
    p99
}

/// `LOCKED_ROWS` rows at most, in every combination; `make nightly` asks for 70,000. Otherwise the three that differ most.
#[test]
fn g2_rows_of_other_keys_pass_locked_rows_within_seconds() {
    let Some(kafka) = kafka::shared() else { return };
    let asked: Option<usize> = std::env::var("LOCKED_ROWS").ok().map(|rows| rows.parse().unwrap());
    let most = asked.unwrap_or(3_000);
    let (tables, lasting, limit): (&[usize], _, _) = match asked {
        Some(_) => (&[1, 3], Duration::from_secs(8), 2_000),
        // Whatever else runs on the machine.
        None => (&[3], Duration::from_secs(3), 20_000),
    };
    let rows = [(1, false), (most, false), (most, true)];
    let further = asked.map(|_| (1_000, false));
    for (locked, is_one_key) in rows.into_iter().chain(further) {
        for &tables in tables {
            let case = Case { tables, locked, is_one_key };
            let p99 = p99_ms(&kafka.bootstrap(), case, lasting);
            assert!(p99 < limit, "{case:?}: {p99} ms");
        }
    }
}

#[test]
fn a_run_once_delivers_all_free_rows_of_all_tables() {
    let Some(kafka) = kafka::shared() else { return };
    let (scene, _) = scene(&kafka.bootstrap(), 2, &[("source.poll.batch", "4")]);
    let (sql, holder) = (scene.stage.sql(), scene.stage.sql());
    insert(&sql, "second", "'held'", 20);
    insert(&sql, "second", "'free'", 10);
    holder.run("BEGIN; SELECT FROM second ORDER BY sequence LIMIT 1 FOR UPDATE");
    let mut running = scene.relay.start(&["run", "--once"]);
    wait_for("free rows", || (of_others(&scene).len() == 10).then_some(()));
    // It looks at the same rows all the time, and delivers none.
    let other = scene.relay.clone().run();
    support::wait::stays("a row waits", Duration::from_secs(2), || !running.has_ended());
    other.stop();
    holder.run("COMMIT");
    assert!(running.wait().success());
    assert_eq!(records(&scene.stage).len(), 30);
}

#[test]
fn g2_no_row_passes_a_locked_row_of_its_key() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.batch", "3"), ("source.poll.interval", "50ms")];
    let (scene, _) = scene(&kafka.bootstrap(), 1, &settings);
    super::insert(&scene.stage, 0..200);
    let (first, second) = (scene.stage.sql(), scene.stage.sql());
    // Rows of two keys in their middle; two sessions share the one, whose row does not carry the number of either.
    first.run("BEGIN; SELECT FROM outbox WHERE payload IN ('53', '104') FOR KEY SHARE");
    second.run("BEGIN; SELECT FROM outbox WHERE payload = '53' FOR KEY SHARE");
    let running = scene.relay.clone().run();
    scene.wait_pending("processed_at IS NULL", 15 + 10);
    let by_key = super::numbers_by_key(&records(&scene.stage));
    assert_eq!(by_key["3"], [3, 13, 23, 33, 43], "what is before the locked row is delivered");
    assert_eq!(by_key["4"], (0..10).map(|n| n * 10 + 4).collect::<Vec<_>>());
    // Each of them is changed while polls look at it.
    second.run("COMMIT");
    first.run("UPDATE outbox SET event_type = 'B' WHERE payload = '53'; COMMIT");
    scene.wait_pending("processed_at IS NULL", 0);
    let by_key = super::numbers_by_key(&records(&scene.stage));
    assert_eq!(by_key["4"], (0..20).map(|n| n * 10 + 4).collect::<Vec<_>>());
    assert_eq!(records(&scene.stage).len(), 200);
    running.stop();
}

/// Brokers know keys by their bytes, whatever a column's collation says.
#[test]
fn g2_keys_that_a_collation_holds_equal_are_two() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.batch", "3"), ("source.poll.interval", "50ms")];
    let (scene, _) = scene(&kafka.bootstrap(), 1, &settings);
    let (sql, holder) = (scene.stage.sql(), scene.stage.sql());
    sql.run(
        "CREATE COLLATION whatever_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         ALTER TABLE outbox ALTER aggregate_id TYPE text COLLATE whatever_case",
    );
    assert_eq!(sql.value("SELECT 'a' = 'A' COLLATE whatever_case"), "t");
    insert(&sql, "outbox", "CASE n % 2 WHEN 1 THEN 'a' ELSE 'A' END", 20);
    holder.run("BEGIN; SELECT FROM outbox ORDER BY sequence LIMIT 1 FOR UPDATE");
    let running = scene.relay.clone().run();
    scene.wait_pending("processed_at IS NULL", 10);
    let keys: Vec<_> = records(&scene.stage).into_iter().map(|record| record.key).collect();
    assert_eq!(keys, vec![Some(b"A".to_vec()); 10]);
    holder.run("COMMIT");
    scene.wait_pending("processed_at IS NULL", 0);
    running.stop();
}

#[test]
fn whoever_locks_rows_for_long_is_named_by_readiness_and_log() {
    let Some(kafka) = kafka::shared() else { return };
    let (scene, _) = scene(&kafka.bootstrap(), 1, &[]);
    super::insert(&scene.stage, 0..20);
    let holder = scene.stage.sql();
    holder.run("SET application_name = 'forgotten'; BEGIN");
    holder.run("SELECT FROM outbox WHERE payload = '3' FOR UPDATE");
    let pid = holder.value("SELECT pg_backend_pid()");
    let prepared = scene.stage.sql();
    let gid = format!("{}_gid", scene.stage.database.name());
    prepared.run("BEGIN; SELECT FROM outbox WHERE payload = '4' FOR UPDATE");
    prepared.run(&format!("PREPARE TRANSACTION '{gid}'"));
    let mut running = scene.relay.clone().allow_log("row lock").run();
    let face = RelayHttp::of(&mut running);
    // The role may not see since when the other one has its lock.
    let told = running.wait_for_log("prepared transaction");
    let help = format!(
        "to keep what it wrote: COMMIT PREPARED '{gid}'; to discard it: ROLLBACK PREPARED '{gid}';"
    );
    assert!(told.contains(&help), "{told}");
    prepared.run(&format!("ROLLBACK PREPARED '{gid}'"));
    let told = running.wait_for_log("process");
    let named = format!("process {pid}, application forgotten, role ");
    assert!(told.contains(&named), "{told}");
    assert!(told.contains(&format!("SELECT pg_terminate_backend({pid});")), "{told}");
    let health = face.wait_ready(503);
    let checks = health["checks"].as_array().unwrap();
    let slot = checks.iter().find(|check| check["name"] == "slot").unwrap();
    let detail = slot["detail"].as_str().unwrap();
    assert!(detail.contains(&named) && detail.contains("rows of table public.outbox"), "{detail}");
    assert!(!running.has_logged("caught up"), "a row waits");
    holder.run("ROLLBACK");
    running.wait_for_log("no rows wait for locks");
    running.wait_for_log("caught up");
    face.wait_ready(200);
    running.stop();
}
