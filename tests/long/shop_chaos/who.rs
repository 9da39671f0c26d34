//! Who reads what: the shop's services and their topics, written down once more, so that the account
//! does not rest on what the services say of themselves.
//!
//! Pure. Used by all that reads topics, and by the account.

use postrider::shop::{inventory, orders, payments};

/// A consumer, and the topics it reads.
pub(crate) struct Reader {
    /// Its group, and the owner of its markers.
    pub(crate) name: &'static str,
    pub(crate) topics: &'static [&'static str],
}

/// The three services.
pub(crate) const READERS: [Reader; 3] = [
    Reader {
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
    Reader {
        name: payments::NAME,
        topics: &["OrderCreated", "InventoryUnavailable", "OrderTimedOut"],
    },
    Reader { name: inventory::NAME, topics: &["PaymentProcessed", "OrderTimedOut"] },
];

/// The names of those who read a topic.
pub(crate) fn readers_of(topic: &str) -> impl Iterator<Item = &'static str> {
    let reads = move |reader: &&Reader| reader.topics.contains(&topic);
    READERS.iter().filter(reads).map(|reader| reader.name)
}

/// All topics of the shop.
pub(crate) fn topics() -> Vec<String> {
    orders::EVENT_TYPES.map(str::to_owned).to_vec()
}

/// Where a consumer lays what it cannot take.
pub(crate) fn dead_letters_of(reader: &Reader) -> String {
    format!("{}.dead-letters", reader.name)
}
