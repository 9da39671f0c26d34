//! The order service's HTTP API: place an order, read its data or its saga's history, read the OpenAPI
//! document.
//!
//! Input: HTTP requests; a POST needs an `Idempotency-Key`. Output: JSON; the routes of the probes are
//! included. Invariant: every error response of these handlers is an RFC 9457 problem; requests that need the
//! database pass admission control, probes and metrics do not; a client that disconnects does not cancel an
//! order half-way.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tracing::warn;
use uuid::Uuid;

use super::admission::Admitted;
use super::place::{OrderPlacer, Placed};
use super::problem::Problem;
use super::process::OrderProcess;
use super::request::{BODY_MAX, Order};
use crate::ShopError;
use crate::probes::Probes;
use postrider_patterns::idempotency::{Fingerprint, Key, Request};
use postrider_patterns::saga;

/// Keys of clients that share this scope must differ; a service with tenants puts the tenant here.
const SCOPE: &str = "POST /orders";
const KEY_HEADER: &str = "idempotency-key";
/// More than enough for a body of 16 KiB. A slower client would occupy a connection and memory.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);
/// Marks a response that is a replay.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// All routes.
pub(super) fn router(orders: OrderPlacer, probes: Probes) -> Router {
    Router::new()
        .route("/orders", post(place))
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
    request: HttpRequest,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let key = key(&headers)?;
    let body = tokio::time::timeout(BODY_TIME_MAX, Bytes::from_request(request, &())).await;
    let body = body.map_err(|_| too_slow())?.map_err(|refused| too_large(&refused))?;
    let order = Order::parse(&headers, &body)?;
    let fingerprint = Fingerprint::of("POST", "/orders", &order.canonical());
    let request = Request::new(SCOPE, key, fingerprint).map_err(|_| Problem::unavailable())?;
    let admitted = admit(&orders).await?;
    // A client that disconnects must not cancel the work half-way and leave its key pending, nor free its
    // slot before the work is done.
    let work = tokio::spawn(async move {
        let placed = orders.place(&request, &order).await;
        drop(admitted);
        placed
    });
    let placed = work.await.map_err(|_| Problem::unavailable())?;
    Ok(respond(&placed?))
}

async fn admit(orders: &OrderPlacer) -> Result<Admitted, Problem> {
    orders.admission.enter().await.ok_or_else(Problem::overloaded)
}

/// The one key that the request has.
fn key(headers: &HeaderMap) -> Result<Key, Problem> {
    let refused =
        |title, detail: String| Problem::new(StatusCode::BAD_REQUEST, title, detail).of(KEY_HEADER);
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else {
        let detail = "send a key of your own choice, such as a UUID, and the same key when you \
                      retry the same order";
        return Err(refused("idempotency key missing", detail.to_owned()));
    };
    if values.next().is_some() {
        return Err(refused("idempotency key not usable", "send exactly one key".to_owned()));
    }
    Key::parse(value.as_bytes())
        .map_err(|error| refused("idempotency key not usable", error.to_string()))
}

fn too_large(refused: &BytesRejection) -> Problem {
    if refused.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = format!("the body may have {BODY_MAX} bytes");
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body too large", detail).of("body");
    }
    Problem::new(
        StatusCode::BAD_REQUEST,
        "malformed request",
        "the body was not received completely",
    )
}

fn too_slow() -> Problem {
    let detail = format!("the body must arrive within {} s", BODY_TIME_MAX.as_secs());
    Problem::new(StatusCode::REQUEST_TIMEOUT, "body too slow", detail).of("body")
}

fn respond(placed: &Placed) -> Response {
    let mut response = Response::new(Body::from(placed.response.body().clone()));
    let Ok(status) = StatusCode::from_u16(placed.response.status()) else {
        unreachable!("an answer has a status from 200 to 599");
    };
    *response.status_mut() = status;
    for (name, value) in placed.response.headers() {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    if placed.is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

async fn order(
    State(orders): State<Arc<OrderPlacer>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = order_id(id)?;
    let _admitted = admit(&orders).await?;
    let found = look_up(&orders, id).await.map_err(|error| unavailable(&error))?;
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
    let found = process(&orders, &id).await.map_err(|error| unavailable(&error))?;
    found.map(|process| axum::Json(process).into_response()).ok_or_else(unknown_order)
}

/// The saga's state and its history.
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

fn unavailable(error: &ShopError) -> Problem {
    warn!(error = %error.with_causes(), "cannot read an order");
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
