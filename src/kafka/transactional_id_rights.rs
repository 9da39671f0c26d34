//! Whether our login may use a transactional id, asked without using it.
//!
//! Input: a [`KafkaSpec`], the id, and the longest transaction that the brokers allow. Output: [`IdRights`]. Invariant: no
//! earlier producer is fenced off, and no transaction begins.
//!
//! Kafka says nobody what they may do with transactional ids, unless they may read the access lists of the whole cluster.
//! So InitProducerId is sent with a timeout that no broker takes: rights are looked at first, then the timeout, and only
//! then is the id looked up (`KafkaApis.handleInitProducerIdRequest` and `TransactionCoordinator.handleInitProducerId` of
//! Kafka 0.11 to 4). A refusal of the timeout therefore says that the id may be used, and nothing has changed.

use std::time::{Duration, Instant};

use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::KafkaSpec;
use super::topics::{ClusterFacts, TopicsError, is_hidden_or_there};
use super::transactional::code;
use super::{Producer, SinkError};

/// How long the coordinator may take.
const LIMIT: Duration = Duration::from_secs(3);
/// Between two looks at what it answered.
const SLICE: Duration = Duration::from_millis(50);
/// The largest timeout that the protocol has.
const TIMEOUT_MAX: u64 = i32::MAX as u64;
/// Where the brokers keep the state of transactions; the first question about an id makes it.
const STATE_TOPIC: &str = "__transaction_state";

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdRights {
    /// It may be used.
    Allowed,
    /// It may not.
    Forbidden,
    /// It cannot be known, for this reason.
    Unknown(String),
}

/// See the module. Blocks for seconds if it must.
pub fn transactional_id_rights(
    kafka: &KafkaSpec,
    facts: &ClusterFacts,
    id: &str,
) -> Result<IdRights, TopicsError> {
    let unknown = |why: &str| Ok(IdRights::Unknown(why.to_owned()));
    match facts.transaction_max_ms {
        None => {
            return unknown(
                "the brokers do not tell us transaction.max.timeout.ms (DescribeConfigs on the cluster), without which the \
                 right to use an id cannot be asked for",
            );
        }
        Some(TIMEOUT_MAX..) => {
            return unknown(
                "the brokers take every timeout of a transaction, so that the id cannot be asked for without using it",
            );
        }
        Some(_) => {}
    }
    if !is_hidden_or_there(kafka, STATE_TOPIC)? {
        return unknown(
            "no transaction has run in this cluster, and a question would prepare for one",
        );
    }
    let mut config = kafka.transactional_config(id)?;
    config.set("transaction.timeout.ms", TIMEOUT_MAX.to_string());
    let producer = match Producer::with(&config, kafka) {
        Ok(producer) => producer,
        Err(SinkError::Settings(error)) => return Err(error.into()),
        Err(error) => return Err(TopicsError::NoEntry(error)),
    };
    let deadline = Instant::now() + LIMIT;
    loop {
        let begun = producer.client().init_transactions(SLICE);
        producer.serve();
        let Err(error) = begun else {
            return unknown("the brokers take a timeout of a transaction that they should refuse");
        };
        match code(&error) {
            Some(Code::InvalidTransactionTimeout) => return Ok(IdRights::Allowed),
            Some(Code::TransactionalIdAuthorizationFailed) => return Ok(IdRights::Forbidden),
            _ if Instant::now() < deadline => {}
            _ => return unknown(&error.to_string()),
        }
    }
}
