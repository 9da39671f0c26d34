//! Tables and columns that get another name, or go, between the writing of a row and its reading: one
//! row that cannot be read so stops none of the others.

use std::collections::BTreeSet;

use crate::stage::Stage;
use support::broker::Broker;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::topic::{self, Stored};
use support::{kafka, postgres, wait_for};

const DELIVERIES: [&str; 2] = ["at_least_once", "exactly_once"];

fn stage(delivery: &str) -> Option<(Stage, Relay)> {
    let kafka = kafka::shared()?;
    let stage = Stage::new(postgres::installed(), &Broker::Kafka(kafka).bootstrap(), "renamed");
    let relay = stage.relay().set("kafka.delivery", delivery);
    relay.prepare();
    Some((stage, relay))
}

/// Three rows with keys 1 to 3 in a column of this name.
fn write(stage: &Stage, key: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, {key}, event_type, payload) \
         SELECT 't', n, 'A', to_jsonb(n) FROM generate_series(1, 3) AS n"
    ));
}

fn rename(stage: &Stage, from: &str, to: &str) {
    stage.sql().run(&format!("ALTER TABLE outbox RENAME COLUMN {from} TO {to}"));
}

/// A topic that comes into being may cost a session, and none can begin while the column is gone.
fn make_topics(stage: &Stage) {
    for name in ["A", "dead-letters"] {
        topic::create(stage.bootstrap(), &stage.topic(name), 3, &[]);
    }
}

fn keys(records: &[Stored]) -> Vec<String> {
    let key = |record: &Stored| String::from_utf8(record.key.clone().unwrap()).unwrap();
    let mut keys: Vec<String> = records.iter().map(key).collect();
    keys.sort_unstable();
    keys
}

/// Records of topic `A`, and dead letters, each row's once: at-least-once delivery may repeat them.
fn delivered(stage: &Stage) -> (Vec<Stored>, Vec<Stored>) {
    let letters = stage.topic("dead-letters");
    let mut seen = BTreeSet::new();
    let mut records = stage.records();
    records.retain(|one| seen.insert((one.topic.clone(), one.header("id").map(str::to_owned))));
    records.into_iter().partition(|record| record.topic != letters)
}

fn assert_lack(letters: &[Stored], count: usize, column: &str) {
    assert_eq!(letters.len(), count, "{letters:#?}");
    for letter in letters {
        assert_eq!(letter.header("postrider-error-code"), Some("missing_column"));
        assert!(letter.header("postrider-error").unwrap().contains(column), "{letter:?}");
    }
}

/// So many rows as there are keys, into a table with this name.
fn write_to(stage: &Stage, table: &str, keys: std::ops::RangeInclusive<u32>) {
    let (from, to) = (keys.start(), keys.end());
    stage.sql().run(&format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload)
         SELECT 't', n, 'A', to_jsonb(n) FROM generate_series({from}, {to}) AS n"
    ));
}

#[test]
fn g1_a_table_renamed_with_a_backlog_is_read_under_its_new_name() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        write_to(&stage, "outbox", 1..=3);
        stage.sql().run("ALTER TABLE outbox RENAME TO events; CREATE SCHEMA app");
        write_to(&stage, "events", 4..=6);
        stage.sql().run("ALTER TABLE events SET SCHEMA app");
        write_to(&stage, "app.events", 7..=9);
        relay.set("source.tables", "app.events").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "{delivery}");
        assert_lack(&letters, 0, "");
    }
}

/// What the hint and the documents promise whoever renames it for good.
#[test]
fn g1_a_table_renamed_while_running_ends_the_relay_and_loses_no_row() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        make_topics(&stage);
        let mut running = relay.clone().run();
        running.wait_for_log("streaming");
        write_to(&stage, "outbox", 1..=3);
        stage.sql().run("ALTER TABLE outbox RENAME TO events");
        write_to(&stage, "events", 4..=6);
        let ended = running.outcome();
        let log = ended.log.join("\n");
        assert_eq!(ended.status.code(), Some(70), "{log}");
        assert!(log.contains("set source.tables to its new name"), "{log}");
        write_to(&stage, "events", 7..=9);
        relay.set("source.tables", "public.events").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "{delivery}");
        assert_lack(&letters, 0, "");
    }
}

#[test]
fn g1_a_table_renamed_while_running_and_back_loses_no_row() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        make_topics(&stage);
        let mut running = relay.clone().allow_log("was renamed, dropped or replaced").run();
        running.wait_for_log("streaming");
        write_to(&stage, "outbox", 1..=1);
        let row = "INSERT INTO events (aggregate_type, aggregate_id, event_type, payload)";
        stage.sql().run(&format!(
            "BEGIN; ALTER TABLE outbox RENAME TO events; {row} VALUES ('t', '2', 'A', '2');
             ALTER TABLE events RENAME TO outbox; COMMIT"
        ));
        write_to(&stage, "outbox", 3..=3);
        stage.sql().run(&format!(
            "BEGIN; ALTER TABLE outbox RENAME TO events; COMMIT;
             BEGIN; {row} VALUES ('t', '4', 'A', '4'); COMMIT;
             BEGIN; ALTER TABLE events RENAME TO outbox; COMMIT"
        ));
        write_to(&stage, "outbox", 5..=5);
        // It may have looked just while the table had another name.
        wait_for("five records, or its end", || {
            (stage.records().len() >= 5 || running.has_ended()).then_some(())
        });
        running.kill();
        relay.run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3", "4", "5"], "{delivery}");
        assert_lack(&letters, 0, "");
    }
}

#[test]
fn g4_a_column_renamed_with_a_backlog_is_read_by_both_of_its_names() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        write(&stage, "aggregate_id");
        rename(&stage, "aggregate_id", "agg");
        write(&stage, "agg");
        relay.set("outbox.aggregate_id", "agg,aggregate_id").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "1", "2", "2", "3", "3"], "{delivery}");
        assert_lack(&letters, 0, "");
    }
}

#[test]
fn g4_a_column_renamed_with_a_backlog_and_named_once_costs_the_rows_of_before_only() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        write(&stage, "aggregate_id");
        rename(&stage, "aggregate_id", "agg");
        write(&stage, "agg");
        // The table as it is now lacks the only name there is.
        let refused = relay.start(&["run", "--once"]).outcome();
        assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
        let log = refused.log.join("\n");
        assert!(log.contains("PR-P034") && log.contains("list both names"), "{log}");
        let relay = relay.set("outbox.aggregate_id", "agg").expect_log("became a dead letter");
        relay.run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3"], "{delivery}");
        assert_lack(&letters, 3, "`agg`");
        assert!(letters.iter().all(|letter| letter.value.is_some()), "{letters:?}");
    }
}

#[test]
fn g4_a_column_renamed_while_running_and_back_costs_the_rows_between_only() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        make_topics(&stage);
        let mut running = relay.expect_log("became a dead letter").run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        write(&stage, "aggregate_id");
        rename(&stage, "aggregate_id", "agg");
        write(&stage, "agg");
        rename(&stage, "agg", "aggregate_id");
        write(&stage, "aggregate_id");
        let end = stage.log_end();
        wait_for("the acknowledgement", || {
            assert!(!running.has_ended(), "{delivery}: it ended by itself");
            (stage.acknowledged() >= end).then_some(())
        });
        face.wait_count("postrider_rejections_total{reason=\"missing_column\"}", 3);
        running.stop();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "1", "2", "2", "3", "3"], "{delivery}");
        assert_lack(&letters, 3, "`aggregate_id`");
    }
}

/// What a dead letter is to bring back is in it, though nobody can say which column it was.
#[test]
fn a_column_renamed_while_running_is_named_and_the_new_name_delivers() {
    for cluster in postgres::versions() {
        let broker = Broker::best();
        let stage = Stage::new(cluster, &broker.bootstrap(), "body");
        make_topics(&stage);
        let relay = stage.relay().expect_log("became a dead letter");
        let mut running = relay.run();
        running.wait_for_log("streaming");
        rename(&stage, "payload", "body");
        stage.sql().run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, body)
             VALUES ('t', 'k', 'A', '{\"n\": 1.50}')",
        );
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.sql().run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, body)
             VALUES ('t', 'next', 'A', '1')",
        );
        stage.relay().set("outbox.payload", "body").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["next"]);
        assert_lack(&letters, 1, "`payload`");
        let row: serde_json::Value =
            serde_json::from_slice(letters[0].value.as_deref().unwrap()).unwrap();
        assert_eq!((&row["body"], &row["aggregate_id"]), (&"{\"n\": 1.50}".into(), &"k".into()));
    }
}

#[test]
fn g4_a_column_dropped_with_a_backlog_stops_nothing() {
    for delivery in DELIVERIES {
        let Some((stage, relay)) = stage(delivery) else { return };
        write(&stage, "aggregate_id");
        stage.sql().run("ALTER TABLE outbox DROP COLUMN aggregate_type, ADD COLUMN who text");
        stage.sql().run(
            "INSERT INTO outbox (aggregate_id, who, event_type, payload) VALUES ('4', '4', 'A', '4')",
        );
        // A header is done without, for the rows of before too.
        relay.clone().set("route.headers", "event_type").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3", "4"], "{delivery}");
        assert_lack(&letters, 0, "");
        // A key is not: what was written before there was such a column has none.
        stage.sql().run("ALTER TABLE outbox DROP COLUMN who");
        write_untyped(&stage, "aggregate_id", "5");
        stage.sql().run("ALTER TABLE outbox DROP COLUMN aggregate_id, ADD COLUMN who text");
        write_untyped(&stage, "who", "6");
        let relay = relay.set("route.headers", "event_type").set("outbox.aggregate_id", "who");
        relay.expect_log("became a dead letter").run_once();
        let (records, letters) = delivered(&stage);
        assert_eq!(keys(&records), ["1", "2", "3", "4", "6"], "{delivery}");
        assert_lack(&letters, 1, "`who`");
    }
}

fn write_untyped(stage: &Stage, key: &str, value: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox ({key}, event_type, payload) VALUES ('{value}', 'A', '{value}')"
    ));
}
