//! Markers outlive the topics' messages as Kafka has them, not as an argument says.

use super::FILL;
use crate::services::stage::Stage;
use support::{kafka, topic};

const DAY_MS: u64 = 24 * 3600 * 1000;

#[test]
fn a_topic_that_keeps_messages_longer_than_the_markers_is_refused_and_nothing_is_deleted() {
    let Some(kafka) = kafka::shared() else { return };
    let (stage, brokers) = (Stage::set(), kafka.bootstrap());
    stage.run(FILL);
    topic::create(&brokers, "maintain-default", 1, &[]);
    topic::create(&brokers, "maintain-month", 1, &[("retention.ms", &(30 * DAY_MS).to_string())]);
    topic::create(&brokers, "maintain-endless", 1, &[("retention.ms", "-1")]);
    topic::create(&brokers, "maintain-compact", 1, &[("cleanup.policy", "compact")]);
    let maintain = |topics: &[&str], args: &[&str]| {
        let topics: Vec<&str> = topics.iter().flat_map(|topic| ["--topic", topic]).collect();
        let common = ["--table", "processed_messages", "--brokers", &brokers];
        stage.maintain(&[&common[..], &topics, args].concat())
    };
    for (topic, words) in [
        ("maintain-month", "keeps records for up to 888 hours"),
        ("maintain-endless", "keeps records for ever"),
        ("maintain-compact", "keeps records for ever"),
    ] {
        let (status, out, stderr) = maintain(&["maintain-default", topic], &[]);
        assert_eq!(status, 2, "{stderr}");
        assert!(out.contains(&format!("\"left_alone\":\"the topic `{topic}` ")), "{out}");
        assert!(stderr.contains(&format!("the topic `{topic}` {words}")), "{stderr}");
        assert!(stderr.contains("raise --topic-retention"), "{stderr}");
    }
    let (status, _, stderr) = maintain(&["maintain-absent"], &[]);
    assert_eq!(status, 78, "{stderr}");
    assert!(stderr.contains("`maintain-absent`"), "{stderr}");
    assert_eq!(stage.count("SELECT count(*) FROM processed_messages"), 200);
    // Keys of requests have nothing to do with topics.
    let (status, out, stderr) = maintain(&["maintain-month"], &["--table", "idempotency_keys"]);
    assert_eq!(status, 2, "{stderr}");
    assert!(out.contains("\"idempotency_keys\",\"deleted\":32"), "{out}");

    let longer = ["--topic-retention", "30d", "--older-than", "90d"];
    let (status, _, stderr) = maintain(&["maintain-month"], &longer);
    assert_eq!(status, 0, "{stderr}");
    let (status, _, stderr) = maintain(&["maintain-default"], &[]);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(stage.count("SELECT count(*) FROM processed_messages"), 168);
}

#[test]
fn without_kafka_a_run_says_that_the_retention_is_taken_from_its_arguments() {
    let stage = Stage::set();
    let (status, _, stderr) = stage.maintain(&["--table", "processed_messages"]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("is taken from --topic-retention"), "{stderr}");
    let (_, _, stderr) = stage.maintain(&["--table", "outbox", "--table", "idempotency_keys"]);
    assert!(!stderr.contains("--topic-retention"), "{stderr}");
}
