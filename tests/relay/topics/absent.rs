//! Topics that rows choose and that are not to be had, under each policy.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::types::RDKafkaRespErr as Answer;

use crate::stage::Stage;
use support::relay::{Relay, Running};
use support::relay_http::RelayHttp;
use support::wait::stays;
use support::{kafka, postgres, topic, wait_for};

const MODES: [&str; 2] = ["at_least_once", "exactly_once"];

/// Topics that nobody created, and as many rows of each kind.
const NAMES: usize = 40;

/// Rows of a topic that is there, each followed by one of a topic that is not.
fn write(stage: &Stage, missing: &str) {
    let sql = stage.sql();
    for number in 0..NAMES {
        for event_type in ["A".to_owned(), format!("{missing}-{number}")] {
            sql.run(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('t', 'k', '{event_type}', to_jsonb({number}))"
            ));
        }
    }
}

fn count(stage: &Stage, name: &str) -> usize {
    let wanted = stage.topic(name);
    stage.records().iter().filter(|record| record.topic == wanted).count()
}

fn letters(stage: &Stage, code: &str) -> usize {
    let (topic, records) = (stage.topic("dead-letters"), stage.records());
    let of = |code: &str| {
        let letters = records.iter().filter(|record| record.topic == topic);
        letters.filter(|letter| letter.header("postrider-error-code") == Some(code)).count()
    };
    of(code)
}

fn relay(stage: &Stage, mode: &str) -> Relay {
    stage.relay().set("kafka.delivery", mode)
}

/// The lines of the log that say that a session ended.
fn restarts(face: &RelayHttp) -> f64 {
    let (_, page) = face.get("/metrics");
    let lines = page.lines().filter(|line| line.starts_with("postrider_restarts_total"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn topics_detail(face: &RelayHttp) -> String {
    let (_, health) = face.probe("/readyz");
    let checks = health["checks"].as_array().cloned().unwrap_or_default();
    let topics = checks.into_iter().find(|check| check["name"] == "topics");
    topics.map(|check| check["detail"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[test]
fn g2_g4_topics_that_nobody_created_hold_up_no_other() {
    let Some(kafka) = kafka::strict() else { return };
    for mode in MODES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "absent");
        let oracle = stage.oracle();
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
        topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &[]);
        let relay = relay(&stage, mode).expect_log("kafka-topics.sh").expect_log("dead letter");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        let begun = Instant::now();
        write(&stage, "nobody");
        wait_for("rows of the topic that is there", || (count(&stage, "A") == NAMES).then_some(()));
        let took = begun.elapsed();
        wait_for("dead letters", || (letters(&stage, "missing_topic") == NAMES).then_some(()));
        eprintln!("{mode}: {NAMES} topics missing among {NAMES} rows: all delivered in {took:?}");
        assert!(restarts(&face) == 0.0, "sessions were repeated");
        let detail = face.wait_ready(200).to_string();
        assert!(
            detail.contains("does not exist") && detail.contains("kafka-topics.sh"),
            "{detail}"
        );
        comes_late(&stage, &mut running);
        running.stop();
        let verdict = stage.verdict(&oracle, &[]);
        verdict.assert_exactly_once();
    }
}

/// A topic that was missing is used within seconds of its creation.
fn comes_late(stage: &Stage, running: &mut Running) {
    topic::create(stage.bootstrap(), &stage.topic("nobody-3"), 1, &[]);
    running.wait_for_log("the topic can be used");
    stage.insert("nobody-3", 2);
    wait_for("rows of the late topic", || (count(stage, "nobody-3") == 2).then_some(()));
}

/// Whoever creates a topic writes its first row once Kafka says that the topic is there, which is before
/// every broker knows of it.
#[test]
fn g2_g4_a_row_written_as_soon_as_its_topic_is_created_is_delivered() {
    let options = kafka::Options { brokers: 3, auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    for mode in MODES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "fresh");
        let oracle = stage.oracle();
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 1, &[]);
        }
        let mut running = relay(&stage, mode).run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        stage.insert("A", 1);
        for number in 0..NAMES {
            let name = format!("fresh-{number}");
            topic::create_only(&kafka.bootstrap(), &stage.topic(&name), 1, &[]);
            stage.insert(&name, 1);
        }
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        assert_eq!(letters(&stage, "missing_topic"), 0, "{mode}");
        let verdict = stage.verdict(&oracle, &[]);
        verdict.assert_exactly_once();
        assert_eq!(verdict.delivered, NAMES + 1);
    }
}

#[test]
fn g4_topics_that_are_forbidden_hold_up_no_other() {
    for mode in MODES {
        let mock = MockCluster::new(1).unwrap();
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "barred");
        let forbidden = Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        for number in 0..NAMES {
            let name = stage.topic(&format!("secret-{number}"));
            mock.create_topic(&name, 1, 1).unwrap();
            mock.topic_error(&name, forbidden).unwrap();
        }
        let relay = relay(&stage, mode).expect_log("kafka-acls.sh").expect_log("dead letter");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        write(&stage, "secret");
        face.wait_count("postrider_rejections_total{reason=\"forbidden_topic\"}", NAMES as u64);
        wait_for("ordinary rows", || {
            let (_, page) = face.get("/metrics");
            let confirmed = format!("postrider_records_confirmed_total {}", 2 * NAMES);
            page.contains(&confirmed).then_some(())
        });
        assert!(restarts(&face) == 0.0, "sessions were repeated");
        // The brokers think better of it.
        mock.topic_error(&stage.topic("secret-0"), Answer::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
        running.wait_for_log("the topic can be used");
        running.stop();
    }
}

/// The brokers show the topic, and deny every record for it.
#[test]
fn g4_a_topic_that_may_be_seen_but_not_written_to_costs_one_session() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "unwritable");
    let relay = stage.relay().expect_log("not authorised").expect_log("dead letter");
    let mut running = relay.allow_log("forbidden to us").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 10);
    face.wait_count("postrider_records_confirmed_total", 10);
    let denied = Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.request_errors(rdkafka::types::RDKafkaApiKey::Produce, &[denied]);
    stage.insert("B", 1);
    face.wait_count("postrider_rejections_total{reason=\"forbidden_topic\"}", 1);
    stage.insert("B", 5);
    stage.insert("A", 5);
    face.wait_count("postrider_records_confirmed_total", 21);
    assert!(restarts(&face) <= 1.0, "{}", restarts(&face));
    running.stop();
}

#[test]
fn g2_a_topic_is_waited_for_where_that_is_wanted_and_probes_say_so() {
    let Some(kafka) = kafka::strict() else { return };
    for mode in MODES {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "awaited");
        let oracle = stage.oracle();
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
        let usual = relay(&stage, mode).allow_log("dead-letters` does not exist");
        let relay = usual.clone().set("route.missing_topic", "wait").expect_log("its rows wait");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        stage.insert("A", 3);
        stage.insert("late", 2);
        stage.insert("A", 3);
        running.wait_for_log("its rows wait");
        face.wait_ready(503);
        // It does not flap, and no session is repeated.
        let long = Duration::from_secs(8);
        stays("/readyz answers 503", long, || face.probe("/readyz").0 == 503);
        let detail = topics_detail(&face);
        assert!(detail.contains("late` does not exist, rows wait"), "{detail}");
        assert!(restarts(&face) == 0.0, "sessions were repeated");
        // Nothing is unconfirmed, so that there is nothing to wait for.
        let begun = Instant::now();
        running.stop();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        topic::create(&kafka.bootstrap(), &stage.topic("late"), 1, &[]);
        usual.run_once();
        assert_eq!(count(&stage, "late"), 2);
        stage.verdict(&oracle, &[]).assert_exactly_once();
    }
}

#[test]
fn a_topic_is_created_as_the_first_rule_that_fits_its_name_says() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "created");
    topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 1, &[]);
    stage.insert("wide", 3);
    stage.insert("typo", 1);
    let rules = format!("{}*: partitions=5 cleanup.policy=compact", stage.topic("w"));
    let relay =
        stage.relay().set("route.missing_topic", "create").set("route.create_topics", &rules);
    relay.expect_log("no rule of route.create_topics").allow_log("dead letter").run_once();
    assert_eq!((count(&stage, "wide"), letters(&stage, "missing_topic")), (3, 1));
    let consumer: rdkafka::consumer::BaseConsumer =
        topic::client(&kafka.bootstrap()).create().unwrap();
    assert_eq!(topic::ends(&consumer, &stage.topic("wide")).len(), 5);
}
