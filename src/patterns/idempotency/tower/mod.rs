//! The guard as a tower layer. A request that passes carries its [`Attempt`] in its extensions.
//!
//! Input: an HTTP request, the name of the operation, and a closure that returns the caller.
//! Output: the handler's response, a stored response, or a problem (RFC 9457):
//!
//! * 400 without a usable key, 403 without a caller
//! * 408 for a body that is too slow, 413 for one that is too large
//! * 409 while another attempt of this request is in progress
//! * 422 for a key of another request
//!
//! Invariant: a handler whose client hangs up continues. A success without [`Attempt::run`] is an
//! error.
//!
//! Put a layer that limits the time of a request outside this one (in axum, add it after this one),
//! so that the work continues. Bound a handler's waits (`statement_timeout`), because a handler that
//! hangs keeps its session and its key.
//!
//! # An endpoint
//!
//! With other drivers than tokio-postgres, the handler calls [`Attempt::run_in`].
//!
//! ```
//! use axum::extract::{Extension, State};
//! use axum::response::Response;
//! use axum::{Json, Router, routing::post};
//! use postrider_patterns::idempotency::tower::IdempotencyLayer;
//! use postrider_patterns::idempotency::{Attempt, Guard, StoredResponse};
//! # use postrider_patterns::idempotency::IdempotencyError;
//! # #[derive(Clone)]
//! # struct Pool;
//! # impl Pool { async fn get(&self) -> Result<tokio_postgres::Client, Failed> { Err(Failed) } }
//! # struct Failed;
//! # impl From<IdempotencyError> for Failed { fn from(_: IdempotencyError) -> Self { Self } }
//! # impl From<tokio_postgres::Error> for Failed { fn from(_: tokio_postgres::Error) -> Self { Self } }
//! # impl axum::response::IntoResponse for Failed {
//! #     fn into_response(self) -> Response { axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response() }
//! # }
//!
//! async fn place(
//!     State(pool): State<Pool>,
//!     Extension(attempt): Extension<Attempt>,
//!     Json(order): Json<serde_json::Value>,
//! ) -> Result<Response, Failed> {
//!     let mut client = pool.get().await?;
//!     let effect = async |transaction: &tokio_postgres::Transaction<'_>| -> Result<_, Failed> {
//!         let id = uuid::Uuid::now_v7();
//!         transaction.execute("INSERT INTO orders VALUES ($1, $2)", &[&id, &order]).await?;
//!         Ok(StoredResponse::json(201, &serde_json::json!({ "id": id.to_string() }))?)
//!     };
//!     Ok(attempt.run(&mut client, effect).await?.into_http())
//! }
//!
//! fn service(guard: Guard, pool: Pool) -> Router {
//!     // Whoever has checked the caller's token leaves the account among the extensions.
//!     let account = |request: &axum::http::request::Parts| {
//!         request.extensions.get::<Account>().map(|account| account.0.clone())
//!     };
//!     let orders = post(place).layer(IdempotencyLayer::new(guard, "POST /orders", account));
//!     Router::new().route("/orders", orders).with_state(pool)
//! }
//!
//! #[derive(Clone)]
//! struct Account(String);
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async { service(Guard::without_redis(), Pool) });
//! ```

mod body;
mod problem;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use super::attempt::{Attempt, Outcome};
use super::canonical::canonical;
use super::enter::Entry;
use super::guard::Guard;
use super::request::{Fingerprint, Key, Request};
use super::response::StoredResponse;
use problem::Problem;

const KEY_HEADER: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Deeply nested JSON of this size takes a few milliseconds to canonicalize.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// A slower client would occupy a connection and memory.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// Puts the guard in front of a service.
#[derive(Debug, Clone)]
pub struct IdempotencyLayer<C> {
    guard: Guard,
    operation: Arc<str>,
    caller: C,
    key_is_optional: bool,
    body_bytes_max: usize,
    body_time_max: Duration,
}

impl<C: Fn(&Parts) -> Option<String>> IdempotencyLayer<C> {
    /// Creates a layer. `operation` is the handler's own, permanent name, such as `POST /orders`,
    /// because the fingerprint contains it. With a shared name, the second handler would return the
    /// first one's response and have no effect.
    ///
    /// The URI alone does not distinguish handlers: `Router::nest` strips its prefix. If the prefix
    /// has a parameter (`/accounts/{id}`), put the layer outside the router that nests.
    ///
    /// `caller` returns the authenticated owner of a request's keys, the scope of [`Request::new`].
    /// `None` is refused with 403. A key that is used for two operations gets 422 for the second.
    pub fn new(guard: Guard, operation: impl Into<Arc<str>>, caller: C) -> Self {
        Self {
            guard,
            operation: operation.into(),
            caller,
            key_is_optional: false,
            body_bytes_max: BODY_BYTES_MAX,
            body_time_max: BODY_TIME_MAX,
        }
    }

    /// Accepts requests without a key. They are not guarded: [`Attempt::run`] runs the effect each
    /// time. A key that is sent must still be valid.
    #[must_use]
    pub fn key_optional(mut self) -> Self {
        self.key_is_optional = true;
        self
    }

    /// Sets the maximum size of a body in bytes; 64 KiB by default.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// Sets how long a body may take to arrive; 5 s by default.
    #[must_use]
    pub fn body_time_max(mut self, time: Duration) -> Self {
        self.body_time_max = time;
        self
    }
}

impl<C: Clone, S> Layer<S> for IdempotencyLayer<C> {
    type Service = Idempotency<C, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency { layer: self.clone(), inner }
    }
}

/// A service behind the guard. Safe methods (GET, HEAD, OPTIONS, TRACE) pass.
#[derive(Debug, Clone)]
pub struct Idempotency<C, S> {
    layer: IdempotencyLayer<C>,
    inner: S,
}

impl<C, S, B, R> Service<http::Request<B>> for Idempotency<C, S>
where
    C: Fn(&Parts) -> Option<String> + Clone + Send + Sync + 'static,
    S: Service<http::Request<B>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data: Send, Error: Send> + From<Bytes> + Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.method().is_safe() {
            return Box::pin(self.inner.call(request));
        }
        // The polled service is ready; its clone need not be.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            if layer.key_is_optional && !parts.headers.contains_key(KEY_HEADER) {
                return execute(inner, Attempt::without_key(), parts, body).await;
            }
            let read = layer.read(&parts, body).await;
            let (request, bytes) = match read {
                Ok(read) => read,
                Err(problem) => return Ok(problem.into_http()),
            };
            match layer.guard.enter(&request).await {
                Entry::Answer(outcome) => Ok(outcome.into_http()),
                Entry::Execute(attempt) => execute(inner, attempt, parts, B::from(bytes)).await,
            }
        })
    }
}

async fn execute<S, B, R>(
    mut inner: S,
    attempt: Attempt,
    mut parts: Parts,
    body: B,
) -> Result<http::Response<R>, S::Error>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    parts.extensions.insert(attempt.clone());
    let handled = inner.call(http::Request::from_parts(parts, body));
    let handled = match attempt.clone().detached(handled).await {
        Ok(handled) => handled?,
        Err(error) => {
            tracing::warn!(%error, "a request was not executed");
            return Ok(Problem::unavailable().into_http());
        }
    };
    if handled.status().is_success() && !attempt.was_run() {
        tracing::error!("the handler of a guarded request has succeeded without `Attempt::run`");
        return Ok(Problem::unguarded().into_http());
    }
    Ok(handled)
}

impl<C: Fn(&Parts) -> Option<String>> IdempotencyLayer<C> {
    async fn read<B>(&self, parts: &Parts, body: B) -> Result<(Request, Bytes), Problem>
    where
        B: http_body::Body<Data: Send, Error: Send> + Send + 'static,
    {
        let key = key(&parts.headers)?;
        let scope = (self.caller)(parts).ok_or_else(Problem::without_caller)?;
        let body = body::read(body, self.body_bytes_max, self.body_time_max).await?;
        let fingerprint = fingerprint(&self.operation, parts, &body);
        let request = Request::new(scope, key, fingerprint).map_err(|error| {
            tracing::error!(%error, "a caller cannot be the scope of idempotency keys");
            Problem::without_caller()
        })?;
        Ok((request, body))
    }
}

fn key(headers: &HeaderMap) -> Result<Key, Problem> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Err(Problem::without_key()) };
    if values.next().is_some() {
        return Err(Problem::key("send exactly one key"));
    }
    Key::parse(value.as_bytes()).map_err(|refusal| Problem::key(refusal.to_string()))
}

/// Uses the canonical form of JSON. Other bodies, and invalid JSON, count byte by byte.
fn fingerprint(operation: &str, parts: &Parts, body: &[u8]) -> Fingerprint {
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map_or("", str::trim);
    let essence = essence.to_ascii_lowercase();
    let is_json = essence == "application/json" || essence.ends_with("+json");
    let form = is_json.then(|| canonical(body)).flatten();
    let body = form.as_deref().unwrap_or(body);
    Fingerprint::of_parts(&[
        operation.as_bytes(),
        parts.method.as_str().as_bytes(),
        path.as_bytes(),
        body,
    ])
}

impl Outcome {
    /// Client's response. A replay is marked `Idempotent-Replayed: true`. Other
    /// outcomes are problems (409 or 422).
    pub fn into_http<R: From<Bytes>>(self) -> http::Response<R> {
        match self {
            Self::Executed(response) => response.into_http(),
            Self::Replayed(response) => {
                let mut response = response.into_http();
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
                response
            }
            Self::Pending { retry_after } => Problem::pending(retry_after).into_http(),
            Self::Mismatch => Problem::mismatch().into_http(),
        }
    }
}

impl StoredResponse {
    /// Converts the response to an HTTP response.
    pub fn into_http<R: From<Bytes>>(self) -> http::Response<R> {
        let mut response = http::Response::new(R::from(self.body().clone()));
        let Ok(status) = StatusCode::from_u16(self.status()) else {
            unreachable!("a stored response has a status from 200 to 599");
        };
        *response.status_mut() = status;
        for (name, value) in self.headers() {
            let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value))
            else {
                unreachable!("the headers of a stored response are valid HTTP");
            };
            response.headers_mut().append(name, value);
        }
        response
    }
}
