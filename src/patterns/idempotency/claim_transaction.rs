//! The guard's three calls in the transaction of an effect, as a trait for any driver.
//!
//! Invariant: of all transactions that reserve one key, at most one commits. Implemented here for
//! `tokio_postgres::Transaction`.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::error::{Severity, SqlState};

use super::claims::{Claim, reserve, store};
use super::error::IdempotencyError;
use super::request::Request;
use super::response::StoredResponse;

/// An open transaction of a driver. Dropping it rolls it back.
///
/// The repository's `tests/drivers/sqlx_claim.rs` implements the trait for sqlx.
pub trait ClaimTransaction: Send {
    /// Error type of the driver.
    type Error;

    /// Claims the key: `SELECT * FROM idempotency_begin(..)`, whose row [`Reservation::of_row`]
    /// reads. Any of [`Request::fingerprints`] belongs to the request.
    ///
    /// Waits for at most `wait_max` (zero: no limit), then returns [`Reservation::Busy`]. Must also
    /// set `idle_in_transaction_session_timeout`, so that the transaction of a frozen program ends.
    fn reserve(
        &mut self,
        request: &Request,
        wait_max: Duration,
    ) -> impl Future<Output = Result<Reservation, Self::Error>> + Send;

    /// Stores the response: `SELECT idempotency_finish(..)`. Fails if an earlier statement failed,
    /// even if that error was ignored.
    fn store(
        &mut self,
        request: &Request,
        response: &StoredResponse,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Commits the transaction. After an error the outcome may be unknown.
    ///
    /// If an ignored error has aborted the transaction, the server rolls back without an error.
    /// `store` notices this. For requests without a key, first execute a statement here.
    fn commit(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Whether the transaction may have its effect. Exhaustive, because each variant needs code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "unless the key is won, the effect has happened before"]
pub enum Reservation {
    /// First request: run the effect, then `store`.
    Won,
    /// The request committed before, with this response.
    Done(StoredResponse),
    /// The key belongs to another request.
    Mismatch,
    /// Another transaction held the key for longer than `wait_max` (SQLSTATE 55P03 or 57014).
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

/// An ERROR means a rollback. After a FATAL error or a lost connection the outcome is unknown,
/// because both may follow a commit.
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
