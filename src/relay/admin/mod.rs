//! Control API under `/api/v1`: pause, resume, drain, reload and log level. Resume also restarts a
//! failed stream.
//!
//! Input: requests on a unix socket that only the relay's user can open, or at `http.bind` with a
//! bearer token. Output: JSON, and [`Order`]s to the program. Invariant: only authorised callers
//! can change anything. Requests from browsers are refused. Requests have bounded size and time.
//! Tokens appear neither in logs nor in responses.

mod access;
mod socket;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{RawQuery, Request, State as Extract};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::stop::StopSignal;
use crate::streams::{StreamHandle, Streams, stream_of};
use crate::telemetry::{
    NextRun, ReloadOutcome, Role, Telemetry, of_pause, readiness, time_text, unix_us,
};
use postrider_core::session::ControlRequest;

pub use access::{Access, read_token};
pub use socket::{ControlSocket, SocketError};

pub const OPENAPI: &str = include_str!("openapi.json");

/// A log filter is far smaller.
const BODY_BYTES_MAX: usize = 4 << 10;
const BODY_LIMIT: Duration = Duration::from_secs(5);
/// A reload queries the database for columns.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// Request that the program running the relay carries out.
#[derive(Debug)]
pub enum Order {
    Reload(oneshot::Sender<ReloadReport>),
    /// Sets the log filter, if given. The answer is the active filter, or an error.
    LogLevel(Option<String>, oneshot::Sender<Result<String, String>>),
}

#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    pub outcome: ReloadOutcome,
    pub changed: Vec<String>,
    /// These options keep their previous values until a restart.
    pub takes_restart: Vec<String>,
    pub errors: Vec<ReloadError>,
    /// Streams that keep their configuration, because their database could not be queried.
    pub not_asked: Vec<ReloadError>,
}

impl ReloadReport {
    pub const fn unchanged() -> Self {
        Self {
            outcome: ReloadOutcome::Unchanged,
            changed: Vec::new(),
            takes_restart: Vec::new(),
            errors: Vec::new(),
            not_asked: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct ReloadError {
    /// For example `PR-C003`.
    pub code: &'static str,
    pub what: String,
    /// `FILE:LINE:COLUMN`, if the error is in a file.
    pub place: Option<String>,
    pub help: Option<String>,
}

/// Clones share their state.
#[derive(Debug, Clone)]
pub struct Admin {
    stop: StopSignal,
    telemetry: Telemetry,
    orders: mpsc::Sender<Order>,
    grace: Duration,
    /// All streams, if the process runs several. A request then names one with `?stream=NAME`.
    streams: Option<Streams>,
    stream: Option<String>,
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the answer by itself")]
struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<String>,
    state: &'static str,
    role: &'static str,
    ready: bool,
    /// Details of checks that fail, or that explain why the relay does not read.
    notes: Vec<String>,
    paused: bool,
    paused_since: Option<String>,
    draining: bool,
    begins_anew_at: Option<String>,
    /// A failed stream restarts only after `resume`.
    waits_for_resume: bool,
    in_flight_records: u64,
    slot: String,
    version: String,
    uptime_seconds: u64,
    reloads: Reloads,
}

#[derive(Debug, Serialize)]
struct Reloads {
    applied: u64,
    refused: u64,
    unchanged: u64,
    last: Option<String>,
    last_outcome: Option<ReloadOutcome>,
}

#[derive(Debug, Serialize)]
struct DrainBegun {
    draining: bool,
    in_flight_records: u64,
    grace_seconds: u64,
    waits_for: &'static str,
}

#[derive(Debug, Serialize)]
struct Filter {
    filter: String,
}

#[derive(Debug, Serialize)]
struct Problem {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

/// Conditions that a drain waits for, in the words of the documentation.
const WAITS_FOR: &str = "the end of the transaction that is being read, the brokers' confirmation of every record that \
                         was sent, and Postgres's word for the acknowledged position; then the process ends with \
                         exit code 0, or with another one after the grace period";

impl Admin {
    pub const fn new(
        stop: StopSignal,
        telemetry: Telemetry,
        orders: mpsc::Sender<Order>,
        grace: Duration,
    ) -> Self {
        Self { stop, telemetry, orders, grace, streams: None, stream: None }
    }

    /// Extends the API to several streams. A drain, a reload and the log level apply to all of
    /// them.
    #[must_use]
    pub fn of_streams(self, streams: Streams) -> Self {
        Self { streams: Some(streams), ..self }
    }

    #[must_use]
    pub fn of_stream(self, stream: Option<String>) -> Self {
        Self { stream, ..self }
    }

    /// Returns the API for the stream that a request names.
    fn meant(self, query: Option<&str>) -> Result<Self, Box<Response>> {
        let name = stream_of(query);
        let Some(streams) = &self.streams else {
            if name.is_none() || name == self.stream.as_deref() {
                return Ok(self);
            }
            let help = "leave ?stream= out";
            let refusal = problem(StatusCode::NOT_FOUND, "the relay has one stream", Some(help));
            return Err(refusal.into());
        };
        match streams.named(name) {
            Ok(one) => {
                let StreamHandle { name, telemetry, stop, .. } = one.clone();
                Ok(Self { stop, telemetry, stream: Some(name), ..self })
            }
            Err(why) => {
                let status = name.map_or(StatusCode::BAD_REQUEST, |_| StatusCode::NOT_FOUND);
                let help = "name one: ?stream=NAME, or `postrider ctl --stream NAME`";
                Err(problem(status, &why, Some(help)).into())
            }
        }
    }

    pub(crate) fn routes(self, access: Access) -> Router {
        let control = Router::new()
            .route("/api/v1/pause", post(pause))
            .route("/api/v1/resume", post(resume))
            .route("/api/v1/drain", post(drain))
            .route("/api/v1/reload", post(reload))
            .route("/api/v1/log-level", get(level).put(set_level))
            .route("/api/v1/status", get(status));
        control
            .route_layer(from_fn_with_state(access, admitted))
            .route("/api/v1/openapi.json", get(document))
            .with_state(self)
    }

    fn status(&self) -> Status {
        let view = self.telemetry.view();
        let health = readiness(&view, Role::Any);
        let notes = health.checks.iter().filter(|check| !check.ok || check.name == "paused");
        let (operated, next_run) = (&view.operated, view.next_run.as_ref());
        let [applied, refused, unchanged] = operated.reloads;
        Status {
            stream: self.stream.clone(),
            state: health.state,
            role: health.role,
            ready: health.ok,
            notes: notes.map(|check| check.detail.clone()).collect(),
            paused: operated.paused_since_us.is_some(),
            paused_since: operated.paused_since_us.map(time_text),
            draining: self.is_draining(),
            begins_anew_at: next_run.and_then(|next| next.at_us).map(time_text),
            waits_for_resume: next_run.is_some_and(|next| next.at_us.is_none()),
            in_flight_records: view.snapshot.in_flight_records,
            slot: self.telemetry.build().slot.clone(),
            version: self.telemetry.build().version.clone(),
            uptime_seconds: view.uptime.as_secs(),
            reloads: Reloads {
                applied,
                refused,
                unchanged,
                last: operated.last_reload.map(|(time_us, _)| time_text(time_us)),
                last_outcome: operated.last_reload.map(|(_, outcome)| outcome),
            },
        }
    }

    fn is_draining(&self) -> bool {
        self.stop.most_urgent() >= ControlRequest::Drain
    }

    async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<T>) -> Order,
    ) -> Result<T, Response> {
        let gone = || problem(StatusCode::SERVICE_UNAVAILABLE, "the relay is ending", None);
        let (answer, answered) = oneshot::channel();
        // Earlier orders may take up to the limit too.
        let carried_out = async {
            self.orders.send(order(answer)).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(ORDER_LIMIT, carried_out).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(gone()),
            Err(_) => {
                let late =
                    format!("no result within {} s; it may still come", ORDER_LIMIT.as_secs());
                Err(problem(StatusCode::GATEWAY_TIMEOUT, &late, Some("look at the log")))
            }
        }
    }
}

async fn pause(Extract(admin): Extract<Admin>, RawQuery(query): RawQuery) -> Response {
    let admin = match admin.meant(query.as_deref()) {
        Ok(admin) => admin,
        Err(response) => return *response,
    };
    if admin.is_draining() {
        return problem(StatusCode::CONFLICT, "the relay is stopping", None);
    }
    if admin.stop.control().pause() {
        admin.telemetry.set_paused(true);
        tracing::info!(
            stream = admin.stream,
            "paused by the control API until `postrider ctl resume`: {}",
            of_pause(&admin.telemetry.view())
        );
    }
    Json(admin.status()).into_response()
}

async fn resume(Extract(admin): Extract<Admin>, RawQuery(query): RawQuery) -> Response {
    let admin = match admin.meant(query.as_deref()) {
        Ok(admin) => admin,
        Err(response) => return *response,
    };
    if admin.stop.control().resume() {
        admin.telemetry.set_paused(false);
        tracing::info!(stream = admin.stream, "resumed by the control API");
    }
    if let Some(failed) = admin.telemetry.view().next_run {
        // The stream restarts within a moment, so the state reports it now.
        admin.telemetry.set_next_run(Some(NextRun { at_us: Some(unix_us()), ..failed }));
        admin.stop.control().begin_anew(None);
    }
    Json(admin.status()).into_response()
}

async fn drain(Extract(admin): Extract<Admin>, RawQuery(query): RawQuery) -> Response {
    if stream_of(query.as_deref()).is_some() {
        let help = "leave ?stream= out, or pause the stream";
        return problem(StatusCode::BAD_REQUEST, "a drain ends the whole process", Some(help));
    }
    if !admin.is_draining() {
        admin.stop.request(ControlRequest::Drain);
        tracing::info!("stopping by the control API; SIGTERM twice to abort");
    }
    let in_flight = |telemetry: &Telemetry| telemetry.view().snapshot.in_flight_records;
    let in_flight_records = match &admin.streams {
        None => in_flight(&admin.telemetry),
        Some(streams) => streams.each().map(|one| in_flight(&one.telemetry)).sum(),
    };
    let grace_seconds = admin.grace.saturating_sub(admin.stop.told_for()).as_secs();
    let begun =
        DrainBegun { draining: true, in_flight_records, grace_seconds, waits_for: WAITS_FOR };
    (StatusCode::ACCEPTED, Json(begun)).into_response()
}

async fn reload(Extract(admin): Extract<Admin>) -> Response {
    match admin.order(Order::Reload).await {
        Ok(report) => {
            let status = match report.outcome {
                ReloadOutcome::Refused => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadOutcome::Applied | ReloadOutcome::Unchanged => StatusCode::OK,
            };
            (status, Json(report)).into_response()
        }
        Err(response) => response,
    }
}

async fn level(Extract(admin): Extract<Admin>) -> Response {
    filtered(admin.order(|answer| Order::LogLevel(None, answer)).await)
}

async fn set_level(Extract(admin): Extract<Admin>, body: Bytes) -> Response {
    let text = std::str::from_utf8(&body).map(str::trim).unwrap_or_default();
    if text.is_empty() {
        let help = "send the filter as text: `info`, or `info,postrider::kafka=debug`";
        return problem(StatusCode::BAD_REQUEST, "the body is not a filter", Some(help));
    }
    let filter = Some(text.to_owned());
    filtered(admin.order(|answer| Order::LogLevel(filter, answer)).await)
}

fn filtered(answer: Result<Result<String, String>, Response>) -> Response {
    match answer {
        Ok(Ok(filter)) => Json(Filter { filter }).into_response(),
        Ok(Err(why)) => {
            let help = "write a level (error, warn, info, debug, trace), or levels by part: \
                        `info,postrider::kafka=debug`";
            problem(StatusCode::BAD_REQUEST, &why, Some(help))
        }
        Err(response) => response,
    }
}

async fn status(Extract(admin): Extract<Admin>, RawQuery(query): RawQuery) -> Response {
    match admin.meant(query.as_deref()) {
        Ok(admin) => Json(admin.status()).into_response(),
        Err(response) => *response,
    }
}

async fn document() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, OPENAPI).into_response()
}

async fn admitted(Extract(access): Extract<Access>, request: Request, next: Next) -> Response {
    let mut response = match access.refusal(request.headers()).await {
        Some(refusal) => refusal.into_response(),
        None => match whole(request).await {
            Ok(request) => next.run(request).await,
            Err(response) => response,
        },
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Reads the body, with limits for size and time.
async fn whole(request: Request) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let Ok(read) = tokio::time::timeout(BODY_LIMIT, to_bytes(body, BODY_BYTES_MAX)).await else {
        let late = format!("the body did not come within {} s", BODY_LIMIT.as_secs());
        return Err(problem(StatusCode::REQUEST_TIMEOUT, &late, None));
    };
    let Ok(body) = read else {
        let large = format!("the body has {BODY_BYTES_MAX} bytes at most");
        return Err(problem(StatusCode::PAYLOAD_TOO_LARGE, &large, None));
    };
    if parts.method == axum::http::Method::POST && !body.is_empty() {
        return Err(problem(StatusCode::BAD_REQUEST, "the request has no body", None));
    }
    Ok(Request::from_parts(parts, Body::from(body)))
}

fn problem(status: StatusCode, error: &str, help: Option<&str>) -> Response {
    let problem = Problem { error: error.to_owned(), help: help.map(str::to_owned) };
    (status, Json(problem)).into_response()
}

#[cfg(test)]
mod tests;
