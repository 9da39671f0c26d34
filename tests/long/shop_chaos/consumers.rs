//! The services and their topics, independent of the services' code, for the audit.
//!
//! Pure.

use postrider::shop::{inventory, orders, payments};

/// A consumer, and the topics it reads.
pub(crate) struct ConsumerTopics {
    /// Its group, and the owner of its markers.
    pub(crate) name: &'static str,
    pub(crate) topics: &'static [&'static str],
}

/// The three services.
pub(crate) const CONSUMERS: [ConsumerTopics; 3] = [
    ConsumerTopics {
        name: orders::NAME,
        topics: &[
            "PaymentProcessed",
            "PaymentFailed",
            "PaymentRefunded",
            "InventoryReserved",
            "InventoryUnavailable",
            "InventoryReleased",
        ],
    },
    ConsumerTopics {
        name: payments::NAME,
        topics: &["OrderCreated", "InventoryUnavailable", "OrderTimedOut"],
    },
    ConsumerTopics { name: inventory::NAME, topics: &["PaymentProcessed", "OrderTimedOut"] },
];

/// The consumers of a topic.
pub(crate) fn consumers_of(topic: &str) -> impl Iterator<Item = &'static str> {
    let reads = move |reader: &&ConsumerTopics| reader.topics.contains(&topic);
    CONSUMERS.iter().filter(reads).map(|reader| reader.name)
}

/// All topics of the shop.
pub(crate) fn topics() -> Vec<String> {
    orders::EVENT_TYPES.map(str::to_owned).to_vec()
}

/// The dead-letter topic of a consumer.
pub(crate) fn dead_letters_of(reader: &ConsumerTopics) -> String {
    format!("{}.dead-letters", reader.name)
}
