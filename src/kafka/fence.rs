//! Fences earlier transactional producers of a stream (InitProducerId), so that none of them can
//! write any more. `fence` takes at most seconds, because a replication stream is open; without a
//! waiting stream, `fence_patiently` and `fence_off` retry for a minute.
//!
//! Input: a [`KafkaSpec`] and the [`Lineage`] of the stream. Output: a producer that may begin
//! transactions, or an error. Invariant: every transaction of an earlier producer with this
//! transactional id has ended (KIP-98).

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::KafkaSpec;
use super::transactional::code;
use super::{Producer, SinkError};
use postrider_core::progress::Lineage;

/// Total time limit. A stream is open, so it must be well below the delay that matters for
/// Postgres's `fast` stop.
const LIMIT: Duration = Duration::from_secs(4);
/// Time limit of callers without a waiting stream.
const PATIENCE: Duration = Duration::from_mins(1);
/// Part of [`LIMIT`] for reaching the first broker.
const MEETING: Duration = Duration::from_secs(1);
/// Poll interval for the coordinator's answer.
const SLICE: Duration = Duration::from_millis(10);
/// Clients that may be replaced. A transaction with many partitions takes longer to end than a
/// client to start; the last one waits at the library's pace.
const CLIENTS_MAX: u32 = 4;

const TOO_OLD: &str = "use brokers of version 0.11 or later, a service that offers transactions, or \
                       kafka.delivery = \"at_least_once\"";

/// Creates a producer that fences earlier ones of this stream. Blocks for at most [`LIMIT`], plus
/// [`MEETING`] if no broker answers.
///
/// librdkafka retries half a second after the coordinator was unreachable, or asked for a retry
/// (rdkafka_txnmgr.c and rdkafka_idempotence.c, 2.12), which would take most of a start's time.
/// InitProducerId is therefore sent once a broker is connected. If the coordinator asks for a retry
/// because it has just ended an earlier producer's transaction, a new client replaces this one.
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

/// Fences for a caller without transactional writes; see `fence_patiently`.
pub fn fence_off(spec: &KafkaSpec, lineage: &Lineage) -> Result<(), SinkError> {
    fence_patiently(spec, lineage).map(drop)
}

/// Fences for a caller without a waiting stream.
///
/// A cluster's first transaction creates the topic for transaction state, which takes longer than a
/// stream may wait. This retries for [`PATIENCE`].
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

/// Returns the producer if the coordinator offers everything that transactions need. The library
/// does not report a missing request: it holds the records back, and retries forever. It is
/// therefore refused here, before anything is read from the slot.
///
/// The coordinator's offer was logged before the producer id arrived, so this neither asks nor
/// waits. A trial transaction would involve more brokers than the coordinator, write to the
/// progress topic at each start, and distinguish a lack from an outage only by a time limit. A
/// separate connection would need its own TLS and login.
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
