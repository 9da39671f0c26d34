//! What cannot be known is told apart from what is wrong, and what cannot be done is an error with its remedy.

use serde_json::json;

use super::{Verified, found, outcome, verify};
use crate::stage::Stage;
use support::broker::Broker;
use support::{kafka, postgres, topic};

#[test]
fn rows_that_the_slot_has_not_passed_are_pending_and_without_a_slot_they_are_lost() {
    let verified = Verified::new("verify_pending");
    verified.deliver(30);
    verified.insert(20);
    let (status, json) = verified.verify("");
    assert_eq!((status, found(&json)), (0, vec![("pending", 20)]), "{json}");
    let slot = verified.stage.slot();
    verified.stage.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    let (status, json) = verified.verify("");
    assert_eq!(
        (status, found(&json), &json["slot"]),
        (1, vec![("lost", 20)], &json!(false)),
        "{json}"
    );
    let text = verified.outcome("").stdout;
    assert!(text.contains(&format!("slot `{slot}` does not exist or is lost")), "{text}");
    verified.stage.create_slot();
}

#[test]
fn what_arrives_within_the_grace_is_not_pending() {
    let verified = Verified::new("verify_grace");
    verified.deliver(10);
    verified.insert(50);
    let looking = verified.relay.start(&["verify", "--output", "json", "--grace", "3m"]);
    verified.relay.run_once();
    let (status, printed) = looking.wait_printed();
    let json: serde_json::Value = serde_json::from_str(&printed.concat()).unwrap();
    assert_eq!(
        (status.code(), found(&json), &json["records"]),
        (Some(0), vec![], &json!(60)),
        "{json}"
    );
}

#[test]
fn of_a_compacted_topic_it_is_unknown_what_is_lost() {
    let verified = Verified::new("verify_compacted");
    let Broker::Kafka(_) = &verified.broker else { return };
    let bootstrap = verified.stage.bootstrap().to_owned();
    let (a, b) = (verified.stage.topic("copy.A"), verified.stage.topic("copy.B"));
    topic::create(&bootstrap, &a, 4, &[("cleanup.policy", "compact")]);
    topic::create(&bootstrap, &b, 4, &[]);
    verified.deliver(60);
    verified.pass();
    let mut records = verified.records();
    // Of each topic the first and the last one.
    records.retain(|record| record.offset > 0);
    let lost_of = |name| {
        verified
            .records()
            .iter()
            .filter(|record| record.offset == 0 && record.topic.ends_with(name))
            .count() as u64
    };
    let (unknown, lost) = (lost_of(".A"), lost_of(".B"));
    assert!(unknown > 0 && lost > 0);
    let copy = verified.copied(&records);
    let (status, json) = verify(&copy, "");
    assert_eq!((status, found(&json)), (1, vec![("lost", lost), ("unknown", unknown)]), "{json}");
    assert_eq!(json["compacted_topics"], json!([a]));
}

#[test]
fn what_retention_removed_is_unknown_and_not_lost() {
    let verified = Verified::new("verify_retention");
    let Broker::Kafka(_) = &verified.broker else { return };
    verified.deliver(60);
    verified.pass();
    let bootstrap = verified.stage.bootstrap();
    topic::remove_before(bootstrap, &verified.stage.topic("B"), 3);
    let (status, json) = verified.verify("");
    let gone = 60 - json["records"].as_u64().unwrap();
    assert!(gone > 0, "{json}");
    assert_eq!((status, found(&json)), (0, vec![("unknown", gone)]), "{json}");
}

#[test]
fn repeats_of_what_retention_removed_are_not_out_of_order() {
    let verified = Verified::new("verify_removed");
    let Broker::Kafka(_) = &verified.broker else { return };
    verified.stage.sql().run(
        "DO $$ BEGIN FOR n IN 1..4 LOOP \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('t', 'k', 'A'); \
             COMMIT; PERFORM pg_sleep(0.005); \
         END LOOP; END $$",
    );
    verified.relay.run_once();
    verified.pass();
    let records = verified.records();
    // After a crash the first three came again.
    let records = [&records[..3], &records[..]].concat();
    let copy = verified.copied(&records);
    let (status, json) = verify(&copy, "");
    assert_eq!((status, found(&json)), (0, vec![("duplicated", 3)]), "{json}");
    topic::remove_before(verified.stage.bootstrap(), &verified.stage.topic("copy.A"), 2);
    let (status, json) = verify(&copy, "");
    assert_eq!((status, found(&json)), (0, vec![("duplicated", 1)]), "{json}");
    assert_eq!((&json["ordered"], &json["unordered"]), (&json!(2), &json!(0)), "{json}");
}

#[test]
fn the_window_leaves_out_what_is_older_and_younger() {
    let verified = Verified::new("verify_window");
    verified.deliver(40);
    verified.stage.sql().run(
        "UPDATE outbox SET created_at = now() - interval '2 days' WHERE (payload->>'n')::int <= 10",
    );
    verified.pass();
    for (words, rows) in [
        ("--since 1d", 30),
        ("--until 1d", 10),
        ("--since 3d --until 1d", 10),
        ("--since 2000-01-01", 40),
        ("--since 2000-01-01T00:00:00Z --until 2000-01-02", 0),
    ] {
        let (status, json) = verified.verify(words);
        assert_eq!(
            (status, &json["rows"], &json["lost"]),
            (0, &json!(rows), &json!(0)),
            "{words}: {json}"
        );
    }
}

#[test]
fn rows_that_a_rule_leaves_out_are_not_missed() {
    let verified = Verified::new("verify_dropped");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("postrider.toml");
    std::fs::write(&file, "[[route.rules]]\nglob = \"A\"\ndrop = true\n").unwrap();
    let relay = verified.relay.clone().variable("POSTRIDER_CONFIG", file.to_str().unwrap());
    verified.insert(30);
    relay.run_once();
    verified.pass();
    let (status, json) = verify(&relay, "");
    assert_eq!((status, found(&json)), (0, vec![("dropped", 10)]), "{json}");
}

#[test]
fn what_cannot_be_done_is_an_error_with_its_remedy() {
    let verified = Verified::new("verify_errors");
    verified.deliver(1);
    for (words, status, code, part) in [
        ("--order-column rank", 2, "PR-V002", "has no column `rank`"),
        ("--since yesterday-or-so", 2, "PR-V003", "as Postgres reads it"),
        ("--work-dir /nowhere/at/all", 1, "PR-V001", "--work-dir"),
    ] {
        let outcome = outcome(&verified.relay, words);
        let log = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(status), "{words}: {log}");
        assert!(
            log.contains(code) && log.contains(part) && outcome.stdout.is_empty(),
            "{words}: {log}"
        );
    }
    let other = verified.relay.clone().set("outbox.created_at", "at");
    let untimed = outcome(&other, "--since 1h");
    assert!(untimed.log.concat().contains("PR-V002"), "{:?}", untimed.log);
    assert!(untimed.log.concat().contains("outbox.created_at"), "{:?}", untimed.log);
    let none = verified.relay.clone().set("source.tables", "public.nothing");
    let outcome = outcome(&none, "");
    assert_eq!(outcome.status.code(), Some(78), "{}", outcome.log.join("\n"));
}

/// Rows of before the slot are still to come then.
#[test]
fn while_a_backfill_has_not_ended_nothing_is_lost() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.bootstrap(), "verify_backfill");
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    stage.insert("A", 3_000);
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    let killed = relay.clone().variable("FAILPOINT", "record_sent=kill@500");
    killed.start(&["backfill", "--execute", "--rate", "2000"]).outcome();
    let relay = relay.unprepared();
    let (status, json) = verify(&relay, "");
    assert_eq!((status, &json["lost"]), (0, &0.into()), "{json}");
    assert!(json["pending"].as_u64().unwrap() > 0, "{json}");
    relay.start(&["backfill", "--execute"]).outcome();
    let (status, json) = verify(&relay, "");
    assert_eq!((status, &json["lost"], &json["records"]), (0, &0.into(), &3_000.into()), "{json}");
}
