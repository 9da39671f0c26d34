//! Exports a span per delivered row to an OpenTelemetry collector, over OTLP and HTTP.
//!
//! Invariant: a bounded queue ensures that the collector does not delay any row. Spans that the
//! collector does not accept are counted and dropped.

mod otlp;
mod post;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::BuildInfo;
use otlp::Exporter;
use postrider_config::TracesSection;
use postrider_kafka::{SpanResult, TracedRow, Traces};
use postrider_service::log_throttle::LogThrottle;

/// Maximum time that a span waits for further spans.
const LINGER: Duration = Duration::from_secs(1);
/// A span has about 400 bytes.
const SPANS_MAX: usize = 512;
const SLICE: Duration = Duration::from_millis(50);
const FINAL_LIMIT: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
const PATH: &str = "v1/traces";

#[derive(Clone, PartialEq, Eq)]
pub struct TraceSettings {
    endpoint: Uri,
    headers: HeaderMap,
    timeout: Duration,
    per_second: u64,
    service: String,
    attributes: Vec<(String, String)>,
}

impl std::fmt::Debug for TraceSettings {
    /// Omits the headers and the query, which may contain a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceSettings").field("endpoint", &self.shown()).finish_non_exhaustive()
    }
}

/// The value may be a secret, so the message omits it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {0} cannot be used")]
pub struct InvalidVariable(pub String);

impl TraceSettings {
    /// The configuration precedes OpenTelemetry's variables. `None`: neither names a collector.
    pub fn new(
        section: &TracesSection,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidVariable> {
        let named = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let of_either = |end: &str| {
            let stems = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];
            stems.into_iter().find_map(|stem| {
                let name = format!("{stem}{end}");
                named(&name).map(|value| (name, value))
            })
        };
        let is_off = |name: &str, word: &str| {
            named(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word))
        };
        let endpoint = match (&section.endpoint, of_either("ENDPOINT")) {
            (Some(endpoint), _) => below(endpoint).ok_or(("traces.endpoint".to_owned(), ())),
            _ if is_off("OTEL_SDK_DISABLED", "true") || is_off("OTEL_TRACES_EXPORTER", "none") => {
                return Ok(None);
            }
            (None, Some((name, value))) if name.contains("TRACES") => {
                value.trim().parse().ok().filter(is_usable).ok_or((name, ()))
            }
            (None, Some((name, value))) => below(&value).ok_or((name, ())),
            (None, None) => return Ok(None),
        };
        let endpoint = endpoint.map_err(|(name, ())| InvalidVariable(name))?;
        let (mut headers, mut timeout) = (HeaderMap::new(), TIMEOUT);
        if let Some((name, value)) = of_either("HEADERS") {
            for (key, value) in pairs(&value) {
                let header = HeaderName::try_from(key).ok().zip(HeaderValue::try_from(value).ok());
                let (key, mut value) = header.ok_or_else(|| InvalidVariable(name.clone()))?;
                value.set_sensitive(true);
                headers.insert(key, value);
            }
        }
        if let Some((name, value)) = of_either("TIMEOUT") {
            let ms = value.trim().parse().map_err(|_| InvalidVariable(name))?;
            timeout = Duration::from_millis(ms);
        }
        let mut attributes: Vec<_> =
            named("OTEL_RESOURCE_ATTRIBUTES").map_or_else(Vec::new, |text| pairs(&text));
        let of_attributes = attributes.iter().position(|(key, _)| key == "service.name");
        let of_attributes = of_attributes.map(|index| attributes.swap_remove(index).1);
        let service = named("OTEL_SERVICE_NAME").or(of_attributes);
        let service = service.unwrap_or_else(|| "postrider".to_owned());
        let per_second = section.max_per_second;
        Ok(Some(Self { endpoint, headers, timeout, per_second, service, attributes }))
    }

    /// Omits the query, which may contain a secret.
    pub fn shown(&self) -> String {
        let whole = self.endpoint.to_string();
        whole.split('?').next().unwrap_or_default().to_owned()
    }

    pub fn start(self, build: &BuildInfo) -> std::io::Result<(Traces, TraceExport)> {
        let (traces, rows) = Traces::on(self.per_second);
        let exporter = Exporter {
            service: self.service.clone(),
            version: build.version.clone(),
            slot: build.slot.clone(),
            attributes: self.attributes.clone(),
        };
        let (stop, stopped) = channel();
        let (done, ended) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut work = Work { settings: self, exporter, traces: traces.clone(), rows, stopped };
        let thread = std::thread::Builder::new().name("postrider-traces".to_owned());
        thread.spawn(move || {
            runtime.block_on(work.run());
            let _ = done.send(());
        })?;
        Ok((traces, TraceExport { stop, ended }))
    }
}

fn below(endpoint: &str) -> Option<Uri> {
    let endpoint = endpoint.trim().trim_end_matches('/');
    let whole =
        if endpoint.ends_with(PATH) { endpoint.to_owned() } else { format!("{endpoint}/{PATH}") };
    whole.parse().ok().filter(is_usable)
}

/// A user in the address would be a secret, and the address is shown.
fn is_usable(endpoint: &Uri) -> bool {
    matches!(endpoint.scheme_str(), Some("http" | "https"))
        && endpoint.host().is_some_and(|host| !host.is_empty())
        && endpoint.authority().is_some_and(|authority| !authority.as_str().contains('@'))
}

/// Parses `key=value,key=value` with percent-encoded values.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), decoded(value.trim()))).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| byte == b'%');
        let value = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(value.unwrap_or(byte));
        rest = if value.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Debug)]
pub struct TraceExport {
    stop: Sender<()>,
    ended: Receiver<()>,
}

impl TraceExport {
    /// Sends the remaining spans for at most one second.
    pub fn finish(self) {
        let _ = self.stop.send(());
        let _ = self.ended.recv_timeout(FINAL_LIMIT);
    }
}

struct Work {
    settings: TraceSettings,
    exporter: Exporter,
    traces: Traces,
    rows: Receiver<TracedRow>,
    stopped: Receiver<()>,
}

impl Work {
    async fn run(&mut self) {
        let mut throttle = LogThrottle::default();
        let mut drawn = 0_u64;
        let draw = RandomState::new();
        let mut span_id = || loop {
            drawn += 1;
            let id = draw.hash_one(drawn);
            if id != 0 {
                return id.to_be_bytes();
            }
        };
        loop {
            let (batch, is_last) = self.batch();
            if !batch.is_empty() {
                let body = otlp::request(&self.exporter, &batch, &mut span_id);
                let TraceSettings { endpoint, headers, timeout, .. } = &self.settings;
                let limit = if is_last { FINAL_LIMIT.min(*timeout) } else { *timeout };
                let result = match post::post((endpoint, headers), body, limit).await {
                    Ok(()) => SpanResult::Exported,
                    Err(error) => {
                        let text = format!("the OpenTelemetry collector accepts no spans: {error}");
                        if throttle.admit(&text, Instant::now()).is_some() {
                            tracing::warn!(
                                endpoint = self.settings.shown(),
                                spans = batch.len(),
                                help = "delivery continues; check the collector and \
                                        traces.endpoint, which must accept OTLP over HTTP \
                                        (usually port 4318)",
                                "{text}"
                            );
                        }
                        SpanResult::Failed
                    }
                };
                self.traces.count(result, batch.len() as u64);
            }
            if is_last {
                return;
            }
        }
    }

    fn batch(&self) -> (Vec<TracedRow>, bool) {
        let mut batch = Vec::new();
        let mut since = None;
        loop {
            let is_over = self.stopped.try_recv().is_ok();
            match self.rows.recv_timeout(if is_over { Duration::ZERO } else { SLICE }) {
                Ok(row) => {
                    batch.push(row);
                    since.get_or_insert_with(Instant::now);
                }
                Err(RecvTimeoutError::Disconnected) => return (batch, true),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if is_over {
                batch.extend(self.rows.try_iter().take(SPANS_MAX));
                return (batch, true);
            }
            let is_due = since.is_some_and(|since: Instant| since.elapsed() >= LINGER);
            if batch.len() >= SPANS_MAX || is_due {
                return (batch, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(
        endpoint: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<TraceSettings>, InvalidVariable> {
        let section = TracesSection { endpoint: endpoint.map(str::to_owned), max_per_second: 7 };
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        TraceSettings::new(&section, value)
    }

    fn endpoint(own: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        settings(own, variables).unwrap().map(|settings| settings.endpoint.to_string())
    }

    #[test]
    fn nobody_is_sent_spans_unless_a_collector_is_named() {
        assert_eq!(endpoint(None, &[]), None);
        assert_eq!(endpoint(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://one:4318/");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://two/spans");
        let found = |variables: &[_]| endpoint(None, variables);
        assert_eq!(found(&[general]).as_deref(), Some("http://one:4318/v1/traces"));
        assert_eq!(found(&[general, own]).as_deref(), Some("https://two/spans"));
        assert_eq!(found(&[general, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(found(&[general, ("OTEL_TRACES_EXPORTER", "none")]), None);
        let configured = endpoint(Some("http://three:4318"), &[general, own]);
        assert_eq!(configured.as_deref(), Some("http://three:4318/v1/traces"));
    }

    #[test]
    fn what_cannot_be_used_is_named_without_its_value() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@collector"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "secret"),
        ] {
            let last = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://one:4318");
            let error = settings(None, &[(name, value), last]).unwrap_err();
            assert_eq!(error.to_string(), format!("environment variable {name} cannot be used"));
        }
    }

    #[test]
    fn headers_and_attributes_are_read_and_not_shown() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://one:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20planted, x-tenant = 7"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=outbox,deployment.environment=test"),
        ];
        let settings = settings(None, &variables).unwrap().unwrap();
        assert_eq!(settings.headers["authorization"], "Bearer planted");
        assert_eq!(settings.headers["x-tenant"], "7");
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.service, "outbox");
        let expected = ("deployment.environment".to_owned(), "test".to_owned());
        assert_eq!(settings.attributes, [expected]);
        assert!(!format!("{settings:?}").contains("planted"));
    }

    #[test]
    fn a_query_is_sent_and_not_shown() {
        let named = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://two/spans?token=planted");
        let settings = settings(None, &[named]).unwrap().unwrap();
        assert_eq!(settings.endpoint.query(), Some("token=planted"), "it is sent");
        assert_eq!(settings.shown(), "https://two/spans");
    }
}
