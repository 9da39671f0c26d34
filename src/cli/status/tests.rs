//! Output of `postrider status` in terminals of several widths.

use super::gather::{Place, Source, Status};
use super::relay::{RelayFacts, RelayStatus, Silence};
use super::{SHORTEST_PAUSE, parse_pause};
use crate::marks::{WIDTHS, assert_snapshot};
use postrider_core::lsn::Lsn;
use postrider_postgres::control::{ServerFacts, SlotFacts, SlotSample};
use std::time::Duration;

fn source(wal_status: &str, active_pid: Option<i32>) -> Source {
    let at = Lsn::new(0x0123_4567_89AB);
    let server = ServerFacts {
        version_num: 180_001,
        encoding: "UTF8".to_owned(),
        wal_level: "logical".to_owned(),
        wal_sender_timeout: Duration::from_mins(1),
        in_recovery: false,
        database: "shop".to_owned(),
        role: "relay".to_owned(),
        may_replicate: true,
        system: None,
    };
    let slot = SlotFacts {
        plugin: Some("pgoutput".to_owned()),
        database: Some("shop".to_owned()),
        active_pid,
        holder: active_pid.map(|_| "postrider 0.1.0 at 10.0.0.17".to_owned()).unwrap_or_default(),
        confirmed_flush: Some(at),
        restart: Some(at),
        wal_status: Some(wal_status.to_owned()),
        invalidation: None,
        synced: false,
        two_phase: false,
        waits_for: None,
    };
    let sample = SlotSample {
        current: Lsn::new(at.get() + 18_432),
        confirmed_flush: at,
        restart: Some(at),
        wal_status: wal_status.to_owned(),
        safe_wal_bytes: Some(1 << 30),
        active_pid,
        server_started_us: 0,
        server_recovered_us: 0,
        next_xid: 7,
        server_now_us: 0,
    };
    Source { server, slot: Some((slot, Some(sample))) }
}

fn streaming() -> Status {
    Status {
        server: "`shop` on orders-primary-01.databases.eu-central-1.internal.example.com:5432 as `relay`"
            .to_owned(),
        slot: Some("postrider_orders".to_owned()),
        postgres: Ok(source("reserved", Some(4711))),
        relay: Ok(RelayFacts {
            is_ready: true,
            state: "streaming".to_owned(),
            failing: Vec::new(),
            paused: None,
            confirmed: 98_765_432_100,
            oldest_seconds: Some(0.2),
            uptime_seconds: 90_000.0,
            reads_slot: true,
            status: None,
        }),
        brokers: Ok(3),
        kafka_brokers: vec!["kafka-1:9092".to_owned(), "kafka-2:9092".to_owned()],
        progress: Some(Ok(Some(Place { end: Lsn::new(0x0123_4567_89AB), unfinished: None }))),
        dead_letters: Ok(Some(0)),
        dead_letter_topic: "orders.postrider.dead-letters".to_owned(),
    }
}

fn broken() -> Status {
    Status {
        postgres: Ok(source("unreserved", None)),
        relay: Err(Silence::None(
            "no relay answers at 127.0.0.1:8484: Connection refused".to_owned(),
        )),
        brokers: Err("no broker answers: 10.0.0.21:9092 refuses connections (PR-K001)".to_owned()),
        progress: Some(Err("not asked".to_owned())),
        dead_letters: Ok(Some(1_234)),
        ..streaming()
    }
}

#[test]
fn each_part_has_a_mark_and_fits_the_terminal() {
    for (name, status) in [("streaming", streaming()), ("broken", broken())] {
        for width in WIDTHS {
            let shown = status.to_text(Some(width.into()), false);
            assert!(shown.lines().all(|line| line.chars().count() <= width.into()), "{shown}");
            assert_snapshot(&format!("status/snapshots/{name}-{width}.txt"), &shown);
        }
    }
}

fn not_ready(status: Option<RelayStatus>) -> Status {
    let mut shown = streaming();
    let relay = shown.relay.as_mut().unwrap();
    relay.is_ready = false;
    relay.failing =
        vec!["nothing was confirmed; kafka-topics.sh --bootstrap-server BROKER".to_owned()];
    relay.status = status;
    shown
}

#[test]
fn a_relay_that_is_not_ready_says_why_once_and_what_to_run() {
    let status = serde_json::json!({"level": "failed", "headline": "Rows wait for topic `a`",
        "cause": "Topic `a` does not exist.", "help": "Create it", "command": "postrider setup --topics=a"});
    let shown = not_ready(Some(serde_json::from_value(status).unwrap()));
    let shown = shown.to_text(Some(80), false);
    let words = "Rows wait for topic `a`.\n                Topic `a` does not exist.\n                \
                 Create it\n                Run: postrider setup --topics=a\n";
    assert!(shown.contains(words) && !shown.contains("nothing was confirmed"), "{shown}");
}

#[test]
fn a_relay_without_a_dashboard_names_its_checks_and_the_brokers() {
    let shown = not_ready(None).to_text(None, false);
    let words =
        "; nothing was confirmed; kafka-topics.sh --bootstrap-server kafka-1:9092,kafka-2:9092\n";
    assert!(shown.contains(words), "{shown}");
}

#[test]
fn colours_repeat_what_the_marks_say() {
    let (plain, colored) = (broken().to_text(None, false), broken().to_text(None, true));
    let mut stripped = colored.clone();
    for code in ["\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"] {
        assert!(colored.contains(code), "{colored:?}");
        stripped = stripped.replace(code, "");
    }
    assert_eq!(stripped, plain);
}

#[test]
fn no_digit_is_cut_between_50_and_200_columns() {
    for width in 50..=200 {
        let shown = streaming().to_text(Some(width), false);
        for number in ["98765432100", "123/456789AB", "18 KiB", "18.1", ":5432", "10.0.0.17"] {
            assert!(shown.contains(number), "{number} in {width} columns:\n{shown}");
        }
    }
}

#[test]
fn servers_are_not_asked_without_a_pause() {
    assert!(parse_pause("0s").is_err());
    assert!(parse_pause("99ms").is_err());
    assert_eq!(parse_pause("100ms"), Ok(SHORTEST_PAUSE));
}
