//! What the order service does with a message: tells the order's saga.
//!
//! Enters: what payment and inventory report. Leaves: the saga's next state, the order's status and
//! what is told to others, in the transaction that marks the message as done. What always holds: a
//! report that comes late or out of order is a fact all the same; one about an order that nobody
//! placed is a dead letter.

use serde::Deserialize;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::process::{Fact, OrderProcess};
use crate::messages::{interest, order_id};
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};
use postrider_patterns::saga::{self, SagaError};

/// The topics that the order service reads.
pub(super) const TOPICS: [&str; 6] = [
    "PaymentProcessed",
    "PaymentFailed",
    "PaymentRefunded",
    "InventoryReserved",
    "InventoryUnavailable",
    "InventoryReleased",
];

/// Lets sagas hear of what happened.
pub(super) struct OrderEffects;

/// Events of failures say why.
#[derive(Deserialize)]
struct Told {
    reason: Option<String>,
}

impl Effects for OrderEffects {
    fn interest(&self, event_type: &str) -> Interest {
        interest(&TOPICS, event_type)
    }

    async fn apply(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let order = order_id(message)?;
        let told = Told::deserialize(&message.payload)
            .map_err(|_| Failure::poison("the payload is no object, or its reason no text"))?;
        let fact = Fact::of_event(&message.event_type, told.reason.as_deref())
            .ok_or_else(|| Failure::poison("the type is not one that an order hears of"))?;
        go_on(transaction, order, &fact).await.map_err(|error| match error {
            SagaError::Unknown { .. } => Failure::poison("nobody placed this order"),
            other => Failure::technical(other),
        })
    }
}

/// Lets one order's saga go on; the order's own row shows how it ended.
pub(super) async fn go_on(
    transaction: &Transaction<'_>,
    order: Uuid,
    fact: &Fact,
) -> Result<(), SagaError> {
    let step = saga::advance::<OrderProcess>(transaction, &order.to_string(), fact).await?;
    if step.from != step.to {
        let sql = "UPDATE orders SET status = $2 WHERE id = $1";
        transaction.execute(sql, &[&order, &step.to]).await?;
    }
    Ok(())
}
