//! Kafka away, silent or without its leader while rows flow.

use std::time::{Duration, Instant};

use postrider::kafka::{KafkaSpec, Reader, ReaderEvent, ReaderSpec};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::load::{Load, commit, prepare_at};
use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::wait::{let_pass, wait_until};
use support::{kafka, postgres, requests};

/// How often a client asks for metadata.
const REFRESH: &str = "topic.metadata.refresh.interval.ms";
/// Longer than an outage may leave the walsender without a status update.
const WAL_SENDER_TIMEOUT: Duration = Duration::from_secs(6);
/// Far above an idle relay of a debug build (47 MiB, most of it code) and far below what is written during the outage.
const MEMORY_MAX: f64 = 64.0 * 1024.0 * 1024.0;

#[test]
fn g1_g3_an_outage_of_kafka_stalls_and_loses_nothing() {
    let Some(mut kafka) = kafka::start(&kafka::Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "outage");
    stage.sql().run(&format!(
        "ALTER DATABASE {} SET wal_sender_timeout = {}",
        stage.slot(),
        WAL_SENDER_TIMEOUT.as_millis()
    ));
    let oracle = stage.oracle();
    let relay = stage.relay().set("kafka.max_in_flight", "1MiB");
    // A broker that has just started may take its time to create a topic, and this is not about that.
    let relay = relay.set("route.missing_topic", "wait").allow_log("its rows wait");
    // On a busy machine the outage may last for a minute.
    let relay = relay.expect_log("cannot reach Kafka").allow_log("has confirmed no records");
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let load = Load::start(&stage, &[(500, 1), (1_000, 50)]);
    // Every key there will be: a partition that knows nothing of the producer takes a single record
    // before it answers, and behind its second nothing would be read.
    stage.insert("Flood", 10);
    stage.wait_for_records(1_000);

    kafka.kill_broker(0);
    let health = face.wait_ready(503);
    assert!(health.to_string().contains("no broker answers"), "{health}");
    let walsender = stage.slot_value("active_pid");
    flood(&stage);
    let full = face.wait_metric("postrider_in_flight_bytes", |bytes| bytes > 900_000.0);
    let one_row = 4096.0;
    assert!(full <= f64::from(1 << 20) + one_row, "{full} bytes in flight");
    let_pass(WAL_SENDER_TIMEOUT * 3 / 2, "a walsender whose client says nothing would end");
    assert_eq!(stage.slot_value("active_pid"), walsender, "the walsender gave us up");
    assert_eq!(face.probe("/livez").0, 200);
    let memory = face.metric("process_resident_memory_bytes").unwrap();
    assert!(memory < MEMORY_MAX, "{memory} bytes of memory");

    kafka.start_broker(0);
    face.wait_ready(200);
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    face.wait_count("postrider_in_flight_records", 0);
    running.stop();
    let verdict = stage.verdict(&oracle, &[]);
    eprintln!("{} rows, {} MiB of memory", verdict.committed, memory / f64::from(1 << 20));
    // The producer lived through it, and it is idempotent.
    verdict.assert_exactly_once();
}

/// What is only handed to the Kafka client is no progress.
#[test]
fn an_outage_is_told_every_minute_in_the_place_of_progress() {
    let Some(mut kafka) = kafka::start(&kafka::Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "told_outage");
    let relay = stage.relay().set("route.missing_topic", "wait").allow_log("its rows wait");
    let relay = relay.expect_log("cannot reach Kafka").expect_log("Kafka has confirmed no records");
    let mut running = relay.allow_log("confirm nothing").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 10);
    stage.wait_for_records(10);
    stage.wait_acknowledged(stage.log_end());
    kafka.kill_broker(0);
    stage.insert("A", 100);
    let told = running.wait_for_log("Kafka has confirmed no records");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["seconds"].as_u64() >= Some(60), "{told}");
    assert!(told["cause"].as_str().unwrap().starts_with("no broker answers: "), "{told}");
    assert!(told["in_flight_records"].as_u64() > Some(0), "{told}");
    assert!(told["help"].as_str().unwrap().contains("kafka.brokers"), "{told}");
    assert!(!running.has_logged("\"progress\""), "it was logged during the outage");
    face.wait_count("postrider_state{state=\"stalled\"}", 1);
    assert_eq!(face.probe("/readyz").1["state"], "stalled");
    kafka.start_broker(0);
    face.wait_count("postrider_state{state=\"streaming\"}", 1);
    stage.wait_for_records(110);
    running.stop();
}

/// A broker that just starts may name no broker. librdkafka then knows none, and tries to connect to none.
#[test]
fn clients_that_lost_all_brokers_go_on() {
    let Some((kafka, requests)) = requests::start(&kafka::Options::default()) else { return };
    let relays = ["at_least_once", "exactly_once"].map(|delivery| {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "lost_brokers");
        stage.insert("A", 10);
        let relay = stage.relay().set("kafka.brokers", &requests.bootstrap());
        let relay = relay.set("kafka.delivery", delivery).set("kafka.client_id", delivery);
        let relay = relay.property(REFRESH, "1000");
        let relay = relay.allow_log("confirm nothing").expect_log("servers were added again");
        let running = relay.run();
        stage.wait_acknowledged(stage.log_end());
        (stage, running)
    });
    let mut spec = KafkaSpec::of_brokers(&requests.bootstrap());
    spec.properties.insert(REFRESH.to_owned(), "1000".to_owned());
    let wanted = ReaderSpec::following(&[&relays[0].0.topic("A")]);
    let mut reader = Reader::open(&spec, wanted, Duration::from_mins(1)).unwrap();
    let mut read = 0;
    let mut has_read = |count: usize| {
        let event = reader.next(Duration::from_millis(100)).unwrap();
        read += usize::from(matches!(event, ReaderEvent::Record(_)));
        read == count
    };
    wait_until("the records", || has_read(10));
    requests.hide_brokers();
    requests.wait_misled(&["at_least_once", "exactly_once", &spec.client_id]);
    requests.pass();
    for (stage, _) in &relays {
        stage.insert("A", 10);
    }
    wait_until("more records", || has_read(20));
    for (stage, running) in relays {
        stage.wait_acknowledged(stage.log_end());
        assert_eq!(stage.records().len(), 20);
        running.stop();
    }
}

/// Brokers without enough replicas take the connection and refuse every record.
#[test]
fn brokers_that_answer_and_store_nothing_are_given_up() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "refusing");
    stage.insert("A", 1);
    stage.relay().run_once();
    stage.insert("A", 7);
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    mock.request_errors(RDKafkaApiKey::Produce, &[refusal; 2_000]);
    for arguments in [&["run"][..], &["run", "--once"]] {
        let relay = stage.relay().set("retry.give_up_after", "2s").expect_log("PR-K021");
        let mut running = relay.start(&[arguments, &["--output", "json"]].concat());
        let begun = Instant::now();
        let error = running.wait_for_log("PR-K021");
        assert!(
            error.contains(" records are in flight") && error.contains("min.insync"),
            "{error}"
        );
        assert_eq!(running.wait().code(), Some(69));
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    }
}

/// 40 MB of rows in one transaction.
fn flood(stage: &Stage) {
    stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', n % 10, 'Flood', jsonb_build_object('n', n, 'text', repeat(md5(n::text), 62)) \
         FROM generate_series(1, 20000) AS n",
    );
}

/// Shorter than any timeout of the Kafka client.
const STALL: Duration = Duration::from_secs(2);

#[test]
fn g1_a_broker_that_stalls_holds_back_the_acknowledgement() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "stalls");
    prepare_at(&stage, &kafka.bootstrap());
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let mut running = stage.relay_at(&tap.address()).allow_log("broker").run();
    running.wait_for_log("\"streaming\"");
    commit(&stage, 100, 1_000);
    stage.wait_acknowledged(stage.log_end());
    kafka.freeze_broker(0);
    // The status_log asks the frozen broker too, so what is written now is looked at afterwards.
    commit(&stage, 500, 1_001);
    let_pass(STALL, "the broker stands still");
    kafka.resume_broker(0);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered, 600);
}

#[test]
fn g1_g2_a_leader_may_die_under_load() {
    let options = kafka::Options { brokers: 3, ..kafka::Options::default() };
    let Some(mut kafka) = kafka::start(&options) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "leader_dies");
    prepare_at(&stage, &kafka.bootstrap());
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let relay = stage.relay_at(&tap.address()).allow_log("broker").allow_log("Broker");
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    let load = Load::start(&stage, &[(1_000, 1)]);
    for broker in 0..2 {
        load.wait_committed(700);
        kafka.kill_broker(broker);
        kafka.start_broker(broker);
    }
    let committed = load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    verdict.assert_at_least_once();
    assert_eq!(verdict.delivered as u64, committed);
}
