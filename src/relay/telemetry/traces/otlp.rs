//! Messages of OTLP's `ExportTraceServiceRequest` (opentelemetry-proto 1) for spans of rows.
//!
//! Field numbers come from `opentelemetry/proto/trace/v1/trace.proto` and related files. Requests
//! do not contain keys and payloads. The crate `opentelemetry-otlp` would bring the whole SDK.

use prost::Message;

use postrider_kafka::TracedRow;

/// `SpanKind` of a message's sender.
const PRODUCER: i32 = 4;
/// `StatusCode` of an error.
const ERROR: i32 = 2;
/// `SpanFlags`: the parent belongs to another process and is sampled.
const REMOTE_SAMPLED: u32 = 0x301;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exporter {
    pub(super) service: String,
    pub(super) version: String,
    pub(super) slot: String,
    pub(super) attributes: Vec<(String, String)>,
}

pub(super) fn request(
    exporter: &Exporter,
    rows: &[TracedRow],
    mut span_id: impl FnMut() -> [u8; 8],
) -> Vec<u8> {
    let mut attributes: Vec<KeyValue> = vec![
        text("service.name", &exporter.service),
        text("service.version", &exporter.version),
        text("postrider.slot", &exporter.slot),
    ];
    let own = |(key, value): &(String, String)| text(key, value);
    attributes.extend(exporter.attributes.iter().map(own));
    let scope = Scope { name: "postrider".to_owned(), version: exporter.version.clone() };
    let spans = rows.iter().map(|row| span(row, span_id())).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource = Some(Resource { attributes });
    Request { resource_spans: vec![ResourceSpans { resource, scope_spans }] }.encode_to_vec()
}

/// The parent is the span that wrote the row. Names follow OpenTelemetry's messaging conventions.
fn span(row: &TracedRow, span_id: [u8; 8]) -> Span {
    let lsn = format!("{:X}/{:X}", row.lsn >> 32, row.lsn & 0xFFFF_FFFF);
    let mut attributes = vec![
        text("messaging.system", "kafka"),
        text("messaging.operation.type", "send"),
        text("messaging.destination.name", &row.topic),
        text("messaging.destination.partition.id", &row.partition.to_string()),
        number("messaging.kafka.offset", row.offset),
        text("postrider.lsn", &lsn),
    ];
    attributes.extend(row.event_type.as_deref().map(|kind| text("postrider.event_type", kind)));
    let status = row.rejection.map(|code| {
        attributes.push(text("error.type", code.as_str()));
        Status { message: "the row became a dead letter".to_owned(), code: ERROR }
    });
    Span {
        trace_id: row.context.trace_id.to_vec(),
        id: span_id.to_vec(),
        parent_span_id: row.context.span_id.to_vec(),
        name: format!("send {}", row.topic),
        kind: PRODUCER,
        start_time_unix_nano: nanoseconds(row.committed_us),
        // The server's clock may be ahead of the relay's clock.
        end_time_unix_nano: nanoseconds(row.confirmed_us.max(row.committed_us)),
        attributes,
        status,
        flags: REMOTE_SAMPLED,
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(Value::Text(value.to_owned()));
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }) }
}

fn number(key: &str, value: i64) -> KeyValue {
    let value = Some(Value::Number(value));
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }) }
}

fn nanoseconds(unix_us: i64) -> u64 {
    u64::try_from(unix_us).unwrap_or(0).saturating_mul(1_000)
}
