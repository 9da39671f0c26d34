//! The order service's HTTP API.
//!
//! Invariant: every error response is an RFC 9457 problem. Requests that need the database pass
//! admission control. The guard's layer drives the handler, so a client that disconnects does not
//! cancel an order half-way.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tracing::warn;
use uuid::Uuid;

use super::admission::Admitted;
use super::place::OrderPlacer;
use super::problem::Problem;
use super::process::OrderProcess;
use super::request::{BODY_MAX, Order};
use crate::ShopError;
use crate::probes::Probes;
use postrider_patterns::idempotency::tower::IdempotencyLayer;
use postrider_patterns::idempotency::{Attempt, Guard, Outcome};
use postrider_patterns::saga;

const PLACE: &str = "POST /orders";
/// Scope of all keys. A service with accounts uses the authenticated account here.
const EVERYBODY: &str = "POST /orders";

pub(super) fn router(orders: OrderPlacer, guard: Guard, probes: Probes) -> Router {
    // The pool's sessions have their own `lock_timeout`.
    let guard = guard.with_lock_timeout(Duration::ZERO);
    let guarded = IdempotencyLayer::new(guard, PLACE, |_: &Parts| Some(EVERYBODY.to_owned()));
    Router::new()
        .route("/orders", post(place).layer(guarded.body_bytes_max(BODY_MAX)))
        .route("/orders/{id}", get(order))
        .route("/orders/{id}/status", get(status))
        .route("/openapi.json", get(openapi))
        .with_state(Arc::new(orders))
        .merge(probes.router())
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

async fn place(
    State(orders): State<Arc<OrderPlacer>>,
    Extension(attempt): Extension<Attempt>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let order = Order::parse(&headers, &body)?;
    let _admitted = admit(&orders).await?;
    let placed = orders.place(&attempt, &order).await;
    placed
        .map(Outcome::into_http)
        .map_err(|error| unavailable(&orders, "cannot write an order", &error))
}

async fn admit(orders: &OrderPlacer) -> Result<Admitted, Problem> {
    orders.admission.enter().await.ok_or_else(Problem::overloaded)
}

async fn order(
    State(orders): State<Arc<OrderPlacer>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = order_id(id)?;
    let _admitted = admit(&orders).await?;
    let found = look_up(&orders, id)
        .await
        .map_err(|error| unavailable(&orders, "cannot read an order", &error))?;
    found.map(|order| axum::Json(order).into_response()).ok_or_else(unknown_order)
}

async fn look_up(orders: &OrderPlacer, id: Uuid) -> Result<Option<Value>, ShopError> {
    let client = orders.pool.get().await?;
    let sql = "SELECT customer, sku, quantity, amount_cents, \
               coalesce((SELECT status FROM sagas WHERE kind = 'order' \
                   AND sagas.id = orders.id::text), status) \
               FROM orders WHERE id = $1 AND sku IS NOT NULL";
    let Some(row) = client.query_opt(sql, &[&id]).await? else { return Ok(None) };
    Ok(Some(json!({
        "id": id.to_string(),
        "status": row.try_get::<_, Option<String>>(4)?,
        "customer": row.try_get::<_, String>(0)?,
        "sku": row.try_get::<_, String>(1)?,
        "quantity": row.try_get::<_, Option<i32>>(2)?,
        "amount_cents": row.try_get::<_, i64>(3)?,
    })))
}

async fn status(
    State(orders): State<Arc<OrderPlacer>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = order_id(id)?.to_string();
    let _admitted = admit(&orders).await?;
    let found = process(&orders, &id)
        .await
        .map_err(|error| unavailable(&orders, "cannot read an order", &error))?;
    found.map(|process| axum::Json(process).into_response()).ok_or_else(unknown_order)
}

async fn process(orders: &OrderPlacer, id: &str) -> Result<Option<Value>, ShopError> {
    let client = orders.pool.get().await?;
    let client = &**client;
    let Some(view) = saga::view::<OrderProcess>(client, id).await? else { return Ok(None) };
    let history = saga::history::<OrderProcess>(client, id).await?;
    Ok(Some(json!({
        "id": id, "status": view.status, "state": view.state, "history": history,
    })))
}

fn order_id(text: Result<Path<String>, PathRejection>) -> Result<Uuid, Problem> {
    let id = text.ok().and_then(|Path(text)| Uuid::parse_str(&text).ok());
    id.ok_or_else(|| {
        let detail = "an order's id is a UUID";
        Problem::new(StatusCode::BAD_REQUEST, "malformed request", detail).of("id")
    })
}

fn unknown_order() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown order", "there is no order with this id").of("id")
}

/// An outage fails every request, so each text is logged once a minute.
fn unavailable(orders: &OrderPlacer, what: &'static str, error: &ShopError) -> Problem {
    let error = error.with_causes();
    let mut failures = orders.failures.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(held_back) = failures.admit(&format!("{what}: {error}"), Instant::now()) {
        warn!(error, held_back, "{what}");
    }
    Problem::unavailable()
}

async fn openapi() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, include_str!("openapi.json")).into_response()
}

async fn method_not_allowed(method: Method) -> Problem {
    let detail = format!("{method} is not supported here; see /openapi.json");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
}

async fn not_found() -> Problem {
    let detail = "no such resource; see /openapi.json";
    Problem::new(StatusCode::NOT_FOUND, "not found", detail)
}
