//! Every error that Kafka defines for records, thrown at the relay.

use std::collections::BTreeSet;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Answer};

use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::{postgres, wait_for};

/// What the brokers may answer to a record (Kafka's `ProduceResponse` and what its handlers throw).
const CODES: [Answer; 36] = [
    Answer::RD_KAFKA_RESP_ERR_UNKNOWN,
    Answer::RD_KAFKA_RESP_ERR_INVALID_MSG,
    Answer::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
    Answer::RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE,
    Answer::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
    Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
    Answer::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    Answer::RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE,
    Answer::RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE,
    Answer::RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
    Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
    Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Answer::RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS,
    Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
    Answer::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
    Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION,
    Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT,
    Answer::RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
    Answer::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
    Answer::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER,
    Answer::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
    Answer::RD_KAFKA_RESP_ERR_INVALID_TXN_STATE,
    Answer::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING,
    Answer::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Answer::RD_KAFKA_RESP_ERR_SECURITY_DISABLED,
    Answer::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
    Answer::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
    Answer::RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH,
    Answer::RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
    Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE,
    Answer::RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION,
    Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
    Answer::RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE,
    Answer::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
    Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD,
    Answer::RD_KAFKA_RESP_ERR_PRODUCER_FENCED,
];

/// Attempts that a record gets at most.
const ATTEMPTS: usize = 3;

/// Those that say that the record itself is at fault: it is alone in its batch, and refused at the first
/// of them.
fn is_definite(code: Answer) -> bool {
    matches!(
        code,
        Answer::RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION
            | Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE
            | Answer::RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE
            | Answer::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP
            | Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD
    )
}

/// Those that object to what is asked of the brokers: a record that gets one twice is a dead letter.
fn is_a_rule(code: Answer) -> bool {
    matches!(
        code,
        Answer::RD_KAFKA_RESP_ERR_POLICY_VIOLATION
            | Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT
    )
}

/// What a record becomes that gets it so many times. A topic that is denied to us, or missing, costs no row
/// of another one, but may cost this one.
fn fates(code: Answer, times: usize) -> [&'static str; 2] {
    match code {
        Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED
        | Answer::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART => ["X", "dead-letters"],
        code if times > 0 && is_definite(code) => ["dead-letters"; 2],
        // Exactly once, some may meet the record of progress.
        code if times > 1 && is_a_rule(code) => ["X", "dead-letters"],
        _ => ["X"; 2],
    }
}

/// How often it is thrown at most. What a broker says of a topic for good counts for the next row too,
/// which is not sent: a further answer would meet the dead letter, which has none.
fn most(code: Answer) -> usize {
    match code {
        Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => 0,
        code if is_definite(code) => 1,
        _ => ATTEMPTS,
    }
}

/// A record that meets each of them, once and as often as it is tried, is delivered or a dead letter, and
/// what comes behind it is delivered.
fn survives_every_code(mode: &str) {
    for code in CODES {
        let mock = MockCluster::new(1).unwrap();
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "codes");
        let relay = stage.relay().set("kafka.delivery", mode).allow_log("");
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        stage.insert("A", 1);
        wait_for("the first row", || (face.count(CONFIRMED)? >= 1).then_some(()));
        let (mut rows, mut seen, mut met) = (0, BTreeSet::new(), BTreeSet::new());
        for times in [1, most(code)] {
            let before = stage.acknowledged();
            mock.request_errors(RDKafkaApiKey::Produce, &vec![code; times]);
            stage.insert("X", 1);
            stage.insert("A", 1);
            let end = stage.log_end();
            let took = stage.wait_acknowledged(end);
            assert!(before < end, "{code:?}");
            mock.clear_request_errors(RDKafkaApiKey::Produce);
            let sessions = restarts(&face);
            eprintln!("{mode}: {code:?} {times} times: {took:?}, {sessions} sessions so far");
            assert!(sessions <= 12, "{code:?} {times} times: {sessions} sessions");
            // The embedded broker shows what no Kafka transaction has committed, progress too.
            if mode == "exactly_once" {
                continue;
            }
            let good = stage.topic("A");
            let (arrived, others): (Vec<_>, Vec<_>) =
                stage.records().into_iter().partition(|one| one.topic == good);
            let arrived: BTreeSet<_> = arrived.iter().map(|one| one.header("id")).collect();
            rows += 1;
            assert_eq!(arrived.len(), 1 + rows, "{code:?} {times} times: what came behind it");
            let fates = fates(code, times).map(|name| stage.topic(name));
            for record in others {
                let is_news = !seen.contains(record.header("id").unwrap());
                let is_right = fates.contains(&record.topic);
                assert!(!is_news || is_right, "{mode}: {code:?} {times} times: {}", record.topic);
                met.insert(record.header("id").unwrap().to_owned());
            }
            assert_eq!(met.len(), rows, "{code:?} {times} times: the row itself");
            seen.clone_from(&met);
        }
        running.signal(rustix::process::Signal::TERM);
        let outcome = running.outcome();
        assert!(outcome.status.success(), "{code:?}:\n{}", outcome.log.join("\n"));
    }
}

const CONFIRMED: &str = "postrider_records_confirmed_total";

fn restarts(face: &RelayHttp) -> u64 {
    let (_, page) = face.get("/metrics");
    let lines = page.lines().filter(|line| line.starts_with("postrider_restarts_total"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

#[test]
fn g4_no_answer_to_a_record_makes_sessions_repeat() {
    survives_every_code("at_least_once");
}

#[test]
fn g4_no_answer_to_a_record_makes_sessions_repeat_exactly_once() {
    survives_every_code("exactly_once");
}
