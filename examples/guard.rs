//! An HTTP endpoint whose repeated requests have one effect: the guard as a layer, and `Attempt::run`.
//!
//! ```toml
//! postrider-patterns = { version = "0.1", features = ["idempotency-tower", "outbox-writer"] }
//! axum = { version = "0.8", default-features = false, features = ["http1", "json", "tokio"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "net", "rt"] }
//! tokio-postgres = "0.7"
//! ```
//!
//! Input: `DATABASE_URL`, `REDIS_URL` (without it Postgres decides alone), `BIND`. Output: `POST /orders`, whose
//! address is the first line on standard output. Invariant: one order and one event for each key of a caller.

use std::io::Write as _;

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use postrider_patterns::idempotency::tower::IdempotencyLayer;
use postrider_patterns::idempotency::{Attempt, Guard, GuardSettings, StoredResponse};
use postrider_patterns::migrations::{Piece, migrate};
use postrider_patterns::outbox_writer::{Event, append};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls, Transaction};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let mut client = connect().await?;
    migrate(&mut client, "public", &[Piece::Outbox, Piece::Idempotency]).await?;
    client
        .batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item jsonb)")
        .await?;
    let guard = match std::env::var("REDIS_URL") {
        Ok(url) => Guard::connect(&url, &GuardSettings::default())?,
        Err(_) => Guard::without_redis(),
    };
    let layer = IdempotencyLayer::new(guard, "POST /orders", account);
    let router = Router::new().route("/orders", post(place).layer(layer));
    let listener = tokio::net::TcpListener::bind(std::env::var("BIND")?).await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    axum::serve(listener, router).await?;
    Ok(())
}

/// The endpoint.
async fn place(attempt: Extension<Attempt>, item: Json<Value>) -> Result<Response, Failed> {
    let effect = async |transaction: &Transaction<'_>| -> Result<_, Failed> {
        let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
        let id: i64 = transaction.query_one(insert, &[&item.0]).await?.try_get(0)?;
        let event = Event::new("order", id.to_string(), "OrderPlaced", item.0.clone());
        append(transaction, &event).await?;
        Ok(StoredResponse::json(201, &json!({ "order": id }))?)
    };
    Ok(attempt.run(&mut connect().await?, effect).await?.into_http())
}

/// Whose keys the request's are. In production: the account that a layer outside of this one has authenticated.
fn account(request: &Parts) -> Option<String> {
    let name = request.headers.get("x-account")?.to_str().ok()?;
    Some(name.to_owned())
}

/// In production: a session of a pool.
async fn connect() -> Result<Client, AnyError> {
    let url = std::env::var("DATABASE_URL")?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

struct Failed;

impl<E: Into<AnyError>> From<E> for Failed {
    fn from(error: E) -> Self {
        // In production: to the log.
        drop(error.into());
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}
