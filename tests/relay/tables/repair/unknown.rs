//! What cannot be known is neither sent nor left out by surprise.

use support::kafka;
use support::topic::{self, Stored};

use super::{Mode, assert_each_once, copies, free, has_slot, lost, plan, refused, relay, repair};
use crate::stage::Stage;
use crate::tables::{empty_stage, insert_in_time};

const MODES: [Mode; 2] = [Mode::Once, Mode::Plain];

fn assert_unknown(relay: &support::relay::Relay, reason: &str, rows: u64) {
    let planned = plan(relay, &[]);
    assert_eq!(planned["unknown_because"][reason], rows, "{planned}");
    assert!(planned["action"].as_str().unwrap().contains("PR-P102"), "{planned}");
}

/// A record that was sent to another topic on purpose is not the row's; nor is its dead letter.
#[test]
fn g1_a_dead_letter_of_a_replay_does_not_count_as_the_rows() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "replayed_letter", Mode::Once, (5, 4));
    let small = stage.topic("small");
    topic::create(&kafka.bootstrap(), &small, 1, &[("max.message.bytes", "100")]);
    let elsewhere = ["replay", "--all", "--to", &small, "--execute"];
    let replayed = relay.clone().allow_log("").start(&elsewhere).outcome();
    assert_eq!(replayed.status.code(), Some(1), "{replayed:?}");
    let letters = stage.topic("dead-letters");
    assert!(stage.records().iter().any(|record| record.topic == letters), "they are refused");
    let planned = plan(&relay, &[]);
    assert_eq!((&planned["delivered"], &planned["missing"]), (&5.into(), &4.into()), "{planned}");
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 4);
}

/// Which moment a value without time zone is depends on who wrote it.
#[test]
fn a_window_by_a_time_without_zone_is_refused_before_anything_is_written() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "unzoned", Mode::Once, (5, 4));
    stage.sql().run("ALTER TABLE outbox ALTER created_at TYPE timestamp");
    refused(&relay, &["repair", "--since", "1h", "--execute"], 78, "PR-P108");
    assert!(!has_slot(&stage));
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 4);
}

/// Times of the rows' own choice do not tell which records retention has removed.
#[test]
fn g6_rows_whose_records_were_removed_are_unknown_whatever_time_their_records_have() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "own_times");
    stage.sql().run("ALTER TABLE outbox ADD COLUMN at timestamptz");
    let relay = relay(&stage, Mode::Once).set("outbox.timestamp", "at");
    super::begin(&stage, &relay);
    for n in 0..10 {
        stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, at) \
             VALUES ('t', 'k', 'A', to_jsonb({n}), now() - {n} * interval '1 hour')"
        ));
    }
    relay.run_once();
    topic::remove_before(&kafka.bootstrap(), &stage.topic("A"), 3);
    super::drop_slot(&stage);
    let planned = plan(&relay, &[]);
    assert_eq!(planned["missing"], 0, "{planned}");
    let (delivered, unknown) = (planned["delivered"].as_u64(), planned["unknown"].as_u64());
    assert_eq!(delivered.zip(unknown).map(|(a, b)| a + b), Some(10), "{planned}");
    assert!(unknown > Some(0), "{planned}");
    refused(&relay, &["repair", "--execute"], 78, "PR-P102");
}

/// Records may be gone: of keys that have newer ones, or of all that are old.
#[test]
fn g6_rows_whose_records_may_be_gone_are_refused_until_somebody_decides() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        for compacted in [true, false] {
            let (stage, relay) = lost(&kafka.bootstrap(), "gone", mode, (30, 20));
            let name = stage.topic("A");
            let reason = if compacted {
                topic::alter(&kafka.bootstrap(), &name, &[("cleanup.policy", "compact")]);
                "compacted"
            } else {
                topic::remove_before(&kafka.bootstrap(), &name, 5);
                "removed"
            };
            // Rows that are there count as delivered all the same.
            let there = copies(&stage).len() as u64;
            assert_unknown(&relay, reason, 50 - there);
            assert!(!has_slot(&stage));
            let outcome = refused(&relay, &["repair", "--execute"], 78, "PR-P102");
            assert!(outcome.log.concat().contains("--unknown"), "{:?}", outcome.log);
            // What commits meanwhile is kept, where no relay would take the slot for one that has missed nothing.
            assert_eq!(has_slot(&stage), mode == Mode::Once);
            assert_eq!(copies(&stage).len() as u64, there, "nothing was sent");
            if mode == Mode::Once {
                free(&stage);
            }
            if compacted {
                let done = repair(&relay, &["--unknown", "send"]);
                assert_eq!(done["summary"]["confirmed"], 50 - there, "{mode:?}");
                relay.run_once();
                assert_eq!(copies(&stage).len(), 50);
            } else if mode == Mode::Once {
                let done = repair(&relay, &["--unknown", "skip"]);
                assert_eq!(done["summary"]["confirmed"], 0);
                relay.run_once();
                assert_eq!(copies(&stage).len() as u64, there);
            }
        }
    }
}

/// A window leaves out what cannot be known.
#[test]
fn g6_a_window_leaves_out_rows_of_which_nobody_can_tell() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "newer", Mode::Once, (30, 20));
    stage.sql().run("UPDATE outbox SET created_at = created_at - interval '1 day'");
    topic::remove_before(&kafka.bootstrap(), &stage.topic("A"), 1);
    insert_in_time(&stage, "A", 10);
    stage.sql().run("UPDATE outbox SET created_at = created_at + interval '1 hour' WHERE created_at > now() - interval '1 hour'");
    refused(&relay, &["repair", "--execute"], 78, "PR-P102");
    free(&stage);
    // The first attempt made the slot, and has sent nothing.
    let at = stage.slot_value("confirmed_flush_lsn");
    assert_eq!(plan(&relay, &["--since", "2h"])["missing"], 10);
    let done = repair(&relay, &["--since", "2h"]);
    assert_eq!(done["summary"]["confirmed"], 10);
    assert_eq!(stage.slot_value("confirmed_flush_lsn"), at, "the same slot");
}

/// Ids that several tables share, or other producers: only topic and content tell.
#[test]
fn g6_ids_that_are_no_uuids_are_told_by_topic_and_content() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in MODES {
        let stage = empty_stage(&kafka.bootstrap(), "numbers");
        topic::create(&kafka.bootstrap(), &stage.topic("B"), 3, &[]);
        stage.sql().run(
            "ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id TYPE bigint USING 0, \
                 ALTER id ADD GENERATED ALWAYS AS IDENTITY; \
             CREATE TABLE another (LIKE outbox INCLUDING ALL); ALTER PUBLICATION postrider ADD TABLE another",
        );
        let relay = relay(&stage, mode).set("source.tables", "public.outbox,public.another");
        super::begin(&stage, &relay);
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        super::drop_slot(&stage);
        // Rows 1 to 10 of another table, in another topic: not delivered, whatever has their ids.
        let columns = "aggregate_type, aggregate_id, event_type, payload, created_at";
        stage.sql().run(&format!(
            "INSERT INTO another ({columns}) SELECT aggregate_type, aggregate_id, 'B', payload, created_at FROM outbox"
        ));
        let planned = plan(&relay, &[]);
        let counts =
            ["delivered", "missing", "unknown"].map(|name| planned[name].as_u64().unwrap());
        assert_eq!(counts, [10, 10, 0], "{planned}");
        // Another producer's record has the id of one of them.
        let own = stage.records().into_iter().find(|one| one.header("id") == Some("4")).unwrap();
        let other = Stored {
            topic: stage.topic("B"),
            value: Some(b"another's".to_vec()),
            timestamp_ms: own.timestamp_ms,
            ..own
        };
        crate::verify::produce(&kafka.bootstrap(), &[other]);
        assert_unknown(&relay, "id_shared", 1);
        let done = repair(&relay, &["--unknown", "skip"]);
        assert_eq!(done["summary"]["confirmed"], 9, "{mode:?}");
        relay.run_once();
        assert_eq!(stage.records().len(), 10 + 1 + 9);
    }
}

/// Of a topic that never was nothing can be there.
#[test]
fn g6_rows_of_a_topic_that_does_not_exist_count_as_missing_and_are_named() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "no_topic", Mode::Once, (10, 5));
    insert_in_time(&stage, "Newer", 5);
    let planned = plan(&relay, &[]);
    assert_eq!((&planned["missing"], &planned["unknown"]), (&10.into(), &0.into()));
    let name = stage.topic("Newer");
    assert_eq!(planned["topics_missing"], serde_json::json!([name]));
    topic::create(&kafka.bootstrap(), &name, 1, &[]);
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 10);
    assert_each_once(&stage, &["outbox"]);
}

/// Records that lie behind an open transaction of another producer are waited for.
#[test]
fn g6_a_transaction_that_is_open_in_a_topic_is_waited_for() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use std::time::Duration;
    let Some(kafka) = kafka::shared() else { return };
    let (stage, relay) = lost(&kafka.bootstrap(), "open_transaction", Mode::Once, (10, 5));
    let other: BaseProducer =
        topic::client(&kafka.bootstrap()).set("transactional.id", stage.slot()).create().unwrap();
    other.init_transactions(Duration::from_secs(30)).unwrap();
    other.begin_transaction().unwrap();
    let name = stage.topic("A");
    for partition in 0..3 {
        other.send(BaseRecord::<str, str>::to(&name).partition(partition).payload("x")).unwrap();
    }
    other.flush(Duration::from_secs(30)).unwrap();
    // How far the comparison has come is said meanwhile, by the plan too.
    let mut planning = relay.start(&["repair", "--output", "json"]);
    let line = planning.wait_for_log("reading records");
    assert!(line.contains("\"done\":10"), "{line}");
    assert!(!has_slot(&stage));
    planning.kill();
    let mut running = relay.start(&["repair", "--execute"]);
    support::wait::wait_until("the slot", || has_slot(&stage));
    support::wait::stays("the repair waits", Duration::from_secs(2), || {
        stage.records().len() == 10
    });
    running.wait_for_log("reading records");
    other.commit_transaction(Duration::from_secs(30)).unwrap();
    assert!(running.outcome().status.success());
    let rows = stage.records().into_iter().filter(|one| one.header("id").is_some());
    assert_eq!(rows.count(), 15);
    drop::<Stage>(stage);
}
