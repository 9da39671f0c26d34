//! A trial in which one topic stores nothing until it is told to, while the others go on.

use std::ops::Deref;

use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use support::broker::take_down;
use support::relay::Relay;

use crate::delivery::idle::impatient;
use crate::trial::{DELIVERIES, TOPIC, Trial};

/// The topic that stores nothing yet.
pub(crate) const HELD: &str = "Held";

/// The embedded broker that leads everything else, transactions included.
const UP: i32 = 1;

/// The one that leads it, and is down.
const DOWN: i32 = 2;

/// A trial in which one topic stores nothing until it is told to, while the others go on. On the
/// embedded broker, which shows what no transaction has committed: nothing may be killed here.
pub(crate) struct HeldTrial {
    trial: Trial,
    mock: MockCluster<'static, DefaultProducerContext>,
}

/// One for each manner of delivery.
pub(crate) fn held_trials(stem: &str) -> impl Iterator<Item = HeldTrial> {
    DELIVERIES.into_iter().map(move |delivery| {
        let mock = MockCluster::new(DOWN).unwrap();
        let trial = Trial::blind(&mock.bootstrap_servers(), stem, delivery);
        let topic = |name| trial.stage.topic(name);
        let progress = format!("postrider.progress.{}", trial.stage.slot());
        let up = [topic(TOPIC), topic("dead-letters"), progress].map(|name| (name, UP));
        for (name, leader) in up.into_iter().chain([(topic(HELD), DOWN)]) {
            let partitions = if name.starts_with("postrider") { 1 } else { 3 };
            mock.create_topic(&name, partitions, 1).unwrap();
            for partition in 0..partitions {
                mock.partition_leader(&name, partition, Some(leader)).unwrap();
            }
        }
        let id = trial.stage.transactional_id();
        mock.coordinator(MockCoordinator::Transaction(id), UP).unwrap();
        take_down(&mock, DOWN);
        HeldTrial { trial, mock }
    })
}

impl Deref for HeldTrial {
    type Target = Trial;

    fn deref(&self) -> &Trial {
        &self.trial
    }
}

impl HeldTrial {
    /// A relay that has with a broker that is down.
    pub(crate) fn relay(&self) -> Relay {
        impatient(self.trial.relay())
            .property("reconnect.backoff.max.ms", "300")
            .allow_log("broker")
            .allow_log("Broker")
    }

    /// From now on the topic stores; waits until all is acknowledged.
    pub(crate) fn release(&self) {
        self.mock.broker_up(DOWN).unwrap();
        self.wait_settled();
    }
}
