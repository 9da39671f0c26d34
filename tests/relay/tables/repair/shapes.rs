//! Tables, encodings and layouts of records of every kind.

use support::postgres::Database;
use support::{kafka, postgres, topic};

use super::{Mode, assert_each_once, begin, copies, drop_slot, plan, relay, repair};
use crate::stage::Stage;
use crate::tables::{empty_stage, insert_in_time, json};

/// Several tables, one of them in partitions, in another encoding; and rows of every kind.
#[test]
fn g6_rows_of_every_table_partition_and_kind_are_told_apart() {
    let Some(kafka) = kafka::shared() else { return };
    for mode in [Mode::Once, Mode::Plain] {
        let database = Database::encoded(postgres::installed(), "latin", "LATIN1");
        let stage = Stage::before(database, &kafka.bootstrap());
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
        }
        stage.sql().run(
            "CREATE TABLE parted (LIKE outbox INCLUDING DEFAULTS) PARTITION BY RANGE (created_at); \
             ALTER TABLE parted ADD PRIMARY KEY (created_at, id); \
             CREATE TABLE parted_all PARTITION OF parted DEFAULT; \
             ALTER PUBLICATION postrider ADD TABLE parted",
        );
        let relay = relay(&stage, mode).set("source.tables", "public.outbox,public.parted");
        let relay = relay.allow_log("became a dead letter");
        begin(&stage, &relay);
        // Text of the encoding, a tombstone, a row without a key, one that cannot be routed.
        let rows = |table: &str| {
            format!(
                "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES \
                 ('t', E'caf\\u00e9', 'A', '{{\"text\": \"tab\\\\tcaf\u{e9}\"}}'), ('t', 'tombstone', 'A', NULL), \
                 ('t', '', 'A', '1'), ('t', 'rejected', 'no topic', '2')"
            )
        };
        let both = || {
            stage.sql().run(&rows("outbox"));
            stage.sql().run(&rows("parted"));
        };
        both();
        relay.run_once();
        assert_eq!(stage.records().len(), 8);
        drop_slot(&stage);
        both();
        let planned = plan(&relay, &[]);
        let counts = ["rows", "delivered", "missing", "unknown"].map(|name| planned[name].as_u64());
        assert_eq!(counts, [16, 8, 8, 0].map(Some), "{planned}");
        assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 8);
        relay.run_once();
        assert_each_once_with_letters(&stage);
    }
}

fn assert_each_once_with_letters(stage: &Stage) {
    assert_each_once(stage, &["outbox", "parted"]);
    let letters = topic::read(stage.bootstrap(), &[stage.topic("dead-letters")]);
    let repaired =
        letters.iter().filter(|letter| letter.header("postrider-origin") == Some("repair"));
    assert_eq!((letters.len(), repaired.count()), (4, 2));
}

#[test]
fn g6_records_are_known_in_every_layout() {
    let Some(kafka) = kafka::shared() else { return };
    let cases: [&[(&str, &str)]; 4] = [
        &[("route.id_header", "event-id")],
        &[("format.value", "cloudevents_binary")],
        &[("format.value", "cloudevents_structured")],
        &[("outbox.timestamp", "created_at"), ("route.position_header", "false")],
    ];
    for options in cases {
        let stage = empty_stage(&kafka.bootstrap(), "layout");
        let mut relay = relay(&stage, Mode::Once);
        for (option, value) in options {
            relay = relay.set(option, value);
        }
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 20);
        relay.run_once();
        drop_slot(&stage);
        insert_in_time(&stage, "A", 10);
        let done = repair(&relay, &[]);
        let repaired = &done["summary"]["repaired"];
        assert_eq!(
            (&repaired["delivered"], &repaired["missing"]),
            (&20.into(), &10.into()),
            "{options:?}"
        );
        relay.run_once();
        assert_eq!(stage.records().len(), 30);
        let verified = json(&relay, &["verify"]);
        assert_eq!(verified["clean"], true, "{options:?}: {verified}");
    }
}

/// Columns that are not published stay in the database, also those that rows are ordered by.
#[test]
fn what_the_publication_leaves_out_is_not_sent_by_any_command() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "columns");
    stage.sql().run(
        "ALTER TABLE outbox ADD secret text DEFAULT 'hidden'; \
         ALTER PUBLICATION postrider SET TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload)",
    );
    let relay = relay(&stage, Mode::Once);
    insert_in_time(&stage, "A", 10);
    let planned = json(&relay, &["backfill"]);
    assert_eq!(
        planned["tables"][0]["order_by"],
        serde_json::json!(["sequence", "created_at", "id"])
    );
    assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 10);
    insert_in_time(&stage, "A", 10);
    relay.run_once();
    drop_slot(&stage);
    insert_in_time(&stage, "A", 10);
    assert_eq!(repair(&relay, &[])["summary"]["confirmed"], 10);
    relay.run_once();
    assert_each_once(&stage, &["outbox"]);
    let all = relay.clone().set("kafka.delivery", "at_least_once");
    assert_eq!(json(&all, &["replay", "--all", "--execute"])["summary"]["confirmed"], 30);
    for record in stage.records() {
        assert!(!String::from_utf8_lossy(record.value.as_deref().unwrap()).contains("hidden"));
    }
    assert_eq!(copies(&stage).len(), 30);
    assert_eq!(json(&relay, &["verify"])["clean"], true, "the routing gives the same without them");
}
