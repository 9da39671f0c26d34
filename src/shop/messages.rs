//! Helpers for the consumers of all services.
//!
//! `interest`: a message is handled if its event type is a topic that the service reads.
//! `order_id`: the order of a message, parsed from its key; a message with another key becomes a
//! dead letter.

use uuid::Uuid;

use postrider_patterns::inbox::{Failure, Interest, Message};

/// Returns whether the service handles a message: it handles all messages of its topics, and no
/// others.
pub(super) fn interest(topics: &[&str], event_type: &str) -> Interest {
    if topics.contains(&event_type) { Interest::Handle } else { Interest::Unknown }
}

/// Returns the message's order from its key.
pub(super) fn order_id(message: &Message) -> Result<Uuid, Failure> {
    Uuid::parse_str(&message.aggregate_id)
        .map_err(|_| Failure::poison("the key is not an order id"))
}
