//! Logical messages as rows: written by `pg_logical_emit_message`, with a table beside them or none.

use rustix::process::Signal;
use serde_json::json;

use std::time::Duration;

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::sql::Sql;
use support::topic::Stored;
use support::wait::let_pass;

/// A relay that knows no table.
fn tableless(stage: &Stage, prefixes: &str) -> Relay {
    let relay = stage.relay().creates_slot();
    relay.set("source.tables", "").set("messages.prefixes", prefixes)
}

/// A statement that writes a message; its `n` is its id, its key is always `k`.
fn emit(transactional: bool, prefix: &str, n: u32) -> String {
    let content = json!({
        "id": n.to_string(), "event_type": "A", "aggregate_type": "t", "aggregate_id": "k",
        "payload": {"n": n},
    });
    raw(transactional, prefix, &content.to_string())
}

fn raw(transactional: bool, prefix: &str, content: &str) -> String {
    format!("SELECT pg_logical_emit_message({transactional}, '{prefix}', '{content}')")
}

/// Where a message ends.
fn emit_now(sql: &Sql, n: u32) -> u64 {
    let position = sql.value(&emit(false, "outbox", n));
    sql.value(&format!("SELECT pg_lsn '{position}' - '0/0'")).parse().unwrap()
}

/// Ids in the order of the topic, which is that of their one key; positions must rise with them.
fn ids(stage: &Stage, topic: &str) -> Vec<u32> {
    let records = of_topic(stage, topic);
    let positions: Vec<&str> =
        records.iter().map(|record| record.header("postrider-lsn").unwrap()).collect();
    assert!(positions.is_sorted_by(|one, next| one < next), "{positions:?}");
    records.iter().map(|record| record.header("id").unwrap().parse().unwrap()).collect()
}

fn of_topic(stage: &Stage, topic: &str) -> Vec<Stored> {
    let mut records = stage.records();
    records.retain(|record| record.topic == stage.topic(topic));
    records.sort_by_key(|record| record.offset);
    records
}

#[test]
fn messages_need_no_table() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::empty(cluster, &broker.bootstrap(), "tableless");
        let relay = tableless(&stage, "outbox,shop.*");
        relay.run_once();
        let sql = stage.sql();
        assert_eq!(sql.value("SELECT count(*) FROM pg_publication_tables"), "0");
        assert_eq!(sql.value("SELECT count(*) FROM pg_publication"), "1");

        sql.run(&emit(true, "outbox", 1));
        sql.run(&emit(true, "shop.orders", 2));
        sql.run(&emit(false, "shop.", 3));
        for other in ["shop", "outbox2", "Outbox", "", "postrider"] {
            sql.run(&emit(true, other, 98));
            sql.run(&emit(false, other, 99));
        }
        sql.run(&format!("BEGIN; {}; ROLLBACK", emit(true, "outbox", 97)));
        sql.run(&format!("BEGIN; {}; ROLLBACK", emit(false, "outbox", 4)));
        let end = stage.log_end();
        relay.run_once();
        assert!(stage.acknowledged() >= end);
        assert_eq!(ids(&stage, "A"), [1, 2, 3, 4]);
        let record = &of_topic(&stage, "A")[0];
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(record.value.as_deref(), Some(&br#"{"n":1}"#[..]));
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "event_type", "aggregate_type", "postrider-lsn"]);
        relay.run_once();
        assert_eq!(stage.records().len(), 4);
    }
}

#[test]
fn positions_rise_across_messages_and_rows() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::new(cluster, &broker.bootstrap(), "mixed");
        let relay = stage.relay().set("messages.prefixes", "outbox");
        let sql = stage.sql();
        sql.run("ALTER TABLE outbox ALTER id TYPE text");
        let row = |n: u32| {
            format!(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ({n}, 't', 'k', 'A', '{{}}')"
            )
        };
        sql.run(&emit(false, "outbox", 1));
        sql.run(&format!(
            "BEGIN; {}; {}; {}; {}; COMMIT",
            row(3),
            emit(true, "outbox", 4),
            row(5),
            // Outside of the transaction, so before its commit.
            emit(false, "outbox", 2),
        ));
        sql.run(&row(6));
        sql.run(&format!("BEGIN; {}; {}; ROLLBACK", row(97), emit(true, "outbox", 98)));
        sql.run(&emit(false, "outbox", 7));
        sql.run(&emit(false, "outbox", 8));
        sql.run(&emit(true, "outbox", 9));
        sql.run(&format!(
            "BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s; {}; COMMIT",
            emit(true, "outbox", 10),
            emit(true, "outbox", 99),
            row(11),
        ));
        relay.run_once();
        assert_eq!(ids(&stage, "A"), (1..=11).collect::<Vec<_>>());
        let positions: Vec<String> = of_topic(&stage, "A")
            .iter()
            .map(|record| record.header("postrider-lsn").unwrap().to_owned())
            .collect();
        let commits: Vec<&str> = positions.iter().map(|it| it.split('.').next().unwrap()).collect();
        // One transaction is one position with numbered rows.
        assert!(commits[2] == commits[3] && commits[3] == commits[4], "{positions:?}");
        assert!(commits[1] != commits[2] && commits[4] != commits[5], "{positions:?}");
    }
}

#[test]
fn g4_content_that_is_no_row_becomes_a_dead_letter() {
    let broker = Broker::embedded();
    let stage = Stage::empty(postgres::installed(), &broker.bootstrap(), "content");
    let relay = tableless(&stage, "outbox");
    relay.run_once();
    let sql = stage.sql();
    let lacks_id = r#"{"event_type": "A", "aggregate_id": "k", "payload": {"n": 1.50}}"#;
    let null_id = r#"{"id": null, "event_type": "A", "aggregate_id": "k", "payload": "x"}"#;
    let all = [
        ("not JSON", "invalid_value", "not JSON"),
        (r#"["an", "array"]"#, "invalid_value", r#"["an", "array"]"#),
        ("5", "invalid_value", "5"),
        ("", "invalid_value", ""),
        ("{}", "missing_column", ""),
        (lacks_id, "missing_column", r#"{"n":1.50}"#),
        (null_id, "missing_value", "x"),
    ];
    for (content, ..) in all {
        sql.run(&raw(true, "outbox", content));
        sql.run(&raw(false, "outbox", content));
    }
    sql.run("SELECT pg_logical_emit_message(true, 'outbox', '\\xff00'::bytea)");
    sql.run(&emit(true, "outbox", 1));
    relay.expect_log("became a dead letter").run_once();
    assert_eq!(ids(&stage, "A"), [1]);
    let mut letters = of_topic(&stage, "dead-letters");
    letters.sort_by_key(|letter| letter.header("postrider-lsn").unwrap().to_owned());
    let described: Vec<(&str, &[u8])> = letters
        .iter()
        .map(|letter| {
            assert_eq!(letter.header("postrider-table"), Some("message.outbox"));
            let code = letter.header("postrider-error-code").unwrap();
            (code, letter.value.as_deref().unwrap_or_default())
        })
        .collect();
    let mut wanted: Vec<(&str, &[u8])> = Vec::new();
    for (_, code, value) in all {
        wanted.extend([(code, value.as_bytes()); 2]);
    }
    wanted.push(("invalid_value", b"\xff\x00"));
    assert_eq!(described, wanted);
}

#[test]
fn g1_a_clean_stop_between_messages_loses_and_repeats_nothing() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::empty(cluster, &broker.bootstrap(), "pause");
        let relay = tableless(&stage, "outbox");
        let sql = stage.sql();
        let mut running = relay.run();
        running.wait_for_log("caught up");
        let mut next = 1..;
        let mut last = 0;
        for _ in 0..3 {
            for n in next.by_ref().take(20) {
                last = emit_now(&sql, n);
            }
            stage.wait_acknowledged(last);
            // Some more that it may or may not have read when it is told to stop.
            for n in next.by_ref().take(20) {
                last = emit_now(&sql, n);
            }
            running.stop();
            for n in next.by_ref().take(5) {
                last = emit_now(&sql, n);
            }
            running = relay.run();
            running.wait_for_log("streaming");
        }
        stage.wait_acknowledged(last);
        running.stop();
        assert_eq!(ids(&stage, "A"), (1..=135).collect::<Vec<_>>());
        assert!(stage.acknowledged() >= last);
    }
}

#[test]
fn g1_a_kill_between_messages_loses_nothing() {
    let broker = Broker::embedded();
    let stage = Stage::empty(postgres::installed(), &broker.bootstrap(), "killed");
    let relay = tableless(&stage, "*").set("source.status_interval", "20s");
    relay.run_once();
    let sql = stage.sql();
    let mut next = 1..;
    for round in 1..=4 {
        let running = relay.run();
        for n in next.by_ref().take(40 * round) {
            sql.run(&emit(n % 3 != 0, "any", n));
        }
        running.kill();
        sql.run(&emit(false, "any", next.next().unwrap()));
    }
    relay.run_once();
    let mut first = Vec::new();
    for record in of_topic(&stage, "A") {
        let id: u32 = record.header("id").unwrap().parse().unwrap();
        if !first.contains(&id) {
            first.push(id);
        }
    }
    assert_eq!(first, (1..next.next().unwrap()).collect::<Vec<_>>());
}

/// A relay writes a message of its own where `run --once` is to end; it is no row, not even for one
/// that takes all prefixes, and ends no other relay's stream.
#[test]
fn the_relays_own_marker_is_never_a_row() {
    let broker = Broker::embedded();
    let stage = Stage::empty(postgres::installed(), &broker.bootstrap(), "marker");
    let relay = tableless(&stage, "*");
    relay.run_once();
    let sql = stage.sql();
    sql.run(&emit(true, "postrider", 98));
    sql.run(&emit(false, "postrider", 99));
    sql.run(&emit(false, "postriders", 1));
    relay.run_once();
    assert_eq!(ids(&stage, "A"), [1]);
    assert_eq!(stage.records().len(), 1);
}

/// Long enough for the relay to look whether its source is still the one it began with, which it does
/// every five seconds.
const LOOKED: Duration = Duration::from_secs(6);

#[test]
fn a_relay_without_tables_streams_on() {
    let broker = Broker::embedded();
    let stage = Stage::empty(postgres::installed(), &broker.bootstrap(), "onward");
    let mut running = tableless(&stage, "outbox").run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("caught up");
    let sql = stage.sql();
    emit_now(&sql, 1);
    face.wait_count("postrider_records_confirmed_total", 1);
    let_pass(LOOKED, "the relay looks at its source meanwhile");
    sql.run("CREATE TABLE other (n int); INSERT INTO other VALUES (1)");
    sql.run(&emit(true, "ignored", 99));
    let end = emit_now(&sql, 2);
    face.wait_count("postrider_records_confirmed_total", 2);
    assert_eq!(face.get("/readyz").0, 200);
    stage.wait_acknowledged(end);
    running.signal(Signal::TERM);
    assert!(running.wait().success());
    assert_eq!(ids(&stage, "A"), [1, 2]);
}
