//! `postrider trace`: where rows are, found for every one of them.

use std::collections::BTreeMap;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::Value;

use crate::stage::Stage;
use support::broker::Broker;
use support::relay::{Outcome, Relay};
use support::wait::wait_until;
use support::{kafka, postgres, topic};

/// What it said, a line for each id, and how it ended.
fn trace(relay: &Relay, ids: &[String]) -> (Vec<Value>, Option<i32>) {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let arguments = [&["trace", "--output", "json"], ids.as_slice()].concat();
    let Outcome { status, stdout, log } = relay.start(&arguments).outcome();
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), ids.len(), "{stdout}{}", log.join("\n"));
    (lines, status.code())
}

fn ids(stage: &Stage) -> Vec<String> {
    stage
        .sql()
        .rows("SELECT id::text FROM outbox ORDER BY created_at, id")
        .concat()
        .into_iter()
        .flatten()
        .collect()
}

fn states(lines: &[Value]) -> BTreeMap<&str, usize> {
    let mut states = BTreeMap::new();
    for line in lines {
        *states.entry(line["state"].as_str().unwrap()).or_default() += 1;
    }
    states
}

#[test]
fn a_thousand_of_a_thousand_rows_are_found_where_they_are() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "trace");
    for name in ["A", "B"] {
        topic::create(&kafka.bootstrap(), &stage.topic(name), 3, &[]);
    }
    stage.insert("A", 600);
    stage.insert("B", 300);
    stage.insert("no topic!", 100);
    let relay = stage.relay().allow_log("became a dead letter").allow_log("does not exist");
    relay.start(&["run", "--once"]).outcome();
    let ids = ids(&stage);
    let (lines, exit) = trace(&stage.relay(), &ids);
    assert_eq!(states(&lines), [("dead_letter", 100), ("delivered", 900)].into());
    assert_eq!(exit, Some(0));
    // Each is at the place that is told.
    let stored: BTreeMap<_, _> = stage
        .records()
        .into_iter()
        .map(|record| {
            let id = record.header("id").unwrap().to_owned();
            (id, (record.topic, i64::from(record.partition), record.offset))
        })
        .collect();
    for line in &lines {
        let id = line["id"].as_str().unwrap();
        let found: Vec<_> = ["records", "dead_letters"]
            .iter()
            .flat_map(|kind| line[*kind].as_array().unwrap())
            .collect();
        let [one] = found.as_slice() else { panic!("{line}") };
        let place = (
            one["topic"].as_str().unwrap().to_owned(),
            one["partition"].as_i64().unwrap(),
            one["offset"].as_i64().unwrap(),
        );
        assert_eq!(stored[id], place, "{line}");
    }
    // However it is typed.
    let (lines, _) = trace(&stage.relay(), &[ids[0].to_uppercase()]);
    assert_eq!(lines[0]["state"], "delivered");
}

#[test]
fn rows_that_are_in_no_topic_have_their_reason() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "trace_states");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
    stage.insert("A", 5);
    let before = (stage.acknowledged(), stage.slot_value("restart_lsn"));
    let (lines, exit) = trace(&stage.relay(), &ids(&stage));
    assert_eq!((states(&lines), exit), ([("pending", 5)].into(), Some(0)));
    assert_eq!((stage.acknowledged(), stage.slot_value("restart_lsn")), before, "nothing moves");
    stage.relay().start(&["run", "--once"]).outcome();
    // The server says of its own accord how far a slot has come, every 15 seconds or at a checkpoint.
    topic::remove_before(&kafka.bootstrap(), &stage.topic("A"), 2);
    wait_until("the slot to pass the rows", || {
        stage.sql().run("CHECKPOINT");
        stage.relay().start(&["run", "--once"]).outcome();
        let (lines, exit) = trace(&stage.relay(), &ids(&stage));
        let states = states(&lines);
        assert_eq!(states["delivered"], 3);
        states.get("missing") == Some(&2) && exit == Some(1)
    });
    let nowhere = "c0ffee00-0000-4000-8000-000000000042".to_owned();
    let (lines, exit) = trace(&stage.relay(), &[nowhere]);
    assert_eq!((states(&lines), exit), ([("unknown", 1)].into(), Some(1)));
}

/// A record may have a time of the row's own choice, and a row may be gone that was delivered.
#[test]
fn records_are_found_whatever_their_time_and_without_their_rows() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "trace_old");
    stage
        .sql()
        .run("ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT now() - interval '2 days'");
    stage.insert("A", 3);
    stage.relay().set("outbox.timestamp", "at").start(&["run", "--once"]).outcome();
    let ids = ids(&stage);
    let (lines, _) = trace(&stage.relay(), &ids);
    assert_eq!(states(&lines), [("delivered", 3)].into());
    stage.sql().run("DELETE FROM outbox");
    let relay = stage.relay();
    let arguments = ["trace", "--output", "json", "--topic", &stage.topic("A"), &ids[0]];
    let Outcome { stdout, status, .. } = relay.start(&arguments).outcome();
    let line: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&line["state"], status.code()), (&"delivered".into(), Some(0)), "{line}");
    assert_eq!(line["rows"].as_array().unwrap().len(), 0);
}

/// Postgres alone says which texts are one id: a UUID has many, a text has one.
#[test]
fn an_id_is_found_in_every_form_that_postgres_takes_and_however_often() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "trace_forms");
    stage.insert("A", 2);
    stage.relay().start(&["run", "--once"]).outcome();
    let known = ids(&stage);
    let bare = known[0].replace('-', "");
    let forms = [
        known[0].clone(),
        known[0].clone(),
        known[0].to_uppercase(),
        format!("{{{}}}", known[0]),
        bare.clone(),
    ];
    let (lines, exit) = trace(&stage.relay(), &forms);
    assert_eq!((states(&lines), exit), ([("delivered", 5)].into(), Some(0)), "{lines:?}");
    assert!(lines.iter().all(|line| line["records"] == lines[0]["records"]), "{lines:?}");
    let searched = lines[0]["searched"].as_array().unwrap();
    assert!(searched.contains(&stage.topic("A").into()), "{searched:?}");
    // Without the row, too.
    stage.sql().run("DELETE FROM outbox");
    let relay = stage.relay();
    let arguments = ["trace", "--output", "json", "--topic", &stage.topic("A"), &bare];
    let Outcome { stdout, .. } = relay.start(&arguments).outcome();
    assert!(stdout.contains("\"state\":\"delivered\""), "{stdout}");
}

#[test]
fn ids_that_differ_in_case_are_two_rows_where_they_are_text() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "trace_case");
    stage.sql().run("ALTER TABLE outbox ALTER COLUMN id DROP DEFAULT, ALTER COLUMN id TYPE text");
    stage.create_slot();
    stage.sql().run(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT id, 't', '1', 'A', '{}' FROM unnest(ARRAY['abc', 'ABC']) AS it (id)",
    );
    stage.relay().start(&["run", "--once"]).outcome();
    let (lines, _) = trace(&stage.relay(), &["abc", "ABC", "Abc"].map(str::to_owned));
    let states: Vec<_> = lines.iter().map(|line| line["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["delivered", "delivered", "unknown"]);
    assert_ne!(lines[0]["records"][0]["offset"], lines[1]["records"][0]["offset"]);
    assert!(lines.iter().take(2).all(|line| line["records"].as_array().unwrap().len() == 1));
}

#[test]
fn a_dead_letter_that_was_sent_again_is_told_from_one_that_waits() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "trace_retried");
    topic::create(&kafka.bootstrap(), &stage.topic("B"), 1, &[]);
    stage.insert("no topic!", 1);
    stage.relay().allow_log("became a dead letter").start(&["run", "--once"]).outcome();
    let ids = ids(&stage);
    let (lines, _) = trace(&stage.relay(), &ids);
    assert_eq!(states(&lines), [("dead_letter", 1)].into());
    let retry = ["dead-letters", "retry", "--to", &stage.topic("B"), "--execute"];
    let sent = stage.relay().start(&retry).outcome();
    assert_eq!(sent.status.code(), Some(0), "{}", sent.log.join("\n"));
    let (lines, exit) = trace(&stage.relay(), &ids);
    assert_eq!((states(&lines), exit), ([("sent_again", 1)].into(), Some(0)), "{lines:?}");
    let relay = stage.relay();
    let arguments = ["trace", "--topic", &stage.topic("B"), &ids[0]];
    let Outcome { stdout, .. } = relay.start(&arguments).outcome();
    assert!(stdout.starts_with(&format!("{}  delivered\n", ids[0])), "{stdout}");
    assert!(stdout.contains("; sent again"), "{stdout}");
    // What Kafka has is said without Postgres.
    let down = stage.relay().allow_log("only topics are searched");
    let down = down.set("source.url", "postgres://a@127.0.0.1:1/x");
    let Outcome { stdout, log, .. } = down.start(&arguments).outcome();
    assert!(stdout.starts_with(&format!("{}  delivered\n", ids[0])), "{stdout}{log:?}");
}

#[test]
fn a_row_whose_slot_is_gone_is_lost_and_not_pending() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "trace_lost");
    stage.insert("A", 1);
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot()));
    let (lines, exit) = trace(&stage.relay(), &ids(&stage));
    assert_eq!((states(&lines), exit), ([("lost", 1)].into(), Some(1)), "{lines:?}");
}

#[test]
fn a_missing_topic_comes_with_the_one_that_was_meant() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "trace_topic");
    stage.insert("A", 1);
    stage.relay().start(&["run", "--once"]).outcome();
    let (meant, relay) = (stage.topic("A"), stage.relay().allow_log("does not exist"));
    let arguments = ["trace", "--topic", &format!("{meant}x"), &ids(&stage)[0]];
    let Outcome { status, log, .. } = relay.start(&arguments).outcome();
    let (told, brokers) = (log.concat(), broker.bootstrap());
    assert_eq!(status.code(), Some(1), "{told}");
    for words in
        [format!("did you mean `{meant}`?"), format!("--bootstrap-server {brokers} --list")]
    {
        assert!(told.contains(&words), "{told}");
    }
}

#[test]
fn an_id_that_no_row_can_have_is_a_usage_error() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "trace_no_id");
    let relay = stage.relay().allow_log("is not an id");
    let Outcome { status, stdout, log } = relay.start(&["trace", "notauuid"]).outcome();
    assert_eq!(status.code(), Some(2), "{stdout}{log:?}");
    let unknown = "c0ffee00-0000-4000-8000-000000000042".to_owned();
    let (lines, exit) = trace(&stage.relay(), &[unknown]);
    assert_eq!((states(&lines), exit), ([("unknown", 1)].into(), Some(1)), "{lines:?}");
}

#[test]
fn brokers_that_stop_answering_end_it() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "trace_silent");
    stage.insert("A", 3);
    stage.relay().start(&["run", "--once"]).outcome();
    let id = ids(&stage).remove(0);
    let silence = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 10_000];
    mock.request_errors(RDKafkaApiKey::Fetch, &silence);
    let Outcome { status, log, .. } = stage.relay().allow_log("").start(&["trace", &id]).outcome();
    assert_eq!(status.code(), Some(1), "{log:?}");
    assert!(log.concat().contains("without reaching the end"), "{log:?}");
}
