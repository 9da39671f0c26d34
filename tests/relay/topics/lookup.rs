//! Topics as real brokers keep them: what is found, what is created, and what is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postrider::kafka::{
    Grade, KafkaSpec, Lineage, Progress, Purpose, Reader, ReaderError, ReaderSpec, SinkError,
    TopicsError, ensure_progress_topic, newest_progress, survey, write_progress,
};
use postrider::lsn::Lsn;
use postrider::pipeline::Mark;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::stage::Stage;
use support::broker::Broker;
use support::requests::{self, Ask};
use support::{kafka, postgres, topic, unique};

/// Kafka stores what all replicas have, where they are fewer than `min.insync.replicas`, since this version.
const IN_SYNC_BOUNDED: (u32, u32) = (3, 7);

fn spec(bootstrap: &str, progress: &str) -> KafkaSpec {
    KafkaSpec { progress_topic: progress.to_owned(), ..KafkaSpec::of_brokers(bootstrap) }
}

#[test]
fn a_progress_topic_that_is_missing_is_created_fit_for_it() {
    let Some(kafka) = kafka::shared() else { return };
    let spec = spec(&kafka.bootstrap(), &unique("progress"));
    for _ in 0..2 {
        let mut findings = ensure_progress_topic(&spec).unwrap();
        // What is said of brokers before 3.6 is not about the topic.
        findings.retain(|finding| finding.topic.is_some());
        assert!(findings.iter().all(|finding| finding.grade == Grade::Remark), "{findings:?}");
    }
}

#[test]
fn a_progress_topic_that_would_forget_is_refused_with_the_command_that_fixes_it() {
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
    // Newer versions store what the one replica has.
    let short = unique("short");
    topic::create(&kafka.bootstrap(), &short, 1, &[("min.insync.replicas", "2")]);
    let topics = [(name.clone(), Purpose::Rows), (short.clone(), Purpose::DeadLetters)];
    let findings = survey(&spec(&kafka.bootstrap(), "none"), &topics).unwrap();
    let of = |topic: &str| -> Vec<Grade> {
        let own = findings.iter().filter(|finding| finding.topic.as_deref() == Some(topic));
        own.map(|finding| finding.grade).collect()
    };
    assert_eq!(of(&name), [Grade::Warning, Grade::Warning, Grade::Remark], "{findings:?}");
    let grade = if kafka.version() >= IN_SYNC_BOUNDED { Grade::Remark } else { Grade::Unfit };
    assert_eq!(of(&short), [grade], "{findings:?}");
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
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
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

/// Records that are sent at a time.
const BURST: u64 = 20;

struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A relay that delivers exactly once adds two records in each transaction, and others share the topic.
#[test]
fn progress_is_read_while_others_write_without_a_pause() {
    let Some(kafka) = kafka::shared() else { return };
    let spec = spec(&kafka.bootstrap(), &unique("progress-busy"));
    ensure_progress_topic(&spec).unwrap();
    let progress = |slot: &str, end: u64| Progress {
        lineage: Lineage { slot: slot.to_owned(), ..Lineage::default() },
        mark: Mark::at(Lsn::new(end)),
        backfill: None,
    };
    let (quiet, busy) = (progress("quiet", 7), progress("busy", 1));
    let absent = progress("absent", 0).lineage.key();
    write_progress(&spec, &quiet).unwrap();
    write_progress(&spec, &busy).unwrap();
    let written = AtomicU64::new(1);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let producer: BaseProducer = topic::client(&kafka.bootstrap()).create().unwrap();
            for end in 2.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let record = progress("busy", end).record(&spec.progress_topic);
                let record = record.as_record();
                let (key, value) = (record.key.unwrap(), record.value.unwrap());
                let sent = BaseRecord::to(&spec.progress_topic).key(key).payload(value);
                producer.send(sent).unwrap();
                if end % BURST == 0 {
                    producer.flush(Duration::from_secs(30)).unwrap();
                    written.store(end, Ordering::Relaxed);
                }
            }
        });
        // Also if an assertion fails: the scope waits for the writer.
        let _ended = Raise(&is_done);
        for _ in 0..10 {
            let before = written.load(Ordering::Relaxed);
            let found = newest_progress(&spec, &busy.lineage.key()).unwrap().unwrap();
            assert!(found.mark.end.get() >= before, "{found:?}, after {before}");
            let found = newest_progress(&spec, &quiet.lineage.key());
            assert_eq!(found, Ok(Some(quiet.clone())));
            assert_eq!(newest_progress(&spec, &absent), Ok(None));
        }
    });
    assert!(written.into_inner() >= BURST, "it was written to meanwhile");
}

/// Settings of three brokers in three racks, of which a consumer reads from the one in its own.
fn racks() -> kafka::Options {
    let selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector".to_owned();
    let settings = vec![
        ("replica.selector.class", selector),
        ("broker.rack", "rack-{broker}".to_owned()),
        // A broker that stands still is one of the cluster for as long as this test takes.
        ("broker.session.timeout.ms", "60000".to_owned()),
    ];
    kafka::Options { brokers: 3, settings, ..kafka::Options::default() }
}

/// A follower may lag behind, and its end then passes for the topic's. Here the one in our rack stands
/// still: who goes by the rack gets nothing.
#[test]
fn g6_progress_is_read_from_the_leader_whatever_the_rack() {
    let Some(kafka) = kafka::start(&racks()) else { return };
    let mut spec = spec(&kafka.bootstrap(), "progress");
    ensure_progress_topic(&spec).unwrap();
    let lineage = Lineage { slot: "racks".to_owned(), ..Lineage::default() };
    let progress = Progress { lineage, mark: Mark::default(), backfill: None };
    write_progress(&spec, &progress).unwrap();
    let consumer: BaseConsumer = topic::client(&kafka.bootstrap()).create().unwrap();
    let metadata = consumer.fetch_metadata(Some("progress"), Duration::from_secs(10)).unwrap();
    let leader = metadata.topics()[0].partitions()[0].leader();
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    spec.properties.insert("client.rack".to_owned(), format!("rack-{follower}"));
    // Of the others one takes first connections.
    let addresses: Vec<String> = kafka.bootstrap().split(',').map(str::to_owned).collect();
    spec.brokers = vec![addresses[usize::try_from(leader - 1).unwrap()].clone()];
    let (patience, brief) = (Duration::from_secs(30), Duration::from_secs(5));
    let read = |what: ReaderSpec, limit| {
        Reader::open(&spec, what, patience).unwrap().collect(1, limit).map(|found| found.len())
    };
    let (follow, whole) = (ReaderSpec::following(&["progress"]), ReaderSpec::whole(&["progress"]));
    assert_eq!(read(follow.clone(), patience), Ok(1));
    kafka.freeze_broker(usize::try_from(follower - 1).unwrap());
    assert_eq!(newest_progress(&spec, &progress.lineage.key()), Ok(Some(progress)));
    assert_eq!(read(whole, patience), Ok(1), "a reading to the end is one to the leader's");
    let misled = read(follow, brief);
    assert!(matches!(misled, Err(ReaderError::Late { read: 0, .. })), "{misled:?}");
    kafka.resume_broker(usize::try_from(follower - 1).unwrap());
}

/// An answer that takes too long is none; it is not the one of brokers that cannot be asked.
#[test]
fn a_slow_answer_about_settings_is_waited_for_and_asked_for_again() {
    let Some((kafka, requests)) = requests::start(&kafka::Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "slow_answer");
    let name = stage.topic("A");
    topic::create(&kafka.bootstrap(), &name, 1, &[("max.message.bytes", "5000")]);
    let wanted = [(name.clone(), Purpose::Rows)];
    let spec = spec(&requests.bootstrap(), &unique("progress"));
    requests.hold(Ask::DescribeConfigs);
    let error = survey(&spec, &wanted).unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = ensure_progress_topic(&spec).unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let relay = stage.relay().set("kafka.brokers", &requests.bootstrap());
    let mut running = relay.allow_log("").run();
    running.wait_for_log("\"streaming\"");
    stage.insert("A", 10);
    stage.wait_for_records(10);
    // One that was not answered, and the one that follows it.
    requests.wait_for(2, Ask::DescribeConfigs);
    assert!(!running.has_ended());
    requests.pass();
    let told = running.wait_for_log("takes records of at most 5000 bytes");
    assert!(told.contains(&name), "{told}");
    running.stop();
    let found = survey(&spec, &wanted).unwrap();
    assert!(found.iter().any(|one| one.to_string().contains("5000 bytes")), "{found:?}");
}

/// Delivered exactly once, nothing is sent before the progress topic is known to keep it.
#[test]
fn g6_a_slow_answer_about_the_progress_topic_lets_no_unfit_one_pass() {
    let Some((kafka, requests)) = requests::start(&kafka::Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "slow_progress");
    let name = unique("unfit-progress");
    topic::create(&kafka.bootstrap(), &name, 1, &[]);
    let relay = stage.relay().set("kafka.brokers", &requests.bootstrap()).unprepared();
    let relay = relay.set("kafka.delivery", "exactly_once").set("progress.topic", &name);
    stage.insert("A", 1);
    requests.hold(Ask::DescribeConfigs);
    let mut running = relay.set("retry.max", "500ms").run();
    running.wait_for_log("trying again");
    running.wait_for_log("trying again");
    requests.pass();
    let outcome = running.outcome();
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(78), "{log}");
    assert!(log.contains("PR-K044") && !log.contains("\"streaming\""), "{log}");
    assert_eq!(stage.records(), []);
}
