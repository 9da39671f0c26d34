//! How the order service processes a message: advances the order's saga, and with it the order's status.
//!
//! Input: events of payment and inventory. Output: the saga's next state, the order's status and outbox rows,
//! in the transaction that also marks the message as processed. Invariant: an event that arrives late or out of order is still applied; one about an unknown order is a
//! dead letter.

use serde::Deserialize;
use tokio_postgres::Transaction;

use super::process::{Fact, OrderProcess};
use crate::messages::{interest, order_id};
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};
use postrider_patterns::saga::{self, SagaError};

/// The topics that the order service reads.
pub(crate) const TOPICS: [&str; 6] = [
    "PaymentProcessed",
    "PaymentFailed",
    "PaymentRefunded",
    "InventoryReserved",
    "InventoryUnavailable",
    "InventoryReleased",
];

/// Applies events to order sagas.
pub(super) struct OrderEffects;

/// The payload of events that report a failure.
#[derive(Deserialize)]
struct FailurePayload {
    reason: Option<String>,
}

impl Effects for OrderEffects {
    fn interest(&self, event_type: &str) -> Interest {
        interest(&TOPICS, event_type)
    }

    async fn apply(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let order = order_id(message)?;
        let failure = FailurePayload::deserialize(&message.payload).map_err(|_| {
            Failure::poison("the payload is not an object, or its reason is not a string")
        })?;
        let fact = Fact::of_event(&message.event_type, failure.reason.as_deref())
            .ok_or_else(|| Failure::poison("the event type is not one that an order handles"))?;
        let id = order.to_string();
        match saga::advance::<OrderProcess>(transaction, &id, &fact, message).await {
            Ok(_) => Ok(()),
            Err(SagaError::Unknown { .. }) => Err(Failure::poison("there is no such order")),
            Err(other) => Err(Failure::technical(other)),
        }
    }
}
