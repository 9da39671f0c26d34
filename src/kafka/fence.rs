//! Fences earlier transactional producers of the same stream (InitProducerId), so that none of them can
//! write any more. `fence` takes seconds at most, since a replication stream is open meanwhile; where no
//! stream waits, `fence_patiently` and `fence_off` retry for a minute.
//!
//! Input: a [`KafkaSpec`] and the [`Lineage`] of the stream. Output: a producer that may begin
//! transactions, or an error. Invariant: every transaction of an earlier producer with the same
//! transactional id has ended (KIP-98).

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::KafkaSpec;
use super::transactional::code;
use super::{Producer, SinkError};
use postrider_core::progress::Lineage;

/// How long all of it may take. A stream is open meanwhile, so it must be well below what makes
/// Postgres's `fast` stop slow.
const LIMIT: Duration = Duration::from_secs(4);
/// How long whoever holds nothing up goes on asking.
const PATIENCE: Duration = Duration::from_mins(1);
/// How much of [`LIMIT`] to wait for the first broker.
const MEETING: Duration = Duration::from_secs(1);
/// Between two looks at what the coordinator answered; the library goes on meanwhile.
const SLICE: Duration = Duration::from_millis(10);
/// Clients that may make way. A transaction with many partitions takes longer to end than a client
/// to start; the last one waits at the library's pace.
const CLIENTS_MAX: u32 = 4;

/// What to do about brokers without transactions.
const TOO_OLD: &str = "use brokers of version 0.11 or later, a service that offers transactions, or \
                       kafka.delivery = \"at_least_once\"";

/// A producer. From now on no earlier one of this stream can write. Blocks for [`LIMIT`] at most, and
/// [`MEETING`] more where no broker answers.
///
/// librdkafka retries half a second after it could not reach the coordinator, and half a second after the
/// coordinator asked it to retry (rdkafka_txnmgr.c and rdkafka_idempotence.c, 2.12). Both would take most
/// of a start's time. So it is asked once a broker is connected, and a client that was asked to retry,
/// because the coordinator has just ended an earlier producer's transaction, is replaced by a new one.
pub(super) fn fence(spec: &KafkaSpec, lineage: &Lineage) -> Result<Producer, SinkError> {
    let config = spec.transactional_config(&lineage.transactional_id())?;
    let deadline = Instant::now() + LIMIT;
    let mut clients = 0;
    loop {
        clients += 1;
        let producer = Producer::with(&config, spec)?;
        // It is the connection that matters, not the answer.
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

/// Fences for whoever writes nothing in a transaction itself; see `fence_patiently`.
pub fn fence_off(spec: &KafkaSpec, lineage: &Lineage) -> Result<(), SinkError> {
    fence_patiently(spec, lineage).map(drop)
}

/// Fences for whoever keeps no stream waiting.
///
/// A cluster's first transaction makes the topic that transactions are kept in, which takes longer than
/// a stream may be kept waiting; nothing waits here, so it is asked again for [`PATIENCE`].
pub(super) fn fence_patiently(spec: &KafkaSpec, lineage: &Lineage) -> Result<Producer, SinkError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fence(spec, lineage) {
            Err(SinkError::NotReady(_)) if Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Whether the call may be resumed.
fn is_pending(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.is_retriable())
}

/// The producer, if the coordinator that has given it its id offers all that transactions need. The library does
/// not say when a request is not offered: it holds the records back, and asks again and again. So it is refused
/// here, before anything is read from the slot.
///
/// What the coordinator offers was logged before the id came: nothing more is asked, and nothing waited for. A first
/// transaction for a try would ask more brokers than the coordinator, write to the progress topic at each start, and
/// tell a lack from an outage by a limit alone; a connection of our own would need a TLS and a login of its own.
fn with_transactions(producer: Producer) -> Result<Producer, SinkError> {
    let lacking = producer.client().client().context().events().offered.lacking_for_transactions();
    if lacking.is_empty() {
        return Ok(producer);
    }
    let reason = format!("the brokers do not offer {}", lacking.join(" and "));
    Err(SinkError::NoTransactions { reason, remedy: TOO_OLD.to_owned() })
}

/// Why transactions did not begin.
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
