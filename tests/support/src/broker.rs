//! The two kinds of broker that a test may run against.

use postrider_sandbox::spawn::undisturbed;
use rdkafka::ClientContext;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::is_full;
use super::kafka::{self, Kafka};

/// A broker, addressed the same way whatever it is.
pub enum Broker {
    /// librdkafka's own, inside this process. Keeps 5 MiB per partition, knows no transactions.
    Embedded(MockCluster<'static, DefaultProducerContext>),
    /// Apache Kafka, shared by all tests.
    Kafka(&'static Kafka),
}

impl Broker {
    /// A fresh embedded broker.
    pub fn embedded() -> Self {
        Self::Embedded(MockCluster::new(1).unwrap())
    }

    /// Both kinds, or the embedded one alone where this machine cannot run Kafka.
    pub fn all() -> Vec<Self> {
        let real = kafka::shared().map(Self::Kafka);
        std::iter::once(Self::embedded()).chain(real).collect()
    }

    /// The best broker for what no broker does otherwise; with `FULL=1` both kinds.
    pub fn representative() -> Vec<Self> {
        if is_full() { Self::all() } else { vec![Self::best()] }
    }

    /// Apache Kafka, or the embedded broker where this machine cannot run it.
    pub fn best() -> Self {
        kafka::shared().map_or_else(Self::embedded, Self::Kafka)
    }

    /// As `bootstrap.servers` wants it.
    pub fn bootstrap(&self) -> String {
        match self {
            Self::Embedded(mock) => mock.bootstrap_servers(),
            Self::Kafka(kafka) => kafka.bootstrap(),
        }
    }

    /// For messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "the embedded broker",
            Self::Kafka(_) => "Apache Kafka",
        }
    }
}

/// Takes an embedded broker down. It gives up its address and takes it again at once, and ends the process
/// where it cannot: a program that another test starts meanwhile has it for a moment.
pub fn take_down(mock: &MockCluster<'_, impl ClientContext>, broker: i32) {
    undisturbed(|| mock.broker_down(broker)).unwrap();
}
