//! Message processing of the order service: advances the order's saga and status.
//!
//! Invariant: a late event is still applied. An event becomes a dead letter if its order is unknown
//! half a minute later.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::Transaction;

use super::process::{Fact, OrderProcess};
use crate::messages::{interest, order_id};
use postrider_patterns::dead_letter::now_ms;
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};
use postrider_patterns::saga::{self, SagaError};

pub(crate) const TOPICS: [&str; 6] = [
    "PaymentProcessed",
    "PaymentFailed",
    "PaymentRefunded",
    "InventoryReserved",
    "InventoryUnavailable",
    "InventoryReleased",
];

/// Maximum time between a commit's log entry and its visibility, for example while a synchronous
/// standby does not answer. The reply may arrive within it.
const COMMIT_MAX: Duration = Duration::from_secs(30);

pub(super) struct OrderEffects;

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
            Err(SagaError::Unknown { .. }) if is_younger(message, COMMIT_MAX) => {
                Err(Failure::unavailable("the order is not visible yet"))
            }
            Err(SagaError::Unknown { .. }) => Err(Failure::poison("there is no such order")),
            Err(other) => Err(Failure::technical(other)),
        }
    }
}

/// Clocks of two machines may differ. The result only decides how soon an unknown order is given
/// up.
fn is_younger(message: &Message, limit: Duration) -> bool {
    let age_ms = message.record.timestamp_ms.map(|ms| now_ms().saturating_sub(ms));
    age_ms.is_some_and(|ms| Duration::from_millis(ms.unsigned_abs()) < limit)
}
