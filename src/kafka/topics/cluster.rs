//! Reads the broker facts that `postrider doctor` judges. A setting is `None` if it is not visible
//! or the brokers have no admin API. Queries create no topic.

use super::metadata::Inquiry;
use super::{KafkaSpec, TopicsError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFacts {
    pub brokers: Vec<AdvertisedBroker>,
    pub transaction_max_ms: Option<u64>,
    /// Default replicas of the transaction state topic.
    pub transaction_log_replicas: Option<u32>,
    /// `auto.create.topics.enable`.
    pub creates_topics: Option<bool>,
    /// `default.replication.factor`.
    pub default_replicas: Option<u32>,
    /// Reported before Kafka 4, for example `3.5-IV2`.
    pub protocol: Option<String>,
}

/// Clients connect to the advertised address, whatever address they were given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdvertisedBroker {
    pub id: i32,
    pub host: String,
    pub port: u16,
}

/// May block for seconds.
pub fn cluster_facts(kafka: &KafkaSpec) -> Result<ClusterFacts, TopicsError> {
    let mut inquiry = Inquiry::open(kafka)?;
    let mut brokers = inquiry.advertised()?;
    brokers.sort_unstable();
    let mut number = |name| match inquiry.of_broker(name) {
        Ok(value) => Ok(value.and_then(|value| value.parse().ok())),
        Err(TopicsError::Unsupported) => Ok(None),
        Err(error) => Err(error),
    };
    let small = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    Ok(ClusterFacts {
        brokers,
        transaction_max_ms: number("transaction.max.timeout.ms")?,
        transaction_log_replicas: small(number("transaction.state.log.replication.factor")?),
        default_replicas: small(number("default.replication.factor")?),
        creates_topics: inquiry.creates_topics().ok().flatten(),
        protocol: inquiry.of_broker("inter.broker.protocol.version").ok().flatten(),
    })
}
