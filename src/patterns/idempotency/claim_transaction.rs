//! The three calls that the guard makes in the transaction of an effect, so that any driver can serve it.
//!
//! Input: an open transaction, a [`Request`], and later its [`StoredResponse`]. Output: a [`Reservation`], then the
//! stored response, then the COMMIT. Invariant: of all transactions that reserve one key at most one commits, with
//! its effect and its response. `tokio_postgres::Transaction` implements the trait here; with another driver the
//! calls are the SQL functions `idempotency_begin` and `idempotency_finish`.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::error::{Severity, SqlState};

use super::claims::{Claim, reserve, store};
use super::error::IdempotencyError;
use super::request::Request;
use super::response::StoredResponse;

/// An open transaction of a driver. Dropped, it is rolled back.
///
/// An implementation for sqlx, with an endpoint and its tests, is `tests/drivers/sqlx_claim.rs` of the repository.
pub trait ClaimTransaction: Send {
    /// The driver's error.
    type Error;

    /// Claims the key of the request: `SELECT * FROM idempotency_begin(..)`, whose row [`Reservation::of_row`] reads.
    /// A key that has any of [`Request::fingerprints`] is the request's.
    ///
    /// Waits while another transaction has the key, for `wait_max` at most, then the outcome is
    /// [`Reservation::Busy`]; zero sets no limit. A transaction that is idle for too long afterwards, because its
    /// program is frozen, must end by itself (`idle_in_transaction_session_timeout`).
    fn reserve(
        &mut self,
        request: &Request,
        wait_max: Duration,
    ) -> impl Future<Output = Result<Reservation, Self::Error>> + Send;

    /// Stores the response of the key that this transaction has reserved: `SELECT idempotency_finish(..)`. An error
    /// if a statement of the transaction has failed before, even if that was ignored.
    fn store(
        &mut self,
        request: &Request,
        response: &StoredResponse,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Commits. The outcome of an error may be unknown: the same request with the same key finds out.
    ///
    /// If a statement has failed and was ignored, the server answers COMMIT without an error and rolls back. `store`
    /// notices that; a request without a key has no `store`, so an endpoint that lets such requests through should
    /// execute a statement here first.
    fn commit(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Whether the transaction may have its effect. A new variant would be a breaking change on purpose: each needs code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "unless the key is won, the effect has happened before"]
pub enum Reservation {
    /// The request is the first: the effect follows, then `store`.
    Won,
    /// The same request has committed before, with this response.
    Done(StoredResponse),
    /// The key belongs to another request.
    Mismatch,
    /// Another transaction has the key for longer than the wait (SQLSTATE 55P03 or 57014).
    Busy,
}

impl Reservation {
    /// Reads the row of `idempotency_begin`. Error: [`IdempotencyError::CorruptRow`].
    pub fn of_row(
        outcome: &str,
        stored_status: Option<i32>,
        stored_headers: Option<serde_json::Value>,
        stored_body: Option<String>,
    ) -> Result<Self, IdempotencyError> {
        let corrupt = || IdempotencyError::CorruptRow;
        match (outcome, stored_status, stored_headers, stored_body) {
            ("won", ..) => Ok(Self::Won),
            ("mismatch", ..) => Ok(Self::Mismatch),
            ("done", Some(status), Some(headers), Some(body)) => {
                let status = u16::try_from(status).map_err(|_| corrupt())?;
                let headers = serde_json::from_value(headers).map_err(|_| corrupt())?;
                let response = StoredResponse::new(status, headers, body);
                response.map(Self::Done).map_err(|_| corrupt())
            }
            _ => Err(corrupt()),
        }
    }
}

impl ClaimTransaction for Transaction<'_> {
    type Error = IdempotencyError;

    async fn reserve(
        &mut self,
        request: &Request,
        wait_max: Duration,
    ) -> Result<Reservation, IdempotencyError> {
        match reserve(self, request, wait_max).await {
            Ok(Claim::Won) => Ok(Reservation::Won),
            Ok(Claim::Done(response)) => Ok(Reservation::Done(response)),
            Ok(Claim::Mismatch) => Ok(Reservation::Mismatch),
            Err(IdempotencyError::Busy(_)) => Ok(Reservation::Busy),
            Err(error) => Err(error),
        }
    }

    async fn store(
        &mut self,
        request: &Request,
        response: &StoredResponse,
    ) -> Result<(), IdempotencyError> {
        store(self, request, response).await
    }

    async fn commit(self) -> Result<(), IdempotencyError> {
        Transaction::commit(self).await.map_err(after_commit)
    }
}

/// An ERROR with which the server answers COMMIT has rolled the transaction back. A FATAL one, or a
/// connection that ends, says nothing about the transaction: both may come after it was committed.
fn after_commit(error: tokio_postgres::Error) -> IdempotencyError {
    let is_rolled_back = error.as_db_error().is_some_and(|answer| {
        answer.parsed_severity() == Some(Severity::Error)
            && *answer.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    });
    if is_rolled_back { error.into() } else { IdempotencyError::CommitUnknown(error) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_of_idempotency_begin_is_read_or_refused() {
        let of = |outcome, status, headers, body: Option<&str>| {
            Reservation::of_row(outcome, status, headers, body.map(str::to_owned))
        };
        assert!(matches!(of("won", None, None, None), Ok(Reservation::Won)));
        assert!(matches!(of("mismatch", None, None, None), Ok(Reservation::Mismatch)));
        let headers = json!([["location", "/orders/7"]]);
        let done = of("done", Some(201), Some(headers), Some("{}")).unwrap();
        let expected = StoredResponse::new(201, Vec::new(), "{}").unwrap();
        let expected = expected.with_header("location", "/orders/7").unwrap();
        assert_eq!(done, Reservation::Done(expected));
        for (outcome, status, headers, body) in [
            ("other", None, None, None),
            ("done", None, Some(json!([])), Some("")),
            ("done", Some(0), Some(json!([])), Some("")),
            ("done", Some(-1), Some(json!([])), Some("")),
            ("done", Some(200), Some(json!([["a"]])), Some("")),
            ("done", Some(200), Some(json!([])), None),
        ] {
            let refused = of(outcome, status, headers, body);
            assert!(matches!(refused, Err(IdempotencyError::CorruptRow)), "{refused:?}");
        }
    }
}
