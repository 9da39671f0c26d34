//! Brokers that do less than Apache Kafka's: each lack is refused by its name before the slot has moved, or costs
//! something that is told, and no row.

use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::stage::Stage;
use crate::trial::{DELIVERIES, TOPIC};
use support::fault::cluster::{LimitedKafka, start_limited};
use support::fault::limits::{
    ADD_PARTITIONS_TO_TXN, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, END_TXN, FETCH, GZIP,
    INIT_PRODUCER_ID, LZ4, Limits, PRODUCE, SNAPPY, UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT, ZSTD,
};
use support::postgres;
use support::relay::Relay;
use support::relay_http::RelayHttp;

/// One at a time: what it is limited to is the broker's.
fn limited(limits: Limits) -> Option<MutexGuard<'static, LimitedKafka>> {
    static SHARED: OnceLock<Option<Mutex<LimitedKafka>>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| start_limited().map(Mutex::new)).as_ref()?;
    let kafka = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    kafka.limit(limits);
    Some(kafka)
}

fn hidden(requests: &[i16]) -> Limits {
    Limits { hidden: requests.to_vec(), ..Limits::default() }
}

fn without_codecs(codecs: &[u8], error: i16) -> Limits {
    Limits { refused_codecs: Some((codecs.to_vec(), error)), ..Limits::default() }
}

/// An outbox with a slot, and a relay that reaches the brokers through their limits; topics were made past them.
fn scene(kafka: &LimitedKafka, delivery: &str) -> (Stage, Relay) {
    let stage = Stage::new(postgres::installed(), &kafka.kafka.bootstrap(), "limits");
    let relay = stage.relay().set("kafka.delivery", delivery);
    relay.prepare();
    let relay = relay.unprepared().set("kafka.brokers", &kafka.bootstrap());
    (stage, relay)
}

/// It ends with this code, these words, and a slot that has not moved.
fn assert_refused(limits: Limits, delivery: &str, (code, words): (&str, &str)) {
    let Some(kafka) = limited(limits) else { return };
    let (stage, relay) = scene(&kafka, delivery);
    stage.insert(TOPIC, 10);
    let before = stage.acknowledged();
    let outcome = relay.allow_log("").start(&["run", "--output", "json"]).outcome();
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(78), "{log}");
    let report = outcome.log.iter().find(|line| line.contains("\"errors\"")).expect("a report");
    assert!(report.contains(code) && report.contains(words), "{report}");
    assert_eq!(stage.acknowledged(), before);
    assert_eq!(stage.records().len(), 0);
}

#[test]
fn brokers_that_give_no_producer_id_are_refused_by_name() {
    let limits = || hidden(&[INIT_PRODUCER_ID]);
    assert_refused(limits(), "at_least_once", ("PR-K025", "no idempotent producer"));
    assert_refused(limits(), "exactly_once", ("PR-K033", "at_least_once"));
}

/// They give producer ids all the same, so that the client library would ask for ever.
#[test]
fn g6_brokers_without_transactions_are_refused_by_name() {
    let limits = hidden(&[ADD_PARTITIONS_TO_TXN, END_TXN]);
    assert_refused(limits, "exactly_once", ("PR-K033", "not offer AddPartitionsToTxn and EndTxn"));
    assert_refused(hidden(&[END_TXN]), "exactly_once", ("PR-K033", "not offer EndTxn"));
}

/// The same of a relay that has never run: it makes no slot.
#[test]
fn g6_no_slot_is_created_where_transactions_are_refused() {
    let Some(kafka) = limited(hidden(&[ADD_PARTITIONS_TO_TXN, END_TXN])) else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.kafka.bootstrap(), "limits_first");
    let relay = stage.relay().set("kafka.delivery", "exactly_once").creates_slot().unprepared();
    let relay = relay.set("kafka.brokers", &kafka.bootstrap()).allow_log("");
    let outcome = relay.start(&["run", "--output", "json"]).outcome();
    assert_eq!(outcome.status.code(), Some(78), "{:?}", outcome.log);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(stage.sql().value(slots), "0");
}

#[test]
fn brokers_without_transactions_serve_at_least_once() {
    let Some(kafka) = limited(hidden(&[ADD_PARTITIONS_TO_TXN, END_TXN])) else { return };
    let (stage, relay) = scene(&kafka, "at_least_once");
    let running = relay.run();
    stage.insert(TOPIC, 10);
    stage.wait_for_records(10);
    running.stop();
}

#[test]
fn g1_g2_g6_a_codec_that_is_refused_costs_a_session_and_no_row() {
    let both = [UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_COMPRESSION_TYPE];
    let all = [GZIP, SNAPPY, LZ4, ZSTD];
    for delivery in DELIVERIES {
        for (codecs, error, sessions) in [(&all[1..], both[0], 1), (&all[..], both[1], 2)] {
            let Some(kafka) = limited(without_codecs(codecs, error)) else { return };
            let (stage, relay) = scene(&kafka, delivery);
            let (oracle, tap) = (stage.oracle(), stage.tap());
            let relay = relay
                .set("source.url", &tap.address().url())
                .expect_log("refuse batches compressed with");
            let mut running = relay.run();
            let face = RelayHttp::of(&mut running);
            stage.insert(TOPIC, 500);
            stage.wait_acknowledged(stage.log_end());
            let changed = face.count("postrider_restarts_total{reason=\"codec_refused\"}");
            assert_eq!(changed, Some(sessions), "{delivery} {codecs:?}");
            running.stop();
            let verdict = stage.verdict(&oracle, &tap.statuses());
            match delivery {
                "exactly_once" => verdict.assert_exactly_once(),
                _ => verdict.assert_at_least_once(),
            }
            assert_eq!(verdict.committed, 500);
        }
    }
}

/// As Redpanda, which documents that it lacks those of KIP-890, and Apache Kafka before 3.7.
#[test]
fn g6_brokers_with_the_transactions_of_old_deliver_exactly_once() {
    let older =
        vec![(PRODUCE, 10), (INIT_PRODUCER_ID, 4), (ADD_PARTITIONS_TO_TXN, 3), (END_TXN, 3)];
    let Some(kafka) = limited(Limits { older, ..Limits::default() }) else { return };
    let (stage, relay) = scene(&kafka, "exactly_once");
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let running = relay.set("source.url", &tap.address().url()).run();
    stage.insert(TOPIC, 500);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_exactly_once();
    assert_eq!(verdict.committed, 500);
}

/// As Apache Kafka before 2.1: the client library sends such batches as they are, and says so in a line that is no
/// warning of its own.
#[test]
fn a_codec_newer_than_the_brokers_is_left_out_with_a_warning() {
    for delivery in DELIVERIES {
        let older = Limits { older: vec![(PRODUCE, 6), (FETCH, 9)], ..Limits::default() };
        let Some(kafka) = limited(older) else { return };
        let (stage, relay) = scene(&kafka, delivery);
        let relay = relay.set("kafka.compression", "zstd");
        let running = relay.expect_log("the brokers do not offer zstd").run();
        stage.insert(TOPIC, 10);
        stage.wait_for_records(10);
        running.stop();
    }
}

/// As Amazon MSK Serverless documents, which takes a policy when a topic is made, and no `segment.bytes`.
#[test]
fn g6_a_progress_topic_is_compacted_and_no_more_where_its_settings_are_refused() {
    let limits = Limits { refused_settings: vec!["segment.bytes"], ..Limits::default() };
    let Some(kafka) = limited(limits) else { return };
    let stage = Stage::migrated(postgres::installed(), &kafka.kafka.bootstrap(), "limits_progress");
    let relay = stage.relay().set("kafka.delivery", "exactly_once").unprepared();
    let relay = relay.set("kafka.brokers", &kafka.bootstrap());
    let progress = format!("postrider.progress.{}", stage.slot());
    let made = relay.start(&["setup", "--topics", "--output", "json"]).outcome();
    assert!(made.status.success(), "{made:?}");
    assert!(made.stdout.contains(&format!("\"topic `{progress}`\"")), "{}", made.stdout);
    assert!(made.log.join("\n").contains("cleanup.policy=compact alone"), "{made:?}");
    let oracle = stage.oracle();
    let running = relay.run();
    stage.insert(TOPIC, 50);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    // The same of a relay that finds none.
    let other = format!("{progress}.other");
    let adopt =
        relay.clone().set("progress.topic", &other).start(&["adopt", "--execute"]).outcome();
    assert!(adopt.status.success(), "{adopt:?}");
    assert!(adopt.log.join("\n").contains(&format!("created topic `{other}` with")), "{adopt:?}");
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// Azure Event Hubs and roles without rights on the cluster have neither.
#[test]
fn brokers_that_describe_nothing_are_taken_at_their_word() {
    for delivery in DELIVERIES {
        let Some(kafka) = limited(hidden(&[DESCRIBE_CLUSTER, DESCRIBE_CONFIGS])) else { return };
        let (stage, relay) = scene(&kafka, delivery);
        let running = relay.run();
        stage.insert(TOPIC, 10);
        stage.wait_for_records(10);
        running.stop();
    }
}
