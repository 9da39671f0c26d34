//! A dead-letter topic that takes nothing: the relay ends, and the slot keeps the row.

use std::collections::BTreeSet;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Answer};

use crate::dead_letters::slow_clock::{BEHIND, slow_clock};
use crate::stage::Stage;
use support::relay::Relay;
use support::status_log::StatusLog;
use support::{kafka, postgres, topic};

/// Good rows around one that can go nowhere.
fn write(stage: &Stage) {
    stage.insert("A", 3);
    stage.insert("not a topic", 1);
    stage.insert("A", 3);
}

/// The relay ends with `exit` and one error, as often as it is started.
fn assert_stops(relay: &Relay, exit: i32, words: &[&str]) {
    let relay = relay.clone().expect_log(&format!("\"exit_code\":{exit}"));
    for _ in 0..2 {
        let mut running = relay.start(&["--output", "json", "run"]);
        let error = running.wait_for_log("exit_code");
        for words in words {
            assert!(error.contains(words), "no `{words}` in: {error}");
        }
        assert_eq!(running.wait().code(), Some(exit));
    }
}

#[test]
fn g1_g4_a_dead_letter_topic_nobody_created_stops_the_relay_with_the_slot_kept() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "letterless");
    let (oracle, tap) = (stage.oracle(), stage.tap());
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
    write(&stage);
    let letters = stage.topic("dead-letters");
    // It is looked at beside, and told of before a row needs it.
    let relay = stage.relay_at(&tap.address()).allow_log(&letters);
    let words = ["PR-K005", "dead letters cannot be stored", &letters, "kafka-topics.sh"];
    assert_stops(&relay, 69, &words);
    // What came before was delivered and acknowledged the first time.
    assert_eq!(stage.records().len(), 3);
    topic::create(&kafka.bootstrap(), &letters, 1, &[]);
    relay.expect_log("became a dead letter").run_once();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 7);
}

#[test]
fn g1_g4_a_dead_letter_topic_we_may_not_write_to_stops_the_relay_with_the_slot_kept() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "barred");
    let oracle = stage.oracle();
    let letters = stage.topic("dead-letters");
    mock.create_topic(&letters, 1, 1).unwrap();
    mock.topic_error(&letters, Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    write(&stage);
    // Not through the tap, which asks for every topic as well.
    let relay = stage.relay().allow_log(&letters);
    let words = ["PR-K006", "dead letters cannot be stored", &letters, "kafka-acls.sh"];
    assert_stops(&relay, 77, &words);
    mock.topic_error(&letters, Answer::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    assert_eq!(stage.records().len(), 3);
    relay.expect_log("became a dead letter").run_once();
    let verdict = stage.verdict(&oracle, &[]);
    verdict.assert_exactly_once();
    assert_eq!(verdict.delivered, 7);
}

/// The dead letter is alone in its batch when the brokers refuse it, and a dead letter has no dead letter.
#[test]
fn g1_g4_a_dead_letter_topic_that_takes_no_such_record_stops_the_relay_with_the_slot_kept() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "narrow");
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let letters = stage.topic("dead-letters");
    topic::create(&kafka.bootstrap(), &letters, 1, &[("max.message.bytes", "100")]);
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
    stage.insert("A", 3);
    let before = stage.sql().value("SELECT string_agg(id::text, ' ') FROM outbox");
    stage.insert("not a topic", 1);
    stage.insert("A", 3);
    let relay = stage.relay_at(&tap.address()).set("kafka.compression", "none");
    let relay = relay.expect_log("became a dead letter").allow_log(&letters);
    assert_stops(&relay, 78, &["PR-R005", &letters, "max.message.bytes"]);
    relay.set("dead_letters.topic", &stage.topic("wider")).run_once();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 7);
    let again = verdict.duplicated.iter().find(|id| before.contains(*id));
    assert_eq!(again, None, "what came before the letter was acknowledged");
}

/// As brokers whose clock disagrees with Postgres's: a row that cannot be delivered holds up nobody, and its
/// letter is stored without a time of its own.
#[test]
fn g4_a_dead_letter_topic_that_refuses_the_commits_time_gets_letters_without_one() {
    let Some(kafka) = kafka::shared() else { return };
    for (delivery, rows) in [("at_least_once", 9), ("exactly_once", 9)] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "untimed");
        let oracle = stage.oracle();
        let clock = slow_clock(&stage.database.address());
        let behind = clock.address(&stage.database.address());
        let tap = StatusLog::start(&behind, stage.bootstrap(), &stage.topic(""));
        let letters = stage.topic("dead-letters");
        // Kafka's own markers of a transaction's end are younger, however slow the machine is.
        let limit_ms = (BEHIND / 2).as_millis().to_string();
        let strict = ("message.timestamp.before.max.ms", limit_ms.as_str());
        topic::create(&kafka.bootstrap(), &letters, 1, &[strict]);
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
        stage.insert("A", 3);
        stage.insert("not a topic", rows);
        stage.insert("A", 3);
        let relay = stage.relay_at(&tap.address()).set("kafka.delivery", delivery);
        let relay = relay.expect_log("became a dead letter").allow_log(&letters);
        relay.allow_log("trying again").run_once();
        let stored = topic::read(&kafka.bootstrap(), &[letters]);
        let timed = stored.iter().filter(|letter| letter.timestamp_ms.is_some_and(|ms| ms > 0));
        let distinct: BTreeSet<_> = stored.iter().map(|letter| letter.header("id")).collect();
        assert_eq!((distinct.len(), timed.count()), (rows, 0), "{delivery}");
        assert!(delivery == "at_least_once" || stored.len() == rows, "{}", stored.len());
        assert!(stored.iter().all(|letter| letter.header("postrider-commit-timestamp").is_some()));
        let verdict = stage.verdict(&oracle, &tap.statuses());
        verdict.assert_at_least_once();
        assert_eq!(verdict.delivered, 6 + rows);
    }
}

/// A rule of the brokers is nothing that passes: the relay does not try for ever, with all rows behind it.
#[test]
fn g1_g4_a_dead_letter_topic_that_takes_nothing_by_rule_stops_the_relay_with_the_slot_kept() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ruled");
    stage.insert("not a topic", 1);
    let rule = Answer::RD_KAFKA_RESP_ERR_POLICY_VIOLATION;
    mock.request_errors(RDKafkaApiKey::Produce, &[rule; 50]);
    let letters = stage.topic("dead-letters");
    let relay = stage.relay().allow_log("became a dead letter");
    assert_stops(&relay, 78, &["PR-R005", &letters, "name another one in dead_letters.topic"]);
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    relay.run_once();
    assert_eq!(stage.records().len(), 1);
}
