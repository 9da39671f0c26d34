//! Message processing of the payment service: writes the intent to charge or refund; never calls
//! the gateway.
//!
//! Invariant: an order that timed out before its payment began is never charged, because a VOIDED
//! row replaces the intent. Every request to undo is answered, however often it comes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::messages::{interest, order_id};
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};
use postrider_patterns::outbox_writer::{Event, append};

pub(crate) const TOPICS: [&str; 3] = ["OrderCreated", "InventoryUnavailable", "OrderTimedOut"];

pub(super) struct PaymentEffects {
    /// Notified after each commit.
    pub(super) intents: Arc<Notify>,
}

#[derive(Deserialize)]
struct OrderCreated {
    amount_cents: i64,
}

impl Effects for PaymentEffects {
    fn interest(&self, event_type: &str) -> Interest {
        interest(&TOPICS, event_type)
    }

    async fn apply(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let order = order_id(message)?;
        match message.event_type.as_str() {
            "OrderCreated" => intend(transaction, order, &message.payload).await,
            "InventoryUnavailable" | "OrderTimedOut" => undo(transaction, order).await,
            other => Err(Failure::poison(format!("unknown event type `{other}`"))),
        }
    }

    fn committed(&self) {
        self.intents.notify_one();
    }
}

async fn intend(
    transaction: &Transaction<'_>,
    order: Uuid,
    payload: &Value,
) -> Result<(), Failure> {
    let placed = OrderCreated::deserialize(payload)
        .map_err(|_| Failure::poison("the payload is not an order"))?;
    if placed.amount_cents <= 0 {
        return Err(Failure::poison("amount_cents must be greater than 0"));
    }
    transaction
        .execute(
            "INSERT INTO payments (order_id, order_placed, amount_cents, status) \
             VALUES ($1, $2, $3, 'PENDING') ON CONFLICT (order_id) DO NOTHING",
            &[&order, payload, &placed.amount_cents],
        )
        .await?;
    Ok(())
}

/// Refunds a charge, marks one in progress for a refund, and voids one that has not begun. A
/// repeated request gets a repeated answer: the order service did not get the first.
async fn undo(transaction: &Transaction<'_>, order: Uuid) -> Result<(), Failure> {
    // An intent that was never attempted counts as absent.
    let void = "INSERT INTO payments AS known (order_id, order_placed, amount_cents, status, reason) \
         VALUES ($1, '{}', 0, 'VOIDED', 'the order was given up') \
         ON CONFLICT (order_id) DO UPDATE SET status = 'VOIDED', reason = excluded.reason, \
             updated_at = now() WHERE known.status = 'PENDING' AND known.attempts = 0";
    transaction.execute(void, &[&order]).await?;
    let refund = "UPDATE payments SET undo = true, updated_at = now(), \
             status = CASE status WHEN 'CHARGED' THEN 'REFUNDING' ELSE status END, \
             attempts = CASE status WHEN 'CHARGED' THEN 0 ELSE attempts END, \
             first_attempt_at = CASE status WHEN 'CHARGED' THEN NULL ELSE first_attempt_at END, \
             next_attempt_at = CASE status WHEN 'CHARGED' THEN now() ELSE next_attempt_at END \
         WHERE order_id = $1 AND status IN ('PENDING', 'CHARGED')";
    transaction.execute(refund, &[&order]).await?;
    let sql = "SELECT status, amount_cents, reason FROM payments WHERE order_id = $1";
    let row = transaction.query_one(sql, &[&order]).await?;
    let (status, amount_cents): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
    let (event_type, payload) = match status.as_str() {
        "VOIDED" | "DECLINED" => {
            ("PaymentFailed", json!({ "reason": row.try_get::<_, Option<String>>(2)? }))
        }
        "REFUNDED" => ("PaymentRefunded", json!({ "amount_cents": amount_cents })),
        // The event follows with the gateway's reply.
        _ => return Ok(()),
    };
    let event = Event::new("payment", order.to_string(), event_type, payload);
    append(transaction, &event).await.map_err(Failure::technical)?;
    Ok(())
}
