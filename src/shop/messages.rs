//! Helpers for the consumers of all services.

use uuid::Uuid;

use postrider_patterns::inbox::{Failure, Interest, Message};

/// A service handles all messages of its topics, and no others.
pub(super) fn interest(topics: &[&str], event_type: &str) -> Interest {
    if topics.contains(&event_type) { Interest::Handle } else { Interest::Unknown }
}

/// A message whose key is not an order id becomes a dead letter.
pub(super) fn order_id(message: &Message) -> Result<Uuid, Failure> {
    Uuid::parse_str(&message.aggregate_id)
        .map_err(|_| Failure::poison("the key is not an order id"))
}
