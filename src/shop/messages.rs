//! What the services' messages have in common: the id of the order they are about.

use uuid::Uuid;

use postrider_patterns::inbox::{Failure, Interest, Message};

/// A service has something to do with each message of the topics it reads, and with no other.
pub(super) fn interest(topics: &[&str], event_type: &str) -> Interest {
    if topics.contains(&event_type) { Interest::Handle } else { Interest::Unknown }
}

/// The order that a message is about: its key.
pub(super) fn order_id(message: &Message) -> Result<Uuid, Failure> {
    Uuid::parse_str(&message.aggregate_id)
        .map_err(|_| Failure::poison("the key is not an order id"))
}
