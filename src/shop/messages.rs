//! Helpers for the consumers of all three services.
//!
//! `interest`: a message is handled if its event type is a topic that the service reads. `order_id`: the
//! order that a message is about, parsed from its key; a message with another key is a dead letter.

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
