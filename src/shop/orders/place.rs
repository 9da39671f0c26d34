//! Places an order once, however often it is asked for.
//!
//! Enters: a checked [`Order`] and an idempotency key. Leaves: the answer that this key has got, or
//! gets now. What always holds: order, saga, outbox row and key are written in one transaction, so an
//! order is there once, whatever becomes of Redis; Redis only saves the database from repeats. Called
//! by `http`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use deadpool_postgres::{Object, Pool};
use serde_json::json;
use tokio_postgres::Transaction;
use tracing::warn;
use uuid::Uuid;

use super::admission::Admission;
use super::problem::Problem;
use super::process::OrderProcess;
use super::request::Order;
use super::under_way::UnderWay;
use crate::ShopError;
use postrider_patterns::idempotency::{
    Answer, Begun, Claim, Completed, Guard, IdempotencyError, Permit, Request, claim,
};
use postrider_patterns::saga::{self, Emitted, Saga as _};

/// Clients that conflict should not come back all at once.
const RETRY_AFTER_S: u64 = 1;

/// What places orders.
#[derive(Clone)]
pub(super) struct Placing {
    /// The service's database.
    pub(super) pool: Pool,
    /// In front of it.
    pub(super) guard: Arc<Guard>,
    /// In front of both.
    pub(super) admission: Arc<Admission>,
    /// The keys that are being written for.
    pub(super) under_way: Arc<UnderWay>,
    /// How long an order may take before it is given up.
    pub(super) patience: Duration,
}

/// An answer, and whether an earlier request has got it too.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    /// What the client gets.
    pub(super) answer: Answer,
    /// Whether it is an earlier answer.
    pub(super) is_replayed: bool,
}

/// Why an order is not known to be written.
enum Unwritten {
    /// It may not be.
    Refused(Problem),
    /// It was not.
    Failed(ShopError),
    /// The commit was asked for, and nobody said what became of it.
    Undecided(ShopError),
}

impl<E: Into<ShopError>> From<E> for Unwritten {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Unwritten {
    /// What the client is told.
    fn tell(self) -> Problem {
        match self {
            Self::Refused(problem) => problem,
            Self::Failed(ShopError::Key(IdempotencyError::Busy(_))) => {
                pending(Duration::from_secs(RETRY_AFTER_S))
            }
            Self::Failed(error) | Self::Undecided(error) => {
                warn!(error = %error.in_full(), "an order was not written");
                Problem::unavailable()
            }
        }
    }
}

impl Placing {
    /// Places the order, or finds the answer that the key has got.
    pub(super) async fn place(&self, request: &Request, order: &Order) -> Result<Placed, Problem> {
        let written = match self.guard.begin(request).await {
            Begun::New(permit) => self.write_as_owner(request, order, &permit).await,
            Begun::Pending { retry_after } => return Err(pending(retry_after)),
            Begun::Replay(answer) => Ok(Placed { answer, is_replayed: true }),
            Begun::Mismatch => return Err(mismatch()),
            // Redis does not know: Postgres does.
            Begun::Unsure => self.write(request, order).await,
        };
        written.map_err(Unwritten::tell)
    }

    async fn write_as_owner(
        &self,
        request: &Request,
        order: &Order,
        permit: &Permit,
    ) -> Result<Placed, Unwritten> {
        let written = self.guard.hold(permit, self.write(request, order)).await;
        match &written {
            Ok(placed) => {
                let completed = self.guard.complete(permit, &placed.answer).await;
                if completed == Completed::Stale {
                    // The order is there once all the same: the key in Postgres saw to that.
                    warn!("a request took longer than its permit; its answer was not remembered");
                }
            }
            // Whoever comes next must not take it for undone; the permit ends by itself.
            Err(Unwritten::Undecided(_)) => {}
            Err(_) => {
                self.guard.release(permit).await;
            }
        }
        written
    }

    async fn write(&self, request: &Request, order: &Order) -> Result<Placed, Unwritten> {
        let Some(_turn) = self.under_way.enter(request.key()) else {
            return Err(Unwritten::Refused(pending(Duration::from_secs(RETRY_AFTER_S))));
        };
        let mut client = self.pool.get().await?;
        let written = self.write_in(&mut client, request, order).await;
        if matches!(&written, Err(Unwritten::Failed(error)) if error.is_read_only()) {
            // The next session may lead to another server.
            drop(Object::take(client));
        }
        written
    }

    async fn write_in(
        &self,
        client: &mut Object,
        request: &Request,
        order: &Order,
    ) -> Result<Placed, Unwritten> {
        let transaction = client.transaction().await?;
        let id = Uuid::now_v7();
        let answer = answer(id, order)?;
        match claim(&transaction, request, &answer).await? {
            Claim::Won => {
                insert(&transaction, id, order, self.patience).await?;
                let committed = transaction.commit().await;
                committed.map_err(|error| Unwritten::Undecided(error.into()))?;
                Ok(Placed { answer, is_replayed: false })
            }
            Claim::Done(answer) => Ok(Placed { answer, is_replayed: true }),
            Claim::Mismatch => Err(Unwritten::Refused(mismatch())),
        }
    }
}

/// The order's row, its saga, and OrderCreated in the outbox.
async fn insert(
    transaction: &Transaction<'_>,
    id: Uuid,
    order: &Order,
    patience: Duration,
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
    let created = Emitted {
        event_type: "OrderCreated",
        payload: json!({
            "order_id": id.to_string(),
            "customer": order.customer,
            "sku": order.sku,
            "quantity": order.quantity,
            "amount_cents": order.amount_cents,
        }),
    };
    saga::start(transaction, &id.to_string(), &process, &[created], patience).await?;
    Ok(())
}

fn answer(id: Uuid, order: &Order) -> Result<Answer, IdempotencyError> {
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
    Answer::new(StatusCode::CREATED.as_u16(), headers, body.to_string())
}

fn pending(retry_after: Duration) -> Problem {
    let detail =
        "a request with this Idempotency-Key is being carried out; come again for its answer";
    Problem::new(StatusCode::CONFLICT, "request in progress", detail)
        .of("idempotency-key")
        .again_after(retry_after.as_secs().clamp(RETRY_AFTER_S, 30))
}

fn mismatch() -> Problem {
    let detail = "this Idempotency-Key belongs to another request; use a new key for a new order";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency key reused", detail)
        .of("idempotency-key")
}
