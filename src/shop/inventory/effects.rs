//! Message processing of the inventory service: reserves stock for paid orders, and releases it.
//!
//! Invariant: insufficient stock is a committed result. An order that timed out before its payment
//! arrived is never reserved, because a RELEASED row replaces the reservation. Every request to
//! release is answered.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::messages::{interest, order_id};
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};
use postrider_patterns::outbox_writer::{Event, append};

pub(crate) const TOPICS: [&str; 2] = ["PaymentProcessed", "OrderTimedOut"];

pub(super) struct InventoryEffects;

#[derive(Deserialize)]
struct PaidOrder {
    sku: String,
    quantity: i32,
}

impl Effects for InventoryEffects {
    fn interest(&self, event_type: &str) -> Interest {
        interest(&TOPICS, event_type)
    }

    async fn apply(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let order = order_id(message)?;
        match message.event_type.as_str() {
            "PaymentProcessed" => reserve(transaction, order, &message.payload).await,
            "OrderTimedOut" => release(transaction, order).await,
            other => Err(Failure::poison(format!("unknown event type `{other}`"))),
        }
    }
}

async fn reserve(
    transaction: &Transaction<'_>,
    order: Uuid,
    payload: &Value,
) -> Result<(), Failure> {
    let paid = PaidOrder::deserialize(payload)
        .map_err(|_| Failure::poison("the payload is not a paid order"))?;
    if paid.quantity <= 0 {
        return Err(Failure::poison("quantity must be greater than 0"));
    }
    // Two messages about one order conflict on this row, so it comes first.
    let reserved = transaction
        .execute(
            "INSERT INTO reservations (order_id, sku, quantity, status) \
             VALUES ($1, $2, $3, 'RESERVED') ON CONFLICT (order_id) DO NOTHING",
            &[&order, &paid.sku, &paid.quantity],
        )
        .await?;
    if reserved == 0 {
        return Ok(());
    }
    let taken = transaction
        .execute(
            "UPDATE stock SET available = available - $2 WHERE sku = $1 AND available >= $2",
            &[&paid.sku, &i64::from(paid.quantity)],
        )
        .await?;
    if taken > 0 {
        return emit(transaction, order, "InventoryReserved", json!({})).await;
    }
    let sql = "UPDATE reservations SET status = 'UNAVAILABLE', quantity = 0 WHERE order_id = $1";
    transaction.execute(sql, &[&order]).await?;
    unavailable(transaction, order, &paid.sku).await
}

/// Writes a row that prevents a later reservation. A repeated request means that the order service
/// did not get the answer.
async fn release(transaction: &Transaction<'_>, order: Uuid) -> Result<(), Failure> {
    let bar = "INSERT INTO reservations (order_id, sku, quantity, status) \
               VALUES ($1, '', 0, 'RELEASED') ON CONFLICT (order_id) DO NOTHING";
    transaction.execute(bar, &[&order]).await?;
    let release = "WITH released AS (UPDATE reservations SET status = 'RELEASED', updated_at = now() \
             WHERE order_id = $1 AND status = 'RESERVED' RETURNING sku, quantity) \
         UPDATE stock SET available = available + released.quantity \
             FROM released WHERE stock.sku = released.sku";
    transaction.execute(release, &[&order]).await?;
    let sql = "SELECT sku FROM reservations WHERE order_id = $1 AND status = 'UNAVAILABLE'";
    match transaction.query_opt(sql, &[&order]).await? {
        Some(row) => unavailable(transaction, order, row.try_get(0)?).await,
        None => emit(transaction, order, "InventoryReleased", json!({})).await,
    }
}

async fn unavailable(transaction: &Transaction<'_>, order: Uuid, sku: &str) -> Result<(), Failure> {
    let reason = format!("`{sku}` is sold out");
    emit(transaction, order, "InventoryUnavailable", json!({ "reason": reason })).await
}

async fn emit(
    transaction: &Transaction<'_>,
    order: Uuid,
    event_type: &str,
    payload: Value,
) -> Result<(), Failure> {
    let event = Event::new("reservation", order.to_string(), event_type, payload);
    append(transaction, &event).await.map_err(Failure::technical)?;
    Ok(())
}
