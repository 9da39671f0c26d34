//! Places an order once, however often the request is sent.
//!
//! Invariant: order, saga, outbox row and key are written in one transaction, so one key creates at
//! most one order, whatever happens to Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use deadpool_postgres::{Object, Pool};
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::admission::AdmissionControl;
use super::process::OrderProcess;
use super::request::Order;
use crate::ShopError;
use postrider_patterns::idempotency::{Attempt, IdempotencyError, Outcome, StoredResponse};
use postrider_patterns::saga::{self, Emitted, Saga as _};
use postrider_service::log_throttle::LogThrottle;

#[derive(Clone)]
pub(super) struct OrderPlacer {
    pub(super) pool: Pool,
    pub(super) admission: Arc<AdmissionControl>,
    pub(super) order_timeout: Duration,
    /// Throttles logs of failed requests.
    pub(super) failures: Arc<Mutex<LogThrottle>>,
}

impl OrderPlacer {
    /// Places the order, or finds the response stored for the key.
    pub(super) async fn place(
        &self,
        attempt: &Attempt,
        order: &Order,
    ) -> Result<Outcome, ShopError> {
        let mut client = self.pool.get().await?;
        let effect = async |transaction: &Transaction<'_>| -> Result<StoredResponse, ShopError> {
            let id = Uuid::now_v7();
            insert(transaction, id, order, self.order_timeout).await?;
            Ok(response(id, order)?)
        };
        let placed = attempt.run(&mut client, effect).await;
        if matches!(&placed, Err(error) if error.is_read_only()) {
            // A new session may reach another server.
            drop(Object::take(client));
        }
        placed
    }
}

async fn insert(
    transaction: &Transaction<'_>,
    id: Uuid,
    order: &Order,
    order_timeout: Duration,
) -> Result<(), ShopError> {
    let process = OrderProcess::default();
    transaction
        .execute(
            "INSERT INTO orders (id, customer, amount_cents, status, sku, quantity) \
             VALUES ($1, $2, $3, $4, $5, $6)",
            &[
                &id,
                &order.customer,
                &order.amount_cents,
                &process.status(),
                &order.sku,
                &order.quantity,
            ],
        )
        .await?;
    let payload = json!({
        "order_id": id.to_string(),
        "customer": order.customer,
        "sku": order.sku,
        "quantity": order.quantity,
        "amount_cents": order.amount_cents,
    });
    let created = Emitted::new("OrderCreated", payload);
    saga::start(transaction, &id.to_string(), &process, &[created], order_timeout).await?;
    Ok(())
}

fn response(id: Uuid, order: &Order) -> Result<StoredResponse, IdempotencyError> {
    let body = json!({
        "id": id.to_string(),
        "status": OrderProcess::default().status(),
        "customer": order.customer,
        "sku": order.sku,
        "quantity": order.quantity,
        "amount_cents": order.amount_cents,
    });
    let created = StatusCode::CREATED.as_u16();
    StoredResponse::json(created, &body)?.with_header("location", format!("/orders/{id}"))
}
