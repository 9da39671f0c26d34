//! Topics that are altered under a running relay: it learns of that before a row pays for it.

use std::time::Duration;

use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::wait::let_pass;
use support::{kafka, postgres, topic};

const DELIVERIES: [&str; 2] = ["at_least_once", "exactly_once"];

/// The client library looks for new partitions every five minutes, and says of those that it does not know
/// that they do not exist.
#[test]
fn g4_rows_that_choose_a_partition_which_was_just_added_are_delivered() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "grown");
        let name = stage.topic("P");
        topic::create(&kafka.bootstrap(), &name, 3, &[]);
        stage.sql().run("ALTER TABLE outbox ADD COLUMN part int");
        let relay = stage.relay().set("route.partition", "part").set("kafka.delivery", delivery);
        let running = relay.expect_log("became a dead letter").run();
        let insert = |first: u32, key: &str| {
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, part)
                 SELECT 't', {key}, 'P', '1', {first} + n % 3 FROM generate_series(1, 30) AS n"
            ));
            stage.wait_acknowledged(stage.log_end());
        };
        insert(0, "n");
        // What no topic has is refused, then and now.
        insert(6, "n");
        topic::grow(&kafka.bootstrap(), &name, 6);
        insert(3, "n");
        insert(6, "n");
        topic::grow(&kafka.bootstrap(), &name, 9);
        insert(3, "n");
        topic::grow(&kafka.bootstrap(), &name, 12);
        insert(9, "n");
        running.stop();
        let records = stage.records();
        let chosen = |partitions: std::ops::Range<i32>| {
            let there =
                |one: &&topic::Stored| one.topic == name && partitions.contains(&one.partition);
            records.iter().filter(there).count()
        };
        let letters = records.iter().filter(|one| one.topic != name);
        let missing = "has no partition";
        assert!(letters.clone().all(|one| {
            one.header("postrider-error").is_some_and(|reason| reason.contains(missing))
        }));
        assert_eq!((chosen(0..3), chosen(3..6), letters.count()), (30, 60, 60), "{delivery}");
        assert_eq!((chosen(6..9), chosen(9..12)), (0, 30), "{delivery}");
    }
}

/// What a topic's settings say is asked for again, so that what its refusals have in common is seen.
#[test]
fn g4_a_topic_that_becomes_compacted_costs_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in DELIVERIES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "compacted");
        let (small, name) = ("max.message.bytes", stage.topic("A"));
        topic::create(&kafka.bootstrap(), &name, 1, &[(small, "3000")]);
        topic::create(&kafka.bootstrap(), &stage.topic("B"), 1, &[]);
        stage.sql().run("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL");
        let relay =
            stage.relay().set("kafka.delivery", delivery).expect_log("became a dead letter");
        let mut running =
            relay.expect_log("refused a batch").allow_log("trying again").allow_log(&name).run();
        let face = RelayHttp::of(&mut running);
        let insert = |event: &str, key: &str, payload: &str| {
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('t', {key}, '{event}', {payload})"
            ));
        };
        let large =
            "(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 400) AS i)";
        insert("A", "'k'", large);
        stage.wait_acknowledged(stage.log_end());
        let_pass(Duration::from_secs(11), "what was asked for becomes old");
        topic::alter(&kafka.bootstrap(), &name, &[("cleanup.policy", "compact"), (small, "3000")]);
        for _ in 0..100 {
            insert("A", "NULL", "'1'");
            insert("B", "'k'", "'1'");
            let_pass(Duration::from_millis(30), "rows come one after the other");
        }
        stage.wait_acknowledged(stage.log_end());
        let ended = face.count("postrider_restarts_total{reason=\"batch_refused\"}").unwrap();
        eprintln!("{delivery}: {ended} sessions ended");
        running.stop();
        assert!(ended <= 20, "{delivery}: {ended} sessions ended");
        let records = stage.records();
        let in_topic = |wanted: &str| {
            let ids = records.iter().filter(|one| one.topic == stage.topic(wanted));
            ids.map(|one| one.header("id").unwrap())
                .collect::<std::collections::BTreeSet<_>>()
                .len()
        };
        assert_eq!((in_topic("A"), in_topic("B"), in_topic("dead-letters")), (0, 100, 101));
    }
}
