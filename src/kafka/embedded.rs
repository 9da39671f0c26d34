//! The embedded broker: librdkafka's mock cluster, for the demo, benchmarks and fault tests.
//!
//! The mock cluster keeps 5 MiB (compressed) per partition, does not detect duplicates, and shows
//! aborted transactions. It has no admin API, and creates unknown topics with four partitions. It
//! proves nothing about exactly-once delivery.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Answer};

use super::deliveries::Deliveries;
use super::settings::KafkaSpec;

/// Other users of the machine can read and write the topics, which contain only generated data.
pub struct Broker {
    host: BaseProducer<Deliveries>,
}

/// A failure of one produce request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    NotLeader,
    Disconnect,
    NotEnoughReplicas,
    RequestTimedOut,
    MessageTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    Unauthorised,
}

impl Fault {
    const fn answer(self) -> Answer {
        match self {
            Self::NotLeader => Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            Self::Disconnect => Answer::RD_KAFKA_RESP_ERR__TRANSPORT,
            Self::NotEnoughReplicas => Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Self::RequestTimedOut => Answer::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            Self::MessageTooLarge => Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
            Self::InvalidRecord => Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            Self::InvalidTimestamp => Answer::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
            Self::OutOfOrderSequence => Answer::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            Self::Unauthorised => Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    #[error("the embedded broker did not start: {0}")]
    Start(String),
    #[error("the embedded broker refuses topic `{topic}`: {reason}")]
    Topic {
        topic: String,
        /// The library's text.
        reason: String,
    },
    #[error("the embedded broker refuses: {0}")]
    FaultNotInjected(String),
}

impl BrokerError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Topic { .. } => {
                Some("a topic needs a legal name and 1 to 10000 partitions".into())
            }
            Self::Start(_) | Self::FaultNotInjected(_) => None,
        }
    }
}

impl Broker {
    /// Starts 1 to 16 brokers with these topics and partition counts.
    pub fn start(brokers: u32, topics: &[(&str, i32)]) -> Result<Self, BrokerError> {
        let mut config = ClientConfig::new();
        config
            .set("test.mock.num.brokers", brokers.clamp(1, 16).to_string())
            .set("client.id", "postrider-embedded-broker")
            .set_log_level(RDKafkaLogLevel::Critical);
        let host = config
            .create_with_context(Deliveries::new(&KafkaSpec::default()))
            .map_err(|error: KafkaError| BrokerError::Start(error.to_string()))?;
        let broker = Self { host };
        broker.cluster()?;
        for &(topic, partitions) in topics {
            broker.create_topic(topic, partitions)?;
        }
        Ok(broker)
    }

    /// `host:port` of every broker, comma-separated.
    pub fn bootstrap(&self) -> String {
        self.cluster().map_or_else(|_| String::new(), |cluster| cluster.bootstrap_servers())
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<(), BrokerError> {
        let refused = |reason: String| BrokerError::Topic { topic: topic.to_owned(), reason };
        if !(1..=10_000).contains(&partitions) {
            return Err(refused(format!("{partitions} partitions")));
        }
        self.cluster()?
            .create_topic(topic, partitions, 1)
            .map_err(|error| refused(error.to_string()))
    }

    /// Makes the next produce requests fail, one after another.
    pub fn fail_produce(&self, faults: &[Fault]) -> Result<(), BrokerError> {
        let answers: Vec<Answer> = faults.iter().map(|fault| fault.answer()).collect();
        self.cluster()?.request_errors(RDKafkaApiKey::Produce, &answers);
        Ok(())
    }

    pub fn hide_topic(&self, topic: &str) -> Result<(), BrokerError> {
        let unknown = Answer::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        self.cluster()?.topic_error(topic, unknown).map_err(|error| not_injected(&error))
    }

    pub fn down(&self) -> Result<(), BrokerError> {
        self.cluster()?.broker_down(ALL).map_err(|error| not_injected(&error))
    }

    pub fn up(&self) -> Result<(), BrokerError> {
        self.cluster()?.broker_up(ALL).map_err(|error| not_injected(&error))
    }

    pub fn round_trip(&self, time: Duration) -> Result<(), BrokerError> {
        self.cluster()?.broker_round_trip_time(ALL, time).map_err(|error| not_injected(&error))
    }

    fn cluster(&self) -> Result<MockCluster<'_, Deliveries>, BrokerError> {
        let none = || BrokerError::Start("the client library has no mock cluster".into());
        self.host.client().mock_cluster().ok_or_else(none)
    }
}

const ALL: i32 = -1;

fn not_injected(error: &KafkaError) -> BrokerError {
    BrokerError::FaultNotInjected(error.to_string())
}
