//! Tests if the login may use a transactional id, without using it: no producer is fenced, and no
//! transaction starts.
//!
//! Kafka reports these rights only to readers of the whole cluster's access lists. InitProducerId
//! is therefore sent with a timeout that every broker refuses. The broker checks rights first, then
//! the timeout, and only then looks up the id (`KafkaApis.handleInitProducerIdRequest` and
//! `TransactionCoordinator.handleInitProducerId` of Kafka 0.11 to 4).

use std::time::{Duration, Instant};

use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::settings::KafkaSpec;
use super::topics::{ClusterFacts, TopicsError, is_hidden_or_there};
use super::transactional::code;
use super::{Producer, SinkError};

const LIMIT: Duration = Duration::from_secs(3);
const SLICE: Duration = Duration::from_millis(50);
/// The protocol's largest timeout.
const TIMEOUT_MAX: u64 = i32::MAX as u64;
/// Created by the first request for an id.
const STATE_TOPIC: &str = "__transaction_state";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdRights {
    Allowed,
    Forbidden,
    Unknown(String),
}

/// May block for seconds.
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
