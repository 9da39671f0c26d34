//! Error responses: Problem Details of RFC 9457.
//!
//! Input: a status, a title and a detail; optionally the field that is wrong and a Retry-After. Output: an
//! `application/problem+json` response. A rule for callers: the detail repeats no value of the request's body
//! or headers.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// What is wrong with a request, or with this service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The answer's status.
    pub(super) status: StatusCode,
    /// What kind of problem, the same for all its occurrences.
    pub(super) title: &'static str,
    /// What is wrong this time, and what to do.
    pub(super) detail: String,
    /// The field or header that is wrong.
    pub(super) field: Option<String>,
    /// When to retry, in seconds.
    pub(super) retry_after_s: Option<u64>,
}

/// Its JSON; `type` is `about:blank`, so `title` goes with the status (section 4.2.1).
#[derive(Serialize)]
struct ProblemBody<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Problem {
    /// A problem of no single field.
    pub(super) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, title, detail: detail.into(), field: None, retry_after_s: None }
    }

    /// The same, naming the field or header.
    #[must_use]
    pub(super) fn of(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same, with Retry-After.
    #[must_use]
    pub(super) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The service cannot respond now, through no fault of the client.
    pub(super) fn unavailable() -> Self {
        let detail = "the order service cannot reach a dependency; it is safe to retry the same \
                      request with the same Idempotency-Key";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", detail).retry_after(1)
    }

    /// Too many requests are in flight, so this one was not started.
    pub(super) fn overloaded() -> Self {
        let detail = "too many requests are in flight; nothing was done for this one, so retry it, \
                      with the same Idempotency-Key if it has one";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service overloaded", detail).retry_after(1)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
        };
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        let text = match serde_json::to_string(&body) {
            Ok(text) => text,
            Err(error) => unreachable!("strings and numbers can be written: {error}"),
        };
        (self.status, headers, text).into_response()
    }
}
