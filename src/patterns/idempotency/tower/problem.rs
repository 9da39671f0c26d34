//! The layer's error responses: Problem Details of RFC 9457. Invariant: the response repeats no
//! value of the request's body or headers.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::KEY_HEADER;

/// Maximum Retry-After in seconds: clients do not wait longer.
const RETRY_AFTER_MAX_S: u64 = 30;

/// `type` is `about:blank`, so the title follows the status (RFC 9457, section 4.2.1).
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: Cow<'static, str>,
    field: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, title, detail: detail.into(), field: None, retry_after: None }
    }

    fn of(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }

    fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    pub(super) fn without_key() -> Self {
        let detail = "send a key of your own choice, such as a UUID, and the same key when you \
                      retry the same request";
        Self::new(StatusCode::BAD_REQUEST, "idempotency key missing", detail).of(KEY_HEADER)
    }

    pub(super) fn key(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "idempotency key not usable", detail).of(KEY_HEADER)
    }

    pub(super) fn without_caller() -> Self {
        let detail = "the request has no caller to whom an idempotency key can belong";
        Self::new(StatusCode::FORBIDDEN, "caller unknown", detail)
    }

    pub(super) fn too_large(bytes_max: usize) -> Self {
        let detail = format!("the body may have {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body too large", detail).of("body")
    }

    pub(super) fn too_slow(time_max: Duration) -> Self {
        let detail = format!("the body must arrive within {} s", time_max.as_secs_f32());
        Self::new(StatusCode::REQUEST_TIMEOUT, "body too slow", detail).of("body")
    }

    pub(super) fn incomplete() -> Self {
        let detail = "the body was not received completely";
        Self::new(StatusCode::BAD_REQUEST, "malformed request", detail)
    }

    pub(super) fn pending(retry_after: Duration) -> Self {
        let detail =
            "a request with this Idempotency-Key is in progress; retry later for its response";
        let problem = Self::new(StatusCode::CONFLICT, "request in progress", detail);
        problem.of(KEY_HEADER).retry_after(retry_after)
    }

    pub(super) fn mismatch() -> Self {
        let detail =
            "this Idempotency-Key belongs to another request; use a new key for a new request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency key reused", detail).of(KEY_HEADER)
    }

    pub(super) fn unavailable() -> Self {
        let detail = "the service is shutting down; it is safe to retry the same request with the \
                      same Idempotency-Key";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", detail);
        problem.retry_after(Duration::from_secs(1))
    }

    pub(super) fn unguarded() -> Self {
        let detail = "the service has a mistake: it did not use the idempotency key";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "request not guarded", detail)
    }

    pub(super) fn into_http<R: From<Bytes>>(self) -> http::Response<R> {
        let always = [
            ("title", json!(self.title)),
            ("status", json!(self.status.as_u16())),
            ("detail", json!(self.detail)),
        ];
        let field = self.field.map(|field| ("field", json!(field)));
        let members = always.into_iter().chain(field);
        let body: Value = members.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut response = http::Response::new(R::from(Bytes::from(body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(pause) = self.retry_after {
            let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, seconds.clamp(1, RETRY_AFTER_MAX_S).into());
        }
        response
    }
}
