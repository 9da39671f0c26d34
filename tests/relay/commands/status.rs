//! `postrider status`, `lag` and `peek`: what they say is what the servers know, and nothing moves.

use postrider::sandbox::port;
use serde_json::Value;

use super::terminal::Terminal;
use crate::stage::Stage;
use support::broker::Broker;
use support::relay::{Outcome, Relay};
use support::wait::wait_until;
use support::{postgres, wait_for};

/// The object that it printed, and how it ended.
fn ask(relay: &Relay, arguments: &[&str]) -> (Value, Option<i32>) {
    let arguments = [arguments, &["--output", "json"]].concat();
    let Outcome { status, stdout, log } = relay.start(&arguments).outcome();
    let value = serde_json::from_str(&stdout);
    (value.unwrap_or_else(|_| panic!("{stdout}{}", log.join("\n"))), status.code())
}

fn text(relay: &Relay, arguments: &[&str]) -> (String, Option<i32>) {
    let Outcome { status, stdout, log } = relay.start(arguments).outcome();
    (stdout + &log.join("\n"), status.code())
}

/// A relay whose metrics have a port that others know.
fn with_port(stage: &Stage) -> Relay {
    stage.relay().set("http.bind", &format!("127.0.0.1:{}", port::free().unwrap()))
}

#[test]
fn one_screen_tells_what_runs_and_what_does_not() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "status");
    let relay = with_port(&stage);
    let (idle, exit) = ask(&relay, &["status"]);
    assert_eq!((idle["ok"].as_bool(), exit), (Some(false), Some(1)), "nobody reads the slot");
    assert!(idle["relay"]["error"].as_str().unwrap().starts_with("no relay answers"), "{idle}");
    let mut running = relay.run();
    running.wait_for_log("streaming");
    stage.insert("A", 20);
    stage.wait_acknowledged(stage.log_end());
    // What a relay tells of itself it notes a few times a second.
    let busy = wait_for("the relay to be ready, and to say what it has confirmed", || {
        let (busy, _) = ask(&relay, &["status"]);
        let relay = &busy["relay"];
        (relay["ready"] == true && relay["confirmed"].as_f64() == Some(20.0)).then_some(busy)
    });
    assert_eq!(
        busy["slot"]["active_pid"].as_i64().unwrap().to_string(),
        stage.slot_value("active_pid")
    );
    assert_eq!(busy["kafka"]["brokers"], 1);
    let (shown, exit) = text(&relay, &["status"]);
    assert_eq!(exit, Some(0), "{shown}");
    for part in ["ready, streaming", "20 records confirmed", "1 broker answers", "not acknowledged"]
    {
        assert!(shown.contains(part), "`{part}` is not in {shown}");
    }
    running.stop();
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot()));
    let (gone, exit) = ask(&relay, &["status"]);
    assert_eq!((gone["ok"].as_bool(), exit), (Some(false), Some(1)), "{gone}");
    stage.create_slot();
    let silent = relay.set("kafka.brokers", "127.0.0.1:1");
    let (silent, exit) = ask(&silent, &["status"]);
    assert_eq!(exit, Some(1));
    assert!(
        silent["kafka"]["error"].is_string() && silent["slot"]["lag_bytes"].is_u64(),
        "{silent}"
    );
}

#[test]
fn lag_ends_with_one_above_its_limit() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "lag");
    stage.insert("A", 1_000);
    let relay = with_port(&stage);
    let (lag, exit) = ask(&relay, &["lag", "--max", "1KiB"]);
    assert_eq!((lag["ok"].as_bool(), exit), (Some(false), Some(1)), "{lag}");
    assert!(lag["lag_bytes"].as_u64().unwrap() > 1_024);
    assert_eq!(ask(&relay, &["lag", "--max", "100GiB"]).1, Some(0));
    assert_eq!(ask(&relay, &["lag", "--max-age", "1h"]).1, Some(1), "nobody knows the age");
    let mut running = relay.run();
    running.wait_for_log("streaming");
    stage.wait_acknowledged(stage.log_end());
    wait_for("no row to wait", || {
        let (lag, exit) = ask(&relay, &["lag", "--max-age", "1h"]);
        assert!(exit == Some(0) || lag["oldest_unacknowledged_seconds"].is_null(), "{lag}");
        (exit == Some(0)).then_some(())
    });
    let (shown, _) = text(&relay, &["lag"]);
    assert!(shown.contains("not acknowledged, the oldest "), "{shown}");
    running.stop();
    let other = relay.set("source.slot", "no_such_slot");
    let (told, exit) = text(&other, &["lag"]);
    assert_eq!(exit, Some(78), "{told}");
}

#[test]
fn peek_prints_what_waits_and_moves_nothing() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "peek");
    for topic in ["A", "B", "not a topic"] {
        stage.insert(topic, 3);
    }
    // The first decoding of a new slot lets Postgres find out that log of before its confirmed position is not needed.
    let confirmed = stage.slot_value("confirmed_flush_lsn");
    text(&stage.relay(), &["peek"]);
    assert_eq!(stage.slot_value("confirmed_flush_lsn"), confirmed);
    let positions = || {
        stage.sql().run("CHECKPOINT");
        ["confirmed_flush_lsn", "restart_lsn", "catalog_xmin", "wal_status"]
            .map(|column| stage.slot_value(&format!("{column}::text")))
    };
    let before = positions();
    let (shown, exit) = text(&stage.relay(), &["peek"]);
    assert_eq!(exit, Some(0), "{shown}");
    let lines: Vec<Value> =
        shown.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let topics: Vec<_> = lines.iter().filter_map(|line| line["topic"].as_str()).collect();
    assert_eq!(topics, ["A", "A", "A", "B", "B", "B"].map(|name| stage.topic(name)));
    assert_eq!(lines.iter().filter(|line| line["rejected"] == true).count(), 3, "{shown}");
    let (few, _) = text(&stage.relay(), &["peek", "--limit", "2"]);
    assert_eq!(few.lines().filter(|line| line.starts_with("{\"topic\"")).count(), 2, "{few}");
    assert_eq!(positions(), before);
    stage.relay().allow_log("a row became a dead letter").start(&["run", "--once"]).outcome();
    let (nothing, exit) = text(&stage.relay(), &["peek"]);
    assert!(!nothing.contains("\"topic\"") && exit == Some(0), "{nothing}");
    // What was peeked at was delivered once.
    assert_eq!(stage.records().len(), 9);
}

#[test]
fn peek_draws_rows_on_a_terminal_as_tail_draws_records() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "peek_draws");
    stage.insert("A", 1);
    stage.insert("not a topic", 1);
    let terminal = Terminal::of(&mut stage.relay().command(&["peek"]));
    let text = wait_for("a rejected row", || {
        let text = terminal.text();
        text.contains("✗ rejected  ").then_some(text)
    });
    assert!(text.contains(&format!("Z  {}", stage.topic("A"))), "{text}");
    assert!(!text.contains("\"topic\""), "{text}");
}

/// A relay that cannot deliver is when somebody wants to know what waits.
#[test]
fn peek_shows_what_waits_while_a_relay_streams() {
    let stage = Stage::new(postgres::installed(), "127.0.0.1:1", "peek_beside");
    let mut running = stage.relay().allow_log("Kafka").run();
    running.wait_for_log("\"streaming\"");
    stage.insert("A", 3);
    for _ in 0..2 {
        let (shown, exit) = text(&stage.relay(), &["peek"]);
        let rows = shown.lines().filter(|line| line.starts_with("{\"topic\"")).count();
        assert!(rows == 3 && exit == Some(0), "{shown}");
    }
    let copies = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'postrider_peek%' \
                  AND database = current_database()";
    wait_until("the copies to be gone", || stage.sql().value(copies) == "0");
    assert!(!running.has_ended());
    running.kill_quietly();
}

/// The slot has what other tables of the publication wrote, too: before the rows, and more of it than is asked for.
#[test]
fn peek_reaches_the_rows_behind_what_is_none() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "peek_others");
    stage.sql().run("CREATE TABLE other (n int)");
    stage.sql().run("ALTER PUBLICATION postrider ADD TABLE other");
    stage.create_slot();
    for _ in 0..30 {
        stage.sql().run("INSERT INTO other SELECT generate_series(1, 20)");
    }
    stage.insert("A", 3);
    let relay = stage.relay().allow_log("does not name");
    let (few, exit) = text(&relay, &["peek", "--limit", "1"]);
    assert_eq!(few.lines().filter(|line| line.starts_with("{\"topic\"")).count(), 1, "{few}");
    assert!(few.contains("1 row shown, and there may be more") && exit == Some(0), "{few}");
    let (all, _) = text(&relay, &["peek", "--limit", "5"]);
    assert_eq!(all.lines().filter(|line| line.starts_with("{\"topic\"")).count(), 3, "{all}");
    assert!(all.contains("3 rows shown, and no more are committed"), "{all}");
}
