//! Brokers and topics that lose or refuse records, and those that do not answer.

use std::time::{Duration, Instant};

use super::Report;
use crate::stage::Stage;
use support::kafka::{self, ALLOWED_USER};
use support::wait::wait_until;
use support::{postgres, topic};

#[test]
fn each_topic_that_harms_has_its_finding() {
    let Some(kafka) = kafka::strict() else { return };
    let plain = kafka.bootstrap();
    let stage = Stage::new(postgres::installed(), &plain, "doctor_topics");
    stage.insert("A", 3);
    let relay = || {
        stage
            .relay()
            .set("kafka.delivery", "exactly_once")
            .set("progress.topic", &stage.topic("progress"))
    };
    let report = Report::of(&relay());
    report.demands(
        "topic.exists",
        "fail",
        &format!("postrider setup --topics={}", stage.topic("A")),
    );
    report.demands("dead_letters.topic", "warn", "postrider setup --topics");
    topic::create(&plain, &stage.topic("A"), 1, &[]);
    topic::create(&plain, &stage.topic("dead-letters"), 1, &[]);
    let report = Report::of(&relay());
    for id in [
        "topic.exists",
        "topic.settings",
        "dead_letters.topic",
        "progress.topic",
        "kafka.listeners",
    ] {
        assert_eq!(report.status(id), "pass", "{id}: {:#}", report.find(id));
    }
    topic::alter(&plain, &stage.topic("A"), &[("max.message.bytes", "1000")]);
    Report::of(&relay()).demands("topic.settings", "warn", "max.message.bytes=1000000");
    topic::create(&plain, &stage.topic("progress"), 3, &[]);
    // Not every broker knows a new topic at once.
    wait_until("the topic to be known", || Report::of(&relay()).status("progress.topic") == "fail");
    Report::of(&relay()).demands("progress.topic", "fail", "progress.topic");
}

#[test]
fn brokers_that_do_not_let_us_in_are_told() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "doctor_kafka_login");
    let relay = stage.relay().log_in(&kafka.sasl_bootstrap(), ALLOWED_USER, "wrong");
    let report = Report::of(&relay);
    assert_eq!(report.status("kafka.reachable"), "fail");
    assert_eq!(report.find("kafka.reachable")["code"], "PR-K003");
    assert_eq!(report.status("postgres.reachable"), "pass");
}

/// Addresses that never answer, for both.
#[test]
fn the_answer_comes_though_nothing_answers() {
    let stage = Stage::migrated(postgres::installed(), "192.0.2.1:9092", "doctor_silence");
    let relay = stage.relay().set("source.url", "postgres://a@192.0.2.1:5432/x");
    let begun = Instant::now();
    let report = Report::of(&relay);
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    assert_eq!(report.status("postgres.reachable"), "fail");
    assert_eq!(report.status("kafka.reachable"), "fail");
}
