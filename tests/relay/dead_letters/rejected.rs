//! Rows that cannot be delivered as they are, under each policy.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider::route::ERROR_CODE_HEADER;
use rdkafka::mocking::MockCluster;

use crate::delivery::idle::ALL;
use crate::stage::Stage;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::topic::Stored;
use support::{kafka, postgres, retention, topic};

/// Good rows around one of each kind that cannot go; every row has the key `k`.
fn write(stage: &Stage) {
    let sql = stage.sql();
    sql.run("ALTER TABLE outbox ALTER event_type DROP NOT NULL");
    let row = |event_type: &str, payload: &str| {
        sql.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', 'k', {event_type}, {payload})"
        ));
    };
    row("'A'", "'1'");
    row("NULL", "'2'");
    row("'A'", "'3'");
    row("'bad/topic'", "'4'");
    row("'A'", &format!("to_jsonb({LARGE})"));
    row("'A'", "'6'");
}

/// 20 kB that do not compress.
const LARGE: &str = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 625) AS n)";
const LARGE_BYTES: usize = 20_002;

fn values(records: &[Stored], topic: &str) -> Vec<String> {
    let records = records.iter().filter(|record| record.topic == topic);
    records.map(|record| String::from_utf8(record.value.clone().unwrap()).unwrap()).collect()
}

/// The brokers are slow, so that records are under way when the row is met.
#[test]
fn g8_a_row_too_large_to_be_held_stops_the_relay_after_what_came_before_it_where_the_policy_says_so()
 {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "frame");
    let oracle = stage.oracle();
    stage.insert("A", 10);
    stage.relay().run_once();
    mock.broker_round_trip_time(ALL, Duration::from_millis(200)).unwrap();
    stage.insert("A", 10);
    stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', 'k', 'A', to_jsonb(repeat(md5(random()::text), 500000))",
    );
    let relay = stage.relay().set("source.frame_max", "4MiB");
    let relay = relay.allow_log("cannot reach Kafka");
    let stopping = relay.clone().set("route.rejected", "stop").expect_log("source.frame_max");
    for _ in 0..2 {
        let status = stopping.start(&["run", "--output", "json"]).wait();
        assert_eq!(status.code(), Some(65));
    }
    assert_eq!(stage.records().len(), 20);
    relay.expect_log("became a dead letter").run_once();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

#[test]
fn g4_rejected_rows_become_dead_letters_and_the_rest_goes_on() {
    let broker = Broker::best();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "dead");
        let oracle = stage.oracle();
        let tap = stage.tap();
        write(&stage);
        let relay = stage.relay_at(&tap.address()).set("kafka.message_max_bytes", "10kB");
        relay.expect_log("became a dead letter").run_once();
        let verdict = stage.verdict(&oracle, &tap.statuses());
        verdict.assert_exactly_once();
        assert_eq!((verdict.committed, verdict.delivered), (6, 6));

        let records = stage.records();
        assert_eq!(values(&records, &stage.topic("A")), ["1", "3", "6"]);
        let letters = stage.topic("dead-letters");
        let codes = ["no_route", "invalid_topic", "too_large"];
        assert_letters(&records, &letters, &codes);
        let bodies = values(&records, &letters);
        assert_eq!(bodies[..2], ["2", "4"]);
        let note: serde_json::Value = serde_json::from_str(&bodies[2]).unwrap();
        assert_eq!(note["size"], LARGE_BYTES);
        assert_eq!(note["sha256"].as_str().unwrap().len(), 64);
    }
}

fn assert_letters(records: &[Stored], topic: &str, codes: &[&str]) {
    let letters: Vec<&Stored> = records.iter().filter(|record| record.topic == topic).collect();
    assert_eq!(letters.len(), codes.len(), "{letters:?}");
    for (letter, code) in letters.iter().zip(codes) {
        assert_eq!(letter.header("postrider-error-code"), Some(*code));
        assert!(!letter.header("postrider-error").unwrap().is_empty());
        assert!(letter.header("postrider-lsn").unwrap().contains('.'));
        assert_eq!(letter.header("aggregate_type"), Some("t"));
        assert!(letter.header("id").is_some());
        assert_eq!(letter.key.as_deref(), Some(b"k".as_slice()));
        let intended = letter.header("postrider-topic");
        assert_eq!(intended.is_none(), *code == "no_route", "{intended:?}");
    }
}

/// The limit of the topic is below the relay's own: the brokers refuse a whole batch, and the relay
/// finds out whose fault it was.
#[test]
fn g2_g4_a_row_that_the_brokers_refuse_becomes_a_dead_letter() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "refused");
    let oracle = stage.oracle();
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[("max.message.bytes", "10000")]);
    let tap = stage.tap();
    stage.insert("A", 50);
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('t', 'k', 'A', to_jsonb({LARGE}))"
    ));
    stage.insert("A", 50);
    let relay = stage.relay_at(&tap.address()).set("kafka.compression", "none");
    let relay = relay.expect_log("refused a batch").expect_log("became a dead letter");
    let (status, printed) = relay.start(&["--output", "json", "run", "--once"]).wait_printed();
    assert!(status.success(), "{status}");
    let summary: serde_json::Value = serde_json::from_str(&printed[0]).unwrap();
    // The large one was sent and refused before it was replaced.
    assert_eq!(summary["dead_letters"], 1, "{summary}");
    assert!(summary["confirmed"].as_u64().unwrap() >= 101, "{summary}");
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 101);
    let records = stage.records();
    let letters = values(&records, &stage.topic("dead-letters"));
    assert_eq!(letters.len(), 1, "{letters:?}");
    let letter = records.iter().find(|record| record.topic == stage.topic("dead-letters")).unwrap();
    assert_eq!(letter.header("postrider-error-code"), Some("too_large"));
    assert_eq!(letter.header("postrider-topic"), Some(stage.topic("A").as_str()));
}

/// One row that the topic finds too large and one that it takes for no record, and between them one
/// that tells when their transaction committed.
#[test]
fn g4_dead_letters_are_of_the_commits_time_and_outlive_retention() {
    let Some(kafka) = kafka::shared() else { return };
    let bootstrap = kafka.bootstrap();
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &bootstrap, "dated");
        let settings = [("max.message.bytes", "2000"), ("cleanup.policy", "compact")];
        topic::create(&bootstrap, &stage.topic("A"), 1, &settings);
        stage.sql().run(&format!(
            "ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL;
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES
                 ('t', 'large', 'A', to_jsonb(left({LARGE}, 6000))),
                 ('t', 'good', 'A', '1'), ('t', NULL, 'A', '2')"
        ));
        let relay = stage.relay().set("kafka.delivery", delivery).set("kafka.compression", "none");
        let relay = relay.expect_log("became a dead letter").allow_log("trying again");
        let relay = relay.allow_log("takes records of at most");
        relay.run_once();
        let records = stage.records();
        let good = records.iter().find(|one| one.key.as_deref() == Some(b"good")).unwrap();
        let committed_ms = good.timestamp_ms.unwrap();
        assert!((0..60_000).contains(&(retention::now_ms() - committed_ms)), "{committed_ms}");

        retention::wait_for_checks(&bootstrap, 3);
        let letters = topic::read(&bootstrap, &[stage.topic("dead-letters")]);
        let mut codes: Vec<_> = letters.iter().map(|one| one.header(ERROR_CODE_HEADER)).collect();
        codes.sort_unstable();
        // The session that made the first letter ended before it was acknowledged.
        codes.dedup();
        assert_eq!(codes, [Some("refused"), Some("too_large")], "{delivery}: {letters:?}");
        for letter in &letters {
            assert_eq!(letter.timestamp_ms, Some(committed_ms), "{delivery}");
        }

        let listed = relay.start(&["dead-letters", "list", "--since", "5m"]).outcome();
        assert_eq!(listed.stdout.lines().count(), 1 + letters.len(), "{}", listed.stdout);
        let repaired = stage.topic("repaired");
        topic::create(&bootstrap, &repaired, 1, &[]);
        let retry = ["dead-letters", "retry", "--code", "refused", "--to", &repaired, "--execute"];
        assert!(relay.start(&retry).outcome().status.success());
        retention::wait_for_checks(&bootstrap, 1);
        let again = topic::read(&bootstrap, &[repaired]);
        let times: Vec<_> = again.iter().map(|record| record.timestamp_ms).collect();
        assert_eq!(times, [Some(committed_ms)], "{delivery}");
    }
}

/// Rows of a hundred bytes in batches of up to 1 MB, for a topic that takes 20 kB: no row is at fault.
#[test]
fn g2_g4_a_topic_that_takes_smaller_batches_gets_smaller_ones() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "batches");
        let oracle = stage.oracle();
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[("max.message.bytes", "20000")]);
        let tap = stage.tap();
        stage.insert("A", 20_000);
        let relay = stage.relay_at(&tap.address()).set("kafka.delivery", delivery);
        let relay = relay.set("kafka.compression", "none").set("kafka.linger", "20ms");
        let relay = relay.expect_log("refused a batch").expect_log("accepts only smaller batches");
        let relay = relay.allow_log("takes records of at most");
        let (status, printed) = relay.start(&["--output", "json", "run", "--once"]).wait_printed();
        assert!(status.success(), "{status}");
        let summary: serde_json::Value = serde_json::from_str(&printed[0]).unwrap();
        assert_eq!(summary["dead_letters"], 0, "{delivery}: {summary}");
        let verdict = stage.verdict(&oracle, &tap.statuses());
        verdict.assert_at_least_once();
        assert_eq!(verdict.delivered, 20_000, "{delivery}");
    }
}

/// Each refusal ends a session, so a topic that refuses many records is not asked about each.
#[test]
fn g4_a_topic_that_refuses_row_after_row_costs_a_few_sessions() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "stream");
        let oracle = stage.oracle();
        for (name, limit) in [("A", "10000"), ("B", "1000000"), ("dead-letters", "1000000")] {
            let settings = [("max.message.bytes", limit)];
            topic::create(&kafka.bootstrap(), &stage.topic(name), 1, &settings);
        }
        let tap = stage.tap();
        let relay = stage.relay_at(&tap.address()).set("kafka.delivery", delivery);
        let relay = relay.expect_log("refused a batch").expect_log("became a dead letter");
        let relay = relay.allow_log("takes records of at most");
        let relay = relay.allow_log("accepts only smaller batches");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        running.wait_for_log("streaming");
        for _ in 0..200 {
            stage.sql().run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', 'k', 'A', to_jsonb({LARGE})), ('t', 'k', 'A', '1'), ('t', 'k', 'B', '2')"
            ));
        }
        stage.wait_acknowledged(stage.log_end());
        let restarts = face.count("postrider_restarts_total{reason=\"batch_refused\"}").unwrap();
        eprintln!("{delivery}: {restarts} sessions ended");
        assert!((1..=8).contains(&restarts), "{delivery}: {restarts} sessions for 200 refusals");
        running.stop();
        let verdict = stage.verdict(&oracle, &tap.statuses());
        verdict.assert_at_least_once();
        assert_eq!(verdict.delivered, 600, "{delivery}");
        let letters = stage.topic("dead-letters");
        let records = stage.records();
        let letters = records.iter().filter(|one| one.topic == letters);
        let rows: BTreeSet<_> = letters.map(|one| one.header("id").unwrap().to_owned()).collect();
        assert_eq!(rows.len(), 200, "{delivery}");
    }
}

/// A message outside of transactions has no commit time, and is recognised by its place.
#[test]
fn g4_a_refused_message_outside_of_transactions_holds_up_nobody() {
    let Some(kafka) = kafka::shared() else { return };
    let deliveries = ["at_least_once", "exactly_once"];
    // The time in the value is another one in each session.
    let cases =
        deliveries.map(|delivery| ["string", "cloudevents_structured"].map(|f| (delivery, f)));
    for (delivery, format) in cases.into_iter().flatten() {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "lone");
        topic::create(&kafka.bootstrap(), &stage.topic("S"), 1, &[("max.message.bytes", "2000")]);
        let relay = stage.relay().set("messages.prefixes", "outbox*").set("format.value", format);
        let relay = relay.set("kafka.delivery", delivery).set("kafka.compression", "none");
        stage.insert("A", 1);
        stage.sql().run(
            "SELECT pg_logical_emit_message(false, 'outbox', jsonb_build_object(
                'id', gen_random_uuid(), 'aggregate_type', 't', 'aggregate_id', 'k',
                'event_type', 'S', 'payload', repeat('x', 5000))::text)",
        );
        stage.insert("A", 5);
        let relay = relay.expect_log("became a dead letter").allow_log("refused a batch");
        relay.allow_log("takes records of at most").run_once();
        let records = stage.records();
        let code = |one: &&Stored| one.header(ERROR_CODE_HEADER) == Some("too_large");
        assert!(records.iter().any(|one| code(&one)), "{delivery} {format}: {records:?}");
        assert!(records.len() >= 7, "{delivery} {format}: {records:?}");
    }
}

#[test]
fn g1_g4_policy_stop_ends_with_65_and_keeps_the_row() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "stop");
    let oracle = stage.oracle();
    let tap = stage.tap();
    write(&stage);
    let relay = stage.relay_at(&tap.address());
    let stopping = relay.clone().set("route.rejected", "stop").expect_log("\"exit_code\":65");
    for _ in 0..2 {
        let status = stopping.start(&["--output", "json", "run"]).wait();
        assert_eq!(status.code(), Some(65));
    }
    // What came before was delivered and acknowledged the first time.
    assert_eq!(values(&stage.records(), &stage.topic("A")), ["1"]);
    assert_eq!(stage.records().len(), 1);
    // Once the operator has decided otherwise, everything is still there.
    relay.expect_log("became a dead letter").run_once();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 6);
}

#[test]
fn g4_policy_skip_leaves_rows_out_and_says_so() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "skip");
    write(&stage);
    let end = stage.log_end();
    let relay = stage.relay().set("route.rejected", "skip").set("kafka.message_max_bytes", "10kB");
    // The level that leaves out all but what tells of these rows, and where metrics are.
    let relay = relay.variable("RUST_LOG", "error,postrider::cli::run=info");
    let mut running = relay.expect_log("a row was skipped").run();
    let face = RelayHttp::of(&mut running);
    for code in ["no_route", "invalid_topic", "too_large"] {
        let line = running.wait_for_log("a row was skipped");
        assert!(line.contains(code), "{line}");
    }
    // Each has a line of its own, with the row's id, however many say the same.
    stage.insert("not a topic", 50);
    let ids = stage.sql().rows("SELECT id FROM outbox WHERE event_type = 'not a topic'");
    for _ in 0..ids.len() {
        let line = running.wait_for_log("a row was skipped");
        assert!(ids.iter().any(|id| line.contains(id[0].as_deref().unwrap())), "{line}");
    }
    let end = stage.log_end().max(end);
    stage.wait_acknowledged(end);
    face.wait_count("postrider_ignored_rows_total{operation=\"skipped\"}", 3 + 50);
    running.stop();
    assert_eq!(values(&stage.records(), &stage.topic("A")), ["1", "3", "6"]);
    assert_eq!(stage.records().len(), 3);
}
