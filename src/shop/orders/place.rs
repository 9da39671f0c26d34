//! Places an order once, however often the request is sent.
//!
//! Input: a validated [`Order`] and an idempotency key. Output: the response stored for the key, a new
//! response, or a `Problem` for the client. Invariant: order, saga, outbox row and key are written in one
//! transaction, so one key makes at most one order whatever happens to Redis, which caches responses and marks
//! requests in progress; Postgres decides.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use deadpool_postgres::{Object, Pool};
use serde_json::json;
use tokio_postgres::Transaction;
use tracing::warn;
use uuid::Uuid;

use super::admission::AdmissionControl;
use super::in_flight::InFlightKeys;
use super::problem::Problem;
use super::process::OrderProcess;
use super::request::Order;
use crate::ShopError;
use postrider_patterns::idempotency::{
    BeginOutcome, Claim, Guard, IdempotencyError, Lease, OwnerUpdate, Request, StoredResponse,
    claim,
};
use postrider_patterns::saga::{self, Emitted, Saga as _};

/// For the Retry-After header of requests that conflict.
const RETRY_AFTER_S: u64 = 1;

/// Places orders.
#[derive(Clone)]
pub(super) struct OrderPlacer {
    /// The service's database.
    pub(super) pool: Pool,
    /// The idempotency guard in front of it.
    pub(super) guard: Arc<Guard>,
    /// Load shedding in front of both.
    pub(super) admission: Arc<AdmissionControl>,
    /// The keys of requests in flight.
    pub(super) in_flight: Arc<InFlightKeys>,
    /// How long an order may take before it is cancelled.
    pub(super) order_timeout: Duration,
}

/// A response, and whether it is a replay.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    /// What the client gets.
    pub(super) response: StoredResponse,
    /// Whether it is that of an earlier request.
    pub(super) is_replayed: bool,
}

/// Why an order was not written, or may not have been.
enum PlaceError {
    /// The request is refused.
    Refused(Problem),
    /// It was not written.
    Failed(ShopError),
    /// COMMIT was sent and its outcome is unknown.
    Undecided(ShopError),
}

impl<E: Into<ShopError>> From<E> for PlaceError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl PlaceError {
    /// The response to the client.
    fn into_problem(self) -> Problem {
        match self {
            Self::Refused(problem) => problem,
            Self::Failed(ShopError::Key(IdempotencyError::Busy(_))) => {
                pending(Duration::from_secs(RETRY_AFTER_S))
            }
            Self::Failed(error) | Self::Undecided(error) => {
                warn!(error = %error.with_causes(), "cannot write an order");
                Problem::unavailable()
            }
        }
    }
}

impl OrderPlacer {
    /// Places the order, or finds the response stored for the key.
    pub(super) async fn place(&self, request: &Request, order: &Order) -> Result<Placed, Problem> {
        let written = match self.guard.begin(request).await {
            BeginOutcome::New(lease) => self.write_as_owner(request, order, &lease).await,
            BeginOutcome::Pending { retry_after } => return Err(pending(retry_after)),
            BeginOutcome::Replay(response) => Ok(Placed { response, is_replayed: true }),
            BeginOutcome::Mismatch => return Err(mismatch()),
            // Redis cannot decide: Postgres does.
            BeginOutcome::Unsure => self.write(request, order).await,
        };
        written.map_err(PlaceError::into_problem)
    }

    async fn write_as_owner(
        &self,
        request: &Request,
        order: &Order,
        lease: &Lease,
    ) -> Result<Placed, PlaceError> {
        let written = self.guard.run_renewing(lease, self.write(request, order)).await;
        match &written {
            Ok(placed) => {
                let completed = self.guard.complete(lease, &placed.response).await;
                if completed == OwnerUpdate::Stale {
                    // The order exists once all the same: the unique key in Postgres ensures that.
                    warn!("a request outlasted its idempotency lease; its response was not cached");
                }
            }
            // The next request must not find the key free; the lease expires by itself.
            Err(PlaceError::Undecided(_)) => {}
            Err(_) => {
                self.guard.release(lease).await;
            }
        }
        written
    }

    async fn write(&self, request: &Request, order: &Order) -> Result<Placed, PlaceError> {
        let Some(_in_flight) = self.in_flight.enter(request.key()) else {
            return Err(PlaceError::Refused(pending(Duration::from_secs(RETRY_AFTER_S))));
        };
        let mut client = self.pool.get().await?;
        let written = self.write_in(&mut client, request, order).await;
        if matches!(&written, Err(PlaceError::Failed(error)) if error.is_read_only()) {
            // A new session may reach another server.
            drop(Object::take(client));
        }
        written
    }

    async fn write_in(
        &self,
        client: &mut Object,
        request: &Request,
        order: &Order,
    ) -> Result<Placed, PlaceError> {
        let transaction = client.transaction().await?;
        let id = Uuid::now_v7();
        let response = response(id, order)?;
        match claim(&transaction, request, &response).await? {
            Claim::Won => {
                insert(&transaction, id, order, self.order_timeout).await?;
                let committed = transaction.commit().await;
                committed.map_err(|error| PlaceError::Undecided(error.into()))?;
                Ok(Placed { response, is_replayed: false })
            }
            Claim::Done(response) => Ok(Placed { response, is_replayed: true }),
            Claim::Mismatch => Err(PlaceError::Refused(mismatch())),
        }
    }
}

/// The order's row, its saga, and OrderCreated in the outbox.
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
    let headers = vec![
        ("content-type".to_owned(), "application/json".to_owned()),
        ("location".to_owned(), format!("/orders/{id}")),
    ];
    StoredResponse::new(StatusCode::CREATED.as_u16(), headers, body.to_string())
}

fn pending(retry_after: Duration) -> Problem {
    let detail = "a request with this Idempotency-Key is in progress; retry later for its response";
    Problem::new(StatusCode::CONFLICT, "request in progress", detail)
        .of("idempotency-key")
        .retry_after(retry_after.as_secs().clamp(RETRY_AFTER_S, 30))
}

fn mismatch() -> Problem {
    let detail = "this Idempotency-Key belongs to another request; use a new key for a new order";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency key reused", detail)
        .of("idempotency-key")
}
