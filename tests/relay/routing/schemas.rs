//! Schemas that are sent along (`json_schema`): what they say of NULL is what the real table says.

use serde_json::{Value, json};

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;
use support::topic::Stored;

fn relay(stage: &Stage) -> Relay {
    stage
        .relay()
        .set("format.key", "json_schema")
        .set("format.value", "json_schema")
        .set("route.envelope", "n,note")
}

fn insert(stage: &Stage, n: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n) \
         VALUES ('t', 'k', 'A', '{{}}', {n})"
    ));
}

/// Of each record, in order: which of key, payload, `n` and `note` may be NULL, and `n` itself.
fn told(stage: &Stage) -> Vec<([bool; 4], Value)> {
    let mut records = stage.records();
    records.sort_by_key(|record| record.header("postrider-lsn").unwrap().to_owned());
    records.iter().map(of_record).collect()
}

fn of_record(record: &Stored) -> ([bool; 4], Value) {
    let parse = |bytes: &Option<Vec<u8>>| -> Value {
        serde_json::from_slice(bytes.as_ref().unwrap()).unwrap()
    };
    let (key, value) = (parse(&record.key), parse(&record.value));
    let fields = value["schema"]["fields"].as_array().unwrap();
    let names: Vec<&Value> = fields.iter().map(|field| &field["field"]).collect();
    assert_eq!(names, ["payload", "n", "note"]);
    let is_optional = |schema: &Value| schema["optional"].as_bool().unwrap();
    let [payload, n, note] = [0, 1, 2].map(|at| is_optional(&fields[at]));
    ([is_optional(&key["schema"]), payload, n, note], value["payload"]["n"].clone())
}

#[test]
fn optional_is_what_the_table_says_when_a_session_begins() {
    for cluster in postgres::versions() {
        let broker = Broker::embedded();
        let stage = Stage::new(cluster, &broker.bootstrap(), "schemas");
        stage.sql().run("ALTER TABLE outbox ADD n int NOT NULL DEFAULT 0, ADD note text");
        let mut running = relay(&stage).run();
        running.wait_for_log("streaming");
        insert(&stage, "1");
        stage.wait_for_records(1);
        let strict = [false, true, false, true];
        assert_eq!(told(&stage), [(strict, json!(1))]);

        // The stream does not tell of it. A NULL tells so much of itself.
        stage.sql().run("ALTER TABLE outbox ALTER n DROP NOT NULL");
        insert(&stage, "2");
        insert(&stage, "NULL");
        stage.wait_for_records(3);
        let lenient = [false, true, true, true];
        let mut wanted = vec![(strict, json!(1)), (strict, json!(2)), (lenient, Value::Null)];
        assert_eq!(told(&stage), wanted);
        running.stop();

        insert(&stage, "4");
        relay(&stage).run_once();
        wanted.push((lenient, json!(4)));
        stage.sql().run("ALTER TABLE outbox ALTER payload SET NOT NULL");
        insert(&stage, "5");
        relay(&stage).run_once();
        wanted.push(([false, false, true, true], json!(5)));
        assert_eq!(told(&stage), wanted);
    }
}
