//! Fences earlier transactional producers of a stream (InitProducerId).
//!
//! Invariant: every transaction of an earlier producer with this transactional id has ended
//! (KIP-98).

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::KafkaSpec;
use super::transactional::code;
use super::{Producer, SinkError};
use postrider_core::progress::Lineage;

/// A replication stream is open, and Postgres's `fast` stop waits for it.
const LIMIT: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_mins(1);
/// Part of [`LIMIT`] for the first broker.
const MEETING: Duration = Duration::from_secs(1);
const SLICE: Duration = Duration::from_millis(10);
/// A transaction with many partitions ends slowly; the last client waits at the library's pace.
const CLIENTS_MAX: u32 = 4;

const TOO_OLD: &str = "use brokers of version 0.11 or later, a service that offers transactions, or \
                       kafka.delivery = \"at_least_once\"";

/// Blocks for at most [`LIMIT`], plus [`MEETING`] if no broker answers.
///
/// librdkafka retries InitProducerId after half a second (rdkafka_txnmgr.c and
/// rdkafka_idempotence.c, 2.12). The request is therefore sent once a broker is connected. If the
/// coordinator is still ending a transaction, a new client replaces this one.
pub(super) fn fence(spec: &KafkaSpec, lineage: &Lineage) -> Result<Producer, SinkError> {
    let config = spec.transactional_config(&lineage.transactional_id())?;
    let deadline = Instant::now() + LIMIT;
    let mut clients = 0;
    loop {
        clients += 1;
        let producer = Producer::with(&config, spec)?;
        // Only the connection matters, not the answer.
        let _ = producer.client().client().fetch_metadata(Some(&spec.progress_topic), MEETING);
        loop {
            let begun = producer.client().init_transactions(SLICE);
            producer.serve();
            let Err(error) = begun else { return with_transactions(producer) };
            if Instant::now() >= deadline || !is_pending(&error) {
                return Err(not_begun(&error, &producer, lineage));
            }
            if clients < CLIENTS_MAX && code(&error) == Some(Code::ConcurrentTransactions) {
                break;
            }
        }
    }
}

pub fn fence_off(spec: &KafkaSpec, lineage: &Lineage) -> Result<(), SinkError> {
    fence_patiently(spec, lineage).map(drop)
}

/// For a caller without a waiting stream. A cluster's first transaction creates the topic for
/// transaction state, which takes long.
pub(super) fn fence_patiently(spec: &KafkaSpec, lineage: &Lineage) -> Result<Producer, SinkError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fence(spec, lineage) {
            Err(SinkError::NotReady(_)) if Instant::now() < deadline => {}
            result => return result,
        }
    }
}

fn is_pending(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.is_retriable())
}

/// The library would retry a missing request forever. The coordinator's offer was logged before the
/// producer id arrived, so this does not wait. A trial transaction would write to the progress
/// topic at each start, and could not distinguish a lack from an outage.
fn with_transactions(producer: Producer) -> Result<Producer, SinkError> {
    let lacking = producer.client().client().context().events().offered.lacking_for_transactions();
    if lacking.is_empty() {
        return Ok(producer);
    }
    let reason = format!("the brokers do not offer {}", lacking.join(" and "));
    Err(SinkError::NoTransactions { reason, remedy: TOO_OLD.to_owned() })
}

fn not_begun(error: &KafkaError, producer: &Producer, lineage: &Lineage) -> SinkError {
    let reason = error.to_string();
    let id = lineage.transactional_id();
    let remedy = match code(error) {
        Some(Code::TransactionalIdAuthorizationFailed) => {
            return SinkError::IdForbidden { id, reason };
        }
        Some(Code::ClusterAuthorizationFailed) => return SinkError::Forbidden(reason),
        Some(Code::UnsupportedFeature | Code::UnsupportedVersion) => TOO_OLD.to_owned(),
        Some(Code::InvalidTransactionTimeout) => {
            "raise transaction.max.timeout.ms of the brokers to 60000 or more".to_owned()
        }
        _ => {
            let known = producer.check().err();
            return known.unwrap_or(SinkError::NotReady(reason));
        }
    };
    SinkError::NoTransactions { reason, remedy }
}
