//! The rows of before the slot.

use super::{Writer, empty_stage, insert_in_time, json};
use crate::stage::Stage;
use support::postgres::Database;
use support::{kafka, postgres, topic};

#[test]
fn rows_of_before_the_slot_and_of_after_it_arrive_once_and_in_order() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = empty_stage(&kafka.bootstrap(), "backfill");
        let oracle = stage.oracle();
        insert_in_time(&stage, "A", 3_500);
        insert_in_time(&stage, "not a topic", 3);
        let relay = stage.relay().set("kafka.delivery", delivery).allow_log("became a dead letter");
        let plan = json(&relay, &["backfill"]);
        assert_eq!(
            (&plan["tables"][0]["rows"], &plan["slot_exists"]),
            (&3_503.into(), &false.into())
        );
        assert_eq!(
            plan["tables"][0]["order_by"],
            serde_json::json!(["sequence", "created_at", "id"])
        );
        assert_eq!(stage.records(), [], "a plan sends nothing");
        let writer = Writer::start(&stage, "A");
        let done = json(&relay, &["backfill", "--execute"]);
        assert_eq!(done["finished"], true);
        let records = stage.records();
        let marked =
            records.iter().filter(|one| one.header("postrider-origin") == Some("backfill"));
        assert_eq!(marked.count(), records.len());
        assert!(records.iter().all(|one| one.header("postrider-lsn").is_none()));
        assert_eq!(done["summary"]["confirmed"], records.len());
        let running = relay.run();
        writer.stop();
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let verdict = stage.verdict(&oracle, &[]);
        verdict.assert_exactly_once();
        assert!(verdict.delivered > records.len(), "the stream has rows, too");
    }
}

/// Without rows there is nothing to deliver but the slot.
#[test]
fn an_empty_outbox_has_a_slot_afterwards_and_is_refused_a_second_one() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = empty_stage(&kafka.bootstrap(), "nothing");
        let relay = stage.relay().set("kafka.delivery", delivery).unprepared();
        assert_eq!(json(&relay, &["backfill", "--execute"])["summary"]["confirmed"], 0);
        stage.insert("A", 7);
        relay.run_once();
        assert_eq!(stage.records().len(), 7);
        let refused = relay.start(&["backfill", "--execute"]).outcome();
        assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
        // Where progress is kept it is known that the stream has begun.
        let code = if delivery == "exactly_once" { "PR-P105" } else { "PR-P083" };
        assert!(refused.log.concat().contains(code), "{:?}", refused.log);
        assert_eq!(stage.records().len(), 7, "nothing was sent again");
    }
}

/// Rows of before a slot that is there are not for a backfill, whatever was asked of setup.
#[test]
fn setup_and_plan_say_what_a_backfill_would_do_with_a_slot_that_is_there() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "existing");
    insert_in_time(&stage, "A", 20);
    let relay = stage.relay().unprepared();
    let remarks = || json(&relay, &["setup", "--existing", "send"])["remarks"].to_string();
    let left = remarks();
    assert!(left.contains("left to `postrider backfill --execute`"), "{left}");
    stage.create_slot();
    let there = remarks();
    assert!(there.contains("postrider repair") && !there.contains("is left to"), "{there}");
    let plan = |arguments: &[&str]| relay.start(arguments).outcome().stdout;
    assert!(plan(&["backfill"]).contains("would be refused"));
    assert!(plan(&["backfill", "--restart"]).contains("sends all rows again"));
    assert_eq!(json(&relay, &["backfill", "--restart", "--execute"])["summary"]["confirmed"], 20);
}

/// Where no progress is kept nothing but the holder of the slot tells that rows are still to come.
#[test]
fn verify_calls_no_row_lost_that_a_running_backfill_has_not_reached() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = empty_stage(&kafka.bootstrap(), "verified");
        insert_in_time(&stage, "A", 3_000);
        let relay = stage.relay().set("kafka.delivery", delivery);
        let running =
            relay.clone().allow_log("").start(&["backfill", "--execute", "--rate", "100"]);
        stage.wait_for_records(200);
        let verify = ["verify", "--output", "json", "--grace", "0s"];
        let found = relay.clone().allow_log("").start(&verify).outcome().stdout;
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!((&found["lost"], &found["clean"]), (&0.into(), &true.into()), "{found}");
        assert!(found["pending"].as_u64() > Some(1_000), "{found}");
        running.kill();
    }
}

/// Several tables, one of them in partitions, another encoding, and values that COPY escapes.
#[test]
fn rows_of_every_table_and_partition_come_as_the_stream_would_have_sent_them() {
    let Some(kafka) = kafka::shared() else { return };
    let database = Database::encoded(postgres::installed(), "latin", "LATIN1");
    let stage = Stage::before(database, &kafka.bootstrap());
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    stage.sql().run(
        "CREATE TABLE parted (LIKE outbox INCLUDING DEFAULTS) PARTITION BY RANGE (created_at); \
         ALTER TABLE parted ADD PRIMARY KEY (created_at, id); \
         CREATE TABLE parted_old PARTITION OF parted FOR VALUES FROM ('2026-01-01') TO ('2026-02-01'); \
         CREATE TABLE parted_new PARTITION OF parted FOR VALUES FROM ('2026-02-01') TO ('2026-03-01'); \
         ALTER PUBLICATION postrider ADD TABLE parted",
    );
    let texts = "ARRAY[E'tab\\there', E'line\\nend\\r', E'back\\\\slash \\\\N', '\\N', 'caf\u{e9}', '', E'\\b\\f\\x0b']";
    let values = |table: &str, day: &str| {
        format!(
            "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload, created_at) \
             SELECT 't', 'key ' || n, 'A', to_jsonb(text), timestamptz '{day}' + n * interval '1s' \
             FROM unnest({texts}) WITH ORDINALITY AS x (text, n); "
        )
    };
    let both = || {
        let all =
            [("outbox", "2026-01-05"), ("parted", "2026-01-31 23:59:57"), ("parted", "2026-02-03")];
        all.map(|(table, day)| values(table, day)).concat()
    };
    stage.sql().run(&both());
    stage.sql().run("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('t', E'tab\\tkey', 'A')");
    let relay = stage.relay().set("source.tables", "public.outbox,public.parted");
    let done = json(&relay, &["backfill", "--execute"]);
    assert_eq!(done["summary"]["confirmed"], 22);
    let backfilled = stage.records();
    // The same values once more, by the log.
    stage.sql().run(&both());
    stage.sql().run("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('t', E'tab\\tkey', 'A')");
    relay.run_once();
    let both = stage.records();
    assert_eq!(both.len(), 44);
    let content = |record: &topic::Stored| (record.key.clone(), record.value.clone());
    let streamed: Vec<_> =
        both.iter().filter(|one| one.header("postrider-lsn").is_some()).collect();
    assert_eq!(streamed.len(), 22);
    let mut before: Vec<_> = backfilled.iter().map(content).collect();
    let mut after: Vec<_> = streamed.into_iter().map(content).collect();
    before.sort();
    after.sort();
    assert_eq!(before, after);
}

/// What is not of the stream's own making is refused with what to do, and nothing is sent.
#[test]
fn rows_without_an_order_are_refused() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = empty_stage(&kafka.bootstrap(), "orderless");
    insert_in_time(&stage, "A", 3);
    for (set_up, option, code) in [
        ("", "no_such_column", "PR-P082"),
        ("", "payload", "PR-P086"),
        ("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "created_at", "PR-P085"),
    ] {
        stage.sql().run(set_up);
        let relay = stage.relay().set("outbox.order_by", option);
        let refused = relay.start(&["backfill", "--execute"]).outcome();
        assert_eq!(refused.status.code(), Some(78), "{:?}", refused.log);
        assert!(refused.log.concat().contains(code), "{code}: {:?}", refused.log);
    }
    assert_eq!(stage.records(), []);
    let slots =
        format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'", stage.slot());
    assert_eq!(stage.sql().value(&slots), "0", "no slot came of it");
}
