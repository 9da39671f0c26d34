//! HTTP endpoints `/livez`, `/readyz` and `/metrics`, and the dashboard at `/`.
//!
//! Invariant: all endpoints are read-only, except the control API ([`crate::admin`]). Secrets are
//! never served, and payloads only if `http.dashboard_payloads` is on.

use std::future::Future;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{RawQuery, State as Extract};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::Serialize;

use super::dashboard::Dashboard;
use super::health::{Role, liveness, readiness};
use super::metrics::{ProcessMetrics, RelayMetrics};
use super::{Telemetry, View, process};
use crate::admin::{Access, Admin};
use crate::streams::{StreamHandle, Streams, stream_of};
use postrider_kafka::{DeliveredTap, Traces};
use postrider_service::http::{self, metrics_response, metrics_response_of_all};
use postrider_service::prometheus::Metrics;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("cannot listen on {address}")]
    Bind {
        /// From the configuration.
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the HTTP listener failed")]
    Serve(#[source] std::io::Error),
}

impl HttpError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => Some(
                "choose another port: --set http.bind=127.0.0.1:8485; or none: --set http.bind="
                    .to_owned(),
            ),
            Self::Bind { .. } => Some("set `http.bind` to an address of this host".to_owned()),
            Self::Serve(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct Listener {
    inner: tokio::net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds early, so that a port conflict stops the start instead of the run.
    pub async fn bind(address: SocketAddr) -> Result<Self, HttpError> {
        let failed = |source| HttpError::Bind { address, source };
        let inner = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
        let address = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, address })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Answers requests until `shutdown` completes. The dashboard shows records from the tap.
pub async fn serve(
    listener: Listener,
    telemetry: Telemetry,
    dashboard: Option<DeliveredTap>,
    admin: Option<(Admin, Access)>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), HttpError> {
    let control = admin.map_or_else(Router::new, |(admin, access)| admin.routes(access));
    let routes = probes(telemetry.clone()).merge(control);
    let dashboard = dashboard.map(|tap| Dashboard::new(telemetry, tap, listener.address.ip()));
    serve_with(dashboard, listener, routes, shutdown).await
}

pub async fn serve_streams(
    listener: Listener,
    streams: Streams,
    has_page: bool,
    admin: Option<(Admin, Access)>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), HttpError> {
    let control = admin.map_or_else(Router::new, |(admin, access)| admin.routes(access));
    let routes = Router::new()
        .route(
            "/livez",
            get(|Extract(streams): Extract<Streams>| async move {
                let health = streams.liveness();
                answer(health.whole.ok, health)
            }),
        )
        .route("/readyz", get(readyz_of_streams))
        .route("/metrics", get(metrics_of_streams))
        .with_state(streams.clone())
        .merge(control);
    let dashboard = has_page.then(|| Dashboard::of_streams(&streams, listener.address.ip()));
    serve_with(dashboard, listener, routes, shutdown).await
}

async fn serve_with(
    dashboard: Option<Dashboard>,
    listener: Listener,
    routes: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), HttpError> {
    let Some(dashboard) = dashboard else {
        let served = http::serve(listener.inner, routes, shutdown).await;
        return served.map_err(HttpError::Serve);
    };
    let routes = routes.merge(dashboard.clone().routes());
    tokio::select! {
        served = http::serve(listener.inner, routes, shutdown) => served.map_err(HttpError::Serve),
        () = dashboard.sample() => Ok(()),
    }
}

/// Query: `?role=..`, `?streams=any` if one ready stream is enough, and `?stream=NAME`.
async fn readyz_of_streams(
    Extract(streams): Extract<Streams>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(Wanted { role, is_any, stream }) = Wanted::of(query.as_deref()) else {
        return no_role();
    };
    let Some(name) = stream else {
        let health = if is_any { streams.readiness_of_any(role) } else { streams.readiness(role) };
        return answer(health.whole.ok, health);
    };
    match streams.named(Some(name)) {
        Ok(one) => {
            let health = readiness(&one.telemetry.view(), role);
            answer(health.ok, health)
        }
        Err(why) => (StatusCode::NOT_FOUND, why + "\n").into_response(),
    }
}

/// Metrics of a stream have the label `stream`.
async fn metrics_of_streams(
    Extract(streams): Extract<Streams>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let named = stream_of(query.as_deref()).map(|name| streams.named(Some(name)));
    let named = match named.transpose() {
        Ok(named) => named,
        Err(why) => return (StatusCode::NOT_FOUND, why + "\n").into_response(),
    };
    let of_stream = |one: &StreamHandle| {
        // All streams export their spans together, so spans are counted per process.
        let view = View { traces: Traces::default(), ..one.telemetry.view() };
        let build = one.telemetry.build().clone();
        let metrics: Box<dyn Metrics> = Box::new(RelayMetrics { view, build, usage: None });
        (Some(("stream", one.name.clone())), metrics)
    };
    let is_meant = |one: &&StreamHandle| named.is_none_or(|named| named.name == one.name);
    let mut parts: Vec<_> = streams.each().filter(is_meant).map(of_stream).collect();
    let mut traces = streams.each().map(|one| one.telemetry.view().traces);
    let traces = traces.find(|traces| traces.counts().is_some()).unwrap_or_default();
    parts.push((None, Box::new(ProcessMetrics { usage: process::usage(), traces })));
    metrics_response_of_all(parts, &headers)
}

struct Wanted<'a> {
    role: Role,
    is_any: bool,
    stream: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(query: Option<&'a str>) -> Option<Self> {
        let mut wanted = Self { role: Role::Any, is_any: false, stream: None };
        for part in query.unwrap_or_default().split('&') {
            match part.split_once('=') {
                None if part.is_empty() => {}
                Some(("role", "any")) => wanted.role = Role::Any,
                Some(("role", "active")) => wanted.role = Role::Active,
                Some(("streams", "any")) => wanted.is_any = true,
                Some(("streams", "all")) => wanted.is_any = false,
                Some(("stream", name)) => wanted.stream = Some(name),
                _ => return None,
            }
        }
        Some(wanted)
    }
}

fn no_role() -> Response {
    let problem = "the query is role=active or role=any, and streams=any or streams=all\n";
    (StatusCode::BAD_REQUEST, problem).into_response()
}

fn probes(telemetry: Telemetry) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(telemetry)
}

async fn livez(Extract(telemetry): Extract<Telemetry>) -> Response {
    let health = liveness(&telemetry.view());
    answer(health.ok, health)
}

async fn readyz(Extract(telemetry): Extract<Telemetry>, RawQuery(query): RawQuery) -> Response {
    // This process runs only one stream.
    let Some(Wanted { role, stream: None, .. }) = Wanted::of(query.as_deref()) else {
        return no_role();
    };
    let health = readiness(&telemetry.view(), role);
    answer(health.ok, health)
}

async fn metrics_page(Extract(telemetry): Extract<Telemetry>, headers: HeaderMap) -> Response {
    let (view, build) = (telemetry.view(), telemetry.build().clone());
    metrics_response(RelayMetrics { view, build, usage: Some(process::usage()) }, &headers)
}

fn answer(is_ok: bool, health: impl Serialize) -> Response {
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CACHE_CONTROL, "no-store")], Json(health)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BuildInfo, RelayState, Snapshot};
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn fetch(address: SocketAddr, path: &str) -> String {
        ask(address, path, "*/*").await
    }

    async fn ask(address: SocketAddr, path: &str, accept: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "current_thread")]
    async fn probes_follow_the_published_snapshot() {
        let telemetry = Telemetry::new(BuildInfo::default());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let tap = Some(DeliveredTap::default());
        let face = serve(listener, telemetry.clone(), tap, None, async move {
            let _ = stopped.await;
        });
        let server = tokio::spawn(face);
        assert!(fetch(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let starting = fetch(address, "/readyz").await;
        assert!(
            starting.starts_with("HTTP/1.1 503") && starting.contains("\"state\":\"starting\"")
        );
        telemetry.publish(Snapshot {
            state: RelayState::Streaming,
            holds_slot: true,
            broker_connected: true,
            last_progress: Some(Instant::now()),
            ..Snapshot::default()
        });
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(fetch(address, "/readyz?role=active").await.starts_with("HTTP/1.1 200"));
        telemetry.publish(Snapshot { state: RelayState::Standby, ..Snapshot::default() });
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(fetch(address, "/readyz?role=active").await.starts_with("HTTP/1.1 503"));
        for wrong in ["role=x", "streams=some", "stream=x", "streams"] {
            let answer = fetch(address, &format!("/readyz?{wrong}")).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{wrong}: {answer}");
        }
        let any = fetch(address, "/readyz?role=any&streams=any").await;
        assert!(any.starts_with("HTTP/1.1 200"), "{any}");
        let page = fetch(address, "/metrics").await;
        assert!(page.contains("text/plain; version=0.0.4"), "{page}");
        assert!(page.contains("postrider_state{state=\"standby\"} 1"), "{page}");
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
        let page = ask(address, "/metrics", accept).await;
        assert!(page.contains("application/openmetrics-text; version=1.0.0"), "{page}");
        assert!(page.contains("# TYPE postrider_restarts counter\n"), "{page}");
        assert!(page.contains("\npostrider_restarts_total{reason=\"kafka\"} 0\n"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        assert!(fetch(address, "/").await.starts_with("HTTP/1.1 403"), "a name of somebody else's");
        assert!(fetch(address, "/nowhere").await.starts_with("HTTP/1.1 404"));
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_taken_port_is_named() {
        let first = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = Listener::bind(first.address()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen on {}", first.address()));
        assert!(error.hint().unwrap().contains("http.bind"));
    }
}
