//! Error responses: Problem Details of RFC 9457.
//!
//! Callers must not repeat a value of the request's body or headers in the detail.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    /// Equal for all occurrences.
    pub(super) title: &'static str,
    /// Defect in this occurrence, and the recommended action.
    pub(super) detail: String,
    pub(super) field: Option<String>,
    pub(super) retry_after_s: Option<u64>,
}

/// `type` is `about:blank`, so `title` follows the status (section 4.2.1).
#[derive(Serialize)]
struct ProblemBody<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, title, detail: detail.into(), field: None, retry_after_s: None }
    }

    #[must_use]
    pub(super) fn of(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    #[must_use]
    pub(super) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The client is not the cause.
    pub(super) fn unavailable() -> Self {
        let detail = "the order service cannot reach a dependency; it is safe to retry the same \
                      request with the same Idempotency-Key";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service unavailable", detail).retry_after(1)
    }

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
