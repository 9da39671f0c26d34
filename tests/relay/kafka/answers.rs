//! What brokers answer, or do not.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::delivery::idle::impatient;
use crate::trial::{DELIVERIES, TOPIC, Trial, trials};
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::wait::{let_pass, stays};
use support::{kafka, topic, unique, wait_for};

/// An embedded broker, and a trial before it. It shows what no transaction has committed, so that
/// exactly-once delivery is judged on real brokers only.
fn scripted(stem: &str) -> (MockCluster<'static, DefaultProducerContext>, Trial) {
    let mock = MockCluster::new(1).unwrap();
    let trial = Trial::blind(&mock.bootstrap_servers(), stem, "at_least_once");
    (mock, trial)
}

/// Delivers the first rows, after which the producer is known to every partition.
fn introduce(trial: &Trial, relay: &Relay) -> support::relay::Running {
    let running = relay.run();
    trial.stage.insert(TOPIC, 10);
    trial.wait_settled();
    running
}

fn admin(bootstrap: &str) -> AdminClient<DefaultClientContext> {
    topic::client(bootstrap).create().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn row_52_too_few_replicas_hold_back_the_acknowledgement() {
    let (mock, trial) = scripted("replicas");
    let running = introduce(&trial, &trial.relay().allow_log("roker"));
    let refusals = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ];
    mock.request_errors(RDKafkaApiKey::Produce, &refusals.repeat(200));
    trial.stage.insert(TOPIC, 10);
    let end = trial.oracle.committed()[1].end_lsn;
    let refused = Duration::from_secs(2);
    stays("nothing is acknowledged", refused, || trial.stage.acknowledged() < end);
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    trial.wait_settled();
    running.stop();
    assert_eq!(trial.assert_kept_unseen().delivered, 20);
}

#[test]
fn row_54_a_topic_deleted_while_running_is_taken_up_again() {
    let Some(kafka) = kafka::strict() else { return };
    for delivery in DELIVERIES {
        let trial = Trial::blind(&kafka.bootstrap(), "deleted", delivery);
        trial.create_topics(&[TOPIC, "B", "dead-letters"]);
        if delivery == "exactly_once" {
            let progress = format!("postrider.progress.{}", trial.stage.slot());
            topic::create(&kafka.bootstrap(), &progress, 1, &[("cleanup.policy", "compact")]);
        }
        let name = trial.stage.topic("B");
        let relay = trial.relay().set("route.missing_topic", "wait");
        let running = relay.allow_log("").run();
        trial.stage.insert(TOPIC, 10);
        trial.stage.insert("B", 10);
        trial.wait_settled();
        let deleted = admin(&kafka.bootstrap());
        let outcome = runtime().block_on(deleted.delete_topics(&[&name], &AdminOptions::new()));
        assert!(outcome.unwrap().iter().all(Result::is_ok));
        trial.stage.insert("B", 10);
        trial.stage.insert(TOPIC, 10);
        let gone = Duration::from_secs(4);
        let end = trial.oracle.committed()[2].end_lsn;
        stays("nothing is acknowledged", gone, || trial.stage.acknowledged() < end);
        trial.create_topics(&["B"]);
        trial.wait_settled();
        running.stop();
        let of = |name: &str| {
            let name = trial.stage.topic(name);
            let mut ids: Vec<_> = topic::read(&kafka.bootstrap(), &[name])
                .iter()
                .map(|record| record.header("id").unwrap().to_owned())
                .collect();
            ids.sort();
            if delivery == "at_least_once" {
                ids.dedup();
            }
            ids.len()
        };
        assert_eq!((of(TOPIC), of("B")), (20, 10), "{delivery}");
    }
}

#[test]
fn row_59_a_coordinator_that_loads_is_waited_for() {
    let loading = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
    ];
    let busy = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS; 3];
    for delivery in DELIVERIES {
        let mock = MockCluster::new(1).unwrap();
        mock.request_errors(RDKafkaApiKey::InitProducerId, &loading);
        mock.request_errors(RDKafkaApiKey::AddPartitionsToTxn, &busy);
        mock.request_errors(RDKafkaApiKey::EndTxn, &loading[..1]);
        let trial = Trial::blind(&mock.bootstrap_servers(), "loading", delivery);
        let running = trial.relay().allow_log("").run();
        for _ in 0..5 {
            trial.stage.insert(TOPIC, 20);
        }
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_kept_unseen().delivered, 100, "{delivery}");
    }
}

#[test]
fn row_60_broken_sequences_begin_anew() {
    for refusal in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER,
    ] {
        let (mock, trial) = scripted("sequence");
        let running = introduce(&trial, &trial.relay().allow_log(""));
        for _ in 0..3 {
            // Taken for stored by a client that knows its own batch: the second time must tell.
            if refusal != RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER {
                mock.request_errors(RDKafkaApiKey::Produce, &[refusal]);
            }
            trial.stage.insert(TOPIC, 50);
            trial.wait_settled();
        }
        running.stop();
        assert_eq!(trial.assert_kept_unseen().delivered, 160, "{refusal:?}");
    }
}

#[test]
fn row_61_an_answer_that_never_comes_leaves_no_gap() {
    let (mock, trial) = scripted("unanswered");
    let relay = impatient(trial.relay()).property("socket.timeout.ms", "1000").allow_log("");
    let running = introduce(&trial, &relay);
    // The broker stores what it is sent, and answers too late.
    mock.broker_round_trip_time(1, Duration::from_secs(4)).unwrap();
    for _ in 0..5 {
        trial.stage.insert(TOPIC, 20);
        let_pass(Duration::from_millis(300), "requests are given up after a second");
    }
    assert!(trial.stage.acknowledged() < trial.stage.log_end());
    mock.broker_round_trip_time(1, Duration::ZERO).unwrap();
    trial.wait_settled();
    running.stop();
    assert_eq!(trial.assert_kept_unseen().delivered, 110);
}

/// What a client may produce, and how much of it is sent.
const QUOTA_BYTES_PER_S: u32 = 200_000;
const MEMORY_MAX: f64 = 48.0 * 1024.0 * 1024.0;

#[test]
fn row_62_a_throttled_producer_is_slow_and_small() {
    let Some(kafka) = kafka::shared() else { return };
    for trial in trials("throttled") {
        let client = unique("throttled-client");
        let quota = format!("producer_byte_rate={QUOTA_BYTES_PER_S}");
        kafka.tool(
            "kafka.admin.ConfigCommand",
            &[
                "--alter",
                "--entity-type",
                "clients",
                "--entity-name",
                &client,
                "--add-config",
                &quota,
            ],
        );
        let relay = trial.relay().set("kafka.client_id", &client).allow_log("hrottl");
        // A throttle may last longer than it takes to be told of silence.
        let relay = relay.allow_log("the Kafka brokers confirm nothing");
        let mut running = relay.set("kafka.max_in_flight", "1MiB").run();
        let face = RelayHttp::of(&mut running);
        let begun = Instant::now();
        // Hashes: nothing to compress.
        trial.stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', n % 10, '{TOPIC}', to_jsonb((SELECT string_agg(md5(n::text || m), '') \
             FROM generate_series(1, 30) AS m)) FROM generate_series(1, 3000) AS n"
        ));
        trial.wait_settled();
        let (took, memory) =
            (begun.elapsed(), face.metric("process_resident_memory_bytes").unwrap());
        running.stop();
        eprintln!("{}: {took:?}, {} MiB", trial.delivery, memory / f64::from(1 << 20));
        assert!(took > Duration::from_secs(3), "not throttled: {took:?}");
        assert!(memory < MEMORY_MAX, "{memory}");
        assert_eq!(trial.assert_once().delivered, 3_000);
    }
}

#[test]
fn row_63_a_transaction_that_another_producer_leaves_open_does_not_stop_us() {
    let Some(kafka) = kafka::shared() else { return };
    for trial in trials("rogue") {
        let mut running = trial.relay().run();
        running.wait_for_log("\"streaming\"");
        let rogue: BaseProducer = topic::client(&kafka.bootstrap())
            .set("transactional.id", unique("rogue"))
            .create()
            .unwrap();
        let limit = Duration::from_secs(20);
        rogue.init_transactions(limit).unwrap();
        rogue.begin_transaction().unwrap();
        let name = trial.stage.topic(TOPIC);
        for partition in 0..3 {
            let record: BaseRecord<'_, str, str> =
                BaseRecord::to(&name).partition(partition).payload("left open");
            rogue.send(record).unwrap();
        }
        rogue.flush(limit).unwrap();
        for _ in 0..5 {
            trial.stage.insert(TOPIC, 20);
        }
        // Nobody reads past the open transaction, and yet we go on.
        trial.wait_settled();
        assert_eq!(trial.stage.records().len(), 0);
        rogue.abort_transaction(limit).unwrap();
        running.stop();
        wait_for("the records", || (trial.stage.records().len() == 100).then_some(()));
        trial.assert_once();
    }
}

#[test]
fn row_66_partitions_may_be_added_under_load() {
    let Some(kafka) = kafka::shared() else { return };
    for trial in trials("partitions") {
        let running = trial.relay().run();
        let name = trial.stage.topic(TOPIC);
        for partitions in [3, 5, 8] {
            if partitions > 3 {
                let more = [NewPartitions::new(&name, partitions)];
                let admin = admin(&kafka.bootstrap());
                let options = AdminOptions::new();
                let outcome = admin.create_partitions(&more, &options);
                assert!(runtime().block_on(outcome).unwrap().iter().all(Result::is_ok));
            }
            for _ in 0..10 {
                trial.stage.insert(TOPIC, 20);
                let_pass(Duration::from_millis(30), "rows flow while partitions are added");
            }
        }
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_once().delivered, 600);
    }
}
