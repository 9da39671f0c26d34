//! The dashboard at `/`: one page embedded in the binary, and its JSON under `/api/v1`.
//!
//! Invariant: the dashboard is read-only, and loads no content from other origins. Requests of
//! other origins are refused (`Sec-Fetch-Site`, `Origin`). On a loopback address, other host names
//! are refused too, because they may resolve to this machine.

mod history;
mod state;
mod status;
mod tail;
mod topics;

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, Request, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use super::{Telemetry, unix_us};
use crate::streams::{StreamHandle, Streams};
use history::History;
use postrider_kafka::DeliveredTap;
use state::{State, StreamLine};
use tail::Tail;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FILES: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/theme.js", "text/javascript; charset=utf-8", include_str!("page/theme.js")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("page/dashboard.css")),
    ("/dashboard.js", "text/javascript; charset=utf-8", include_str!("page/dashboard.js")),
    ("/uplot.css", "text/css; charset=utf-8", include_str!("page/uplot/uPlot.min.css")),
    ("/uplot.js", "text/javascript; charset=utf-8", include_str!("page/uplot/uPlot.iife.min.js")),
];

#[derive(Debug, Clone)]
pub(super) struct Dashboard {
    streams: Arc<[Watched]>,
    is_local: bool,
}

#[derive(Debug)]
struct Watched {
    /// Empty if the process runs only one stream.
    name: String,
    telemetry: Telemetry,
    history: Mutex<History>,
    tail: Tail,
}

impl Dashboard {
    pub(super) fn new(telemetry: Telemetry, tap: DeliveredTap, listens_at: IpAddr) -> Self {
        Self::of([Watched::new(String::new(), telemetry, tap)], listens_at)
    }

    pub(super) fn of_streams(streams: &Streams, listens_at: IpAddr) -> Self {
        let watched = |one: &StreamHandle| {
            Watched::new(one.name.clone(), one.telemetry.clone(), one.tap.clone())
        };
        Self::of(streams.each().map(watched), listens_at)
    }

    fn of(streams: impl IntoIterator<Item = Watched>, listens_at: IpAddr) -> Self {
        Self { streams: streams.into_iter().collect(), is_local: listens_at.is_loopback() }
    }

    pub(super) async fn sample(&self) {
        let mut second = tokio::time::interval(SAMPLE_EVERY);
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            let now_ms = unix_us() / 1_000;
            for one in self.streams.iter() {
                let view = one.telemetry.view();
                one.history().add(&view, now_ms);
                one.tail.tick(now_ms);
            }
        }
    }

    pub(super) fn routes(self) -> Router {
        let mut routes = Router::new()
            .route("/api/v1/streams", get(streams))
            .route("/api/v1/state", get(state))
            .route("/api/v1/history", get(history))
            .route("/api/v1/tail", get(tail));
        for (path, kind, text) in FILES {
            routes = routes.route(path, get(move || async move { file(kind, text) }));
        }
        routes.route_layer(from_fn_with_state(self.clone(), guarded)).with_state(self)
    }

    fn meant(&self, query: &Query<'_>) -> Result<&Watched, (StatusCode, String)> {
        match (query.stream, &*self.streams) {
            (None, [only]) => Ok(only),
            (name, all) => {
                let found = all.iter().find(|one| Some(one.name.as_str()) == name);
                let names =
                    || all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
                let status =
                    if name.is_some() { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
                found.ok_or_else(|| {
                    (
                        status,
                        format!(
                            "the query names one of the streams: stream=NAME; they are {}\n",
                            names()
                        ),
                    )
                })
            }
        }
    }
}

impl Watched {
    fn new(name: String, telemetry: Telemetry, tap: DeliveredTap) -> Self {
        Self { name, telemetry, history: Mutex::default(), tail: Tail::new(tap) }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Empty for a single stream.
async fn streams(Extract(dashboard): Extract<Dashboard>) -> Response {
    let several = if dashboard.streams.len() > 1 { &*dashboard.streams } else { &[] };
    let views: Vec<_> = several.iter().map(|one| (one, one.telemetry.view())).collect();
    let line = |(one, view)| {
        let one: &Watched = one;
        StreamLine::of(&one.name, view, &one.telemetry, &one.history())
    };
    Json(views.iter().map(|(one, view)| (*one, view)).map(line).collect::<Vec<_>>()).into_response()
}

async fn state(Extract(dashboard): Extract<Dashboard>, RawQuery(query): RawQuery) -> Response {
    let Some(query) = Query::<'_>::of(query.as_deref()) else {
        return (StatusCode::BAD_REQUEST, "the query is stream=NAME\n").into_response();
    };
    match dashboard.meant(&query) {
        Ok(one) => {
            let view = one.telemetry.view();
            let past = one.history();
            Json(State::of(&view, &one.telemetry, &past, one.tail.tap())).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Query: `?after=MILLISECONDS` since the Unix epoch, and `stream=NAME` for one of several streams.
async fn history(Extract(dashboard): Extract<Dashboard>, RawQuery(query): RawQuery) -> Response {
    let Some((query, after)) = Query::after(query.as_deref()) else {
        let problem = "the query is after=MILLISECONDS, since the Unix epoch\n";
        return (StatusCode::BAD_REQUEST, problem).into_response();
    };
    match dashboard.meant(&query) {
        Ok(one) => Json(one.history().after(after)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Query: `?after=NUMBER` of a record, and `stream=NAME`.
async fn tail(Extract(dashboard): Extract<Dashboard>, RawQuery(query): RawQuery) -> Response {
    let Some((query, after)) = Query::after(query.as_deref()) else {
        let problem = "the query is after=NUMBER, of the last record that is known\n";
        return (StatusCode::BAD_REQUEST, problem).into_response();
    };
    match dashboard.meant(&query) {
        Ok(one) => Json(one.tail.after(after, unix_us() / 1_000)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Default)]
struct Query<'a> {
    stream: Option<&'a str>,
    after: Option<&'a str>,
}

impl<'a> Query<'a> {
    fn of(query: Option<&'a str>) -> Option<Self> {
        let mut found = Self::default();
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=')? {
                ("stream", name) => found.stream = Some(name),
                ("after", number) => found.after = Some(number),
                _ => return None,
            }
        }
        Some(found)
    }

    fn after<T: Default + FromStr>(query: Option<&'a str>) -> Option<(Self, T)> {
        let query = Self::of(query)?;
        let after = query.after.map(str::parse).transpose().ok()?;
        Some((query, after.unwrap_or_default()))
    }
}

/// Refuses pages of other origins, and adds the security headers.
async fn guarded(Extract(dashboard): Extract<Dashboard>, request: Request, next: Next) -> Response {
    let mut response = match refusal(request.headers(), dashboard.is_local) {
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
        None => next.run(request).await,
    };
    let added = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in added {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal(headers: &HeaderMap, is_local: bool) -> Option<&'static str> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text("host").unwrap_or_default();
    if matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) && !is_visit(headers) {
        return Some("this page answers no other site\n");
    }
    if text("origin").is_some_and(|origin| origin.split_once("://").map(|it| it.1) != Some(host)) {
        return Some("this page answers no other site\n");
    }
    if is_local && !is_of_this_machine(host) {
        return Some(
            "http.bind is a loopback address: ask for 127.0.0.1 or localhost, or bind another address\n",
        );
    }
    None
}

/// Navigation to the page, for example by a link.
fn is_visit(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|it| it == value);
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

fn is_of_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn pages_of_others_and_names_of_others_are_refused() {
        let host = ("host", "127.0.0.1:8484");
        let ours = [
            headers(&[host]),
            headers(&[host, ("sec-fetch-site", "same-origin")]),
            headers(&[host, ("origin", "http://127.0.0.1:8484")]),
            headers(&[("host", "localhost")]),
            headers(&[("host", "[::1]:8484")]),
            headers(&[
                host,
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ]),
        ];
        for headers in ours {
            assert_eq!(refusal(&headers, true), None, "{headers:?}");
        }
        let others = [
            headers(&[host, ("sec-fetch-site", "cross-site")]),
            headers(&[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]),
            headers(&[host, ("origin", "http://evil.example")]),
            headers(&[host, ("origin", "null")]),
            headers(&[("host", "evil.example:8484")]),
            headers(&[]),
        ];
        for headers in others {
            assert!(refusal(&headers, true).is_some(), "{headers:?}");
        }
        assert_eq!(refusal(&headers(&[("host", "relay.shop.svc:8484")]), false), None);
    }

    #[test]
    fn of_several_streams_a_query_names_one() {
        let watched = |name: &str| {
            let telemetry = Telemetry::new(crate::telemetry::BuildInfo::default());
            Watched::new(name.to_owned(), telemetry, DeliveredTap::default())
        };
        let address = IpAddr::from([127, 0, 0, 1]);
        let several = Dashboard::of(["a", "b"].map(watched), address);
        let meant = |query| {
            let query = Query::of(Some(query)).unwrap();
            several.meant(&query).map(|one| one.name.clone()).map_err(|(status, _)| status.as_u16())
        };
        assert_eq!(meant("after=3&stream=b"), Ok("b".to_owned()));
        assert_eq!((meant(""), meant("stream=c")), (Err(400), Err(404)));
        let single = Dashboard::of([watched("")], address);
        assert!(single.meant(&Query::default()).is_ok());
        assert!(
            Query::of(Some("other=1")).is_none() && Query::after::<u64>(Some("after=x")).is_none()
        );
    }

    #[test]
    fn the_page_is_small_and_loads_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes < 100_000, "{bytes} bytes");
        for (path, _, text) in FILES.iter().filter(|(path, ..)| !path.contains("uplot")) {
            assert!(!text.contains("http://") && !text.contains("https://"), "{path}");
            assert!(!text.contains("innerHTML") && !text.contains("style="), "{path}");
        }
    }
}
