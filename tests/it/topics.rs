//! Topics as real brokers keep them: what is found, what is created, and what is refused.

use postrider::kafka::{
    Grade, KafkaSpec, Purpose, SinkError, TopicsError, ensure_progress_topic, newest_progress,
    survey,
};
use rdkafka::mocking::MockCluster;

use crate::support::broker::Broker;
use crate::support::{kafka, topic, unique};

fn spec(bootstrap: &str, progress: &str) -> KafkaSpec {
    KafkaSpec { progress_topic: progress.to_owned(), ..KafkaSpec::of_brokers(bootstrap) }
}

#[test]
fn a_progress_topic_that_is_missing_is_created_fit_for_it() {
    let Some(kafka) = kafka::shared() else { return };
    let spec = spec(&kafka.bootstrap(), &unique("progress"));
    for _ in 0..2 {
        let findings = ensure_progress_topic(&spec).unwrap();
        assert!(findings.iter().all(|finding| finding.grade == Grade::Remark), "{findings:?}");
    }
}

#[test]
fn a_progress_topic_that_would_forget_is_refused_with_the_command_that_mends_it() {
    let Some(kafka) = kafka::shared() else { return };
    let compact = [("cleanup.policy", "compact")];
    let cases = [
        (3, compact.as_slice(), "set progress.topic"),
        (1, &[], "--add-config cleanup.policy=compact"),
    ];
    for (partitions, settings, remedy) in cases {
        let name = unique("unfit");
        topic::create(&kafka.bootstrap(), &name, partitions, settings);
        let error = ensure_progress_topic(&spec(&kafka.bootstrap(), &name)).unwrap_err();
        assert!(matches!(error, TopicsError::Unfit(_)) && error.to_string().contains(&name));
        assert!(error.hint().unwrap().contains(remedy), "{error:?}");
        assert!(!error.is_transient() && !error.is_permission());
    }
}

#[test]
fn what_topics_would_lose_or_refuse_is_found() {
    let Some(kafka) = kafka::shared() else { return };
    let name = unique("frail");
    let settings = [("max.message.bytes", "5000"), ("unclean.leader.election.enable", "true")];
    topic::create(&kafka.bootstrap(), &name, 2, &settings);
    let stuck = unique("stuck");
    topic::create(&kafka.bootstrap(), &stuck, 1, &[("min.insync.replicas", "2")]);
    let topics = [(name.clone(), Purpose::Rows), (stuck.clone(), Purpose::DeadLetters)];
    let findings = survey(&spec(&kafka.bootstrap(), "none"), &topics).unwrap();
    let of = |topic: &str| -> Vec<Grade> {
        let own = findings.iter().filter(|finding| finding.topic.as_deref() == Some(topic));
        own.map(|finding| finding.grade).collect()
    };
    assert_eq!(of(&name), [Grade::Warning, Grade::Warning, Grade::Remark], "{findings:?}");
    assert_eq!(of(&stuck), [Grade::Unfit], "{findings:?}");
}

#[test]
fn a_topic_that_is_missing_stays_missing_when_it_is_looked_at() {
    let Some(kafka) = kafka::shared() else { return };
    let name = unique("absent");
    let topics = [(name.clone(), Purpose::DeadLetters)];
    let findings = survey(&spec(&kafka.bootstrap(), "none"), &topics).unwrap();
    assert_eq!(findings, [], "these brokers create topics");
    assert!(topic::names(&kafka.bootstrap(), &name).is_empty());
    let Some(strict) = kafka::strict() else { return };
    let findings = survey(&spec(&strict.bootstrap(), "none"), &topics).unwrap();
    assert!(findings[0].to_string().contains("does not exist"), "{findings:?}");
}

#[test]
fn who_may_nothing_is_told_so() {
    let Some(strict) = kafka::strict() else { return };
    let mut spec = spec(&strict.sasl_bootstrap(), &unique("forbidden"));
    for (name, value) in [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", kafka::DENIED_USER),
        ("sasl.password", kafka::PASSWORD),
    ] {
        spec.properties.insert(name.to_owned(), value.to_owned());
    }
    let error = ensure_progress_topic(&spec).unwrap_err();
    assert!(error.is_permission() && error.hint().is_some(), "{error:?}");
    spec.properties.insert("sasl.password".to_owned(), "wrong".to_owned());
    let error = ensure_progress_topic(&spec).unwrap_err();
    assert!(matches!(error, TopicsError::NoEntry(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
}

/// librdkafka's mock cluster has no admin API: that is known at once, and nothing is said.
#[test]
fn brokers_that_cannot_be_asked_are_left_alone() {
    let Broker::Embedded(mock) = Broker::embedded() else { unreachable!() };
    mock.create_topic("orders", 3, 1).unwrap();
    let spec = spec(&mock.bootstrap_servers(), "progress");
    let begun = std::time::Instant::now();
    let answer = survey(&spec, &[("orders".to_owned(), Purpose::Rows)]);
    assert_eq!(answer, Err(TopicsError::Unsupported));
    assert_eq!(ensure_progress_topic(&spec), Ok(Vec::new()));
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}

/// The client library speaks of an unknown partition in both cases.
#[test]
fn g6_progress_that_has_no_leader_is_not_taken_for_none() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("progress", 1, 1).unwrap();
    let spec = spec(&mock.bootstrap_servers(), "progress");
    mock.partition_leader("progress", 0, None).unwrap();
    let error = newest_progress(&spec, "key").unwrap_err();
    assert!(matches!(error, SinkError::ProgressUnread { .. }), "{error}");
    mock.partition_leader("progress", 0, Some(1)).unwrap();
    assert_eq!(newest_progress(&spec, "key"), Ok(None));
}
