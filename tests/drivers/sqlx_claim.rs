//! The claim of a request through sqlx, to copy into a service: the guard and its layer need nothing else of a driver.
//!
//! Input: an open transaction, the guard's three calls. Output: what the functions `idempotency_begin` and
//! `idempotency_finish` say. Invariant: a response is stored as it is; one that is not text is refused.

use std::time::Duration;

use postrider_patterns::idempotency::{ClaimTransaction, Request, Reservation, StoredResponse};
use sqlx::types::Json;
use sqlx::{Error, Postgres, Transaction, query, query_as};

/// A transaction of sqlx in which a request is claimed.
pub struct SqlxClaim<'c>(pub Transaction<'c, Postgres>);

type Begun = (String, Option<i32>, Option<serde_json::Value>, Option<String>);

impl ClaimTransaction for SqlxClaim<'_> {
    type Error = Error;

    async fn reserve(
        &mut self,
        request: &Request,
        wait_max: Duration,
    ) -> Result<Reservation, Error> {
        for fingerprint in request.fingerprints() {
            let begin = "SELECT * FROM idempotency_begin($1, $2, $3, $4 * interval '1 second')";
            let begun = query_as::<_, Begun>(begin)
                .bind(request.scope())
                .bind(request.key().as_str())
                .bind(fingerprint.as_bytes().as_slice())
                .bind(wait_max.as_secs_f64());
            let (outcome, status, headers, body) = match begun.fetch_one(&mut *self.0).await {
                Err(error) if is_busy(&error) => return Ok(Reservation::Busy),
                begun => begun?,
            };
            let reservation = Reservation::of_row(&outcome, status, headers, body);
            match reservation.map_err(|error| Error::Decode(error.into()))? {
                Reservation::Mismatch => {}
                reservation => return Ok(reservation),
            }
        }
        Ok(Reservation::Mismatch)
    }

    async fn store(&mut self, request: &Request, response: &StoredResponse) -> Result<(), Error> {
        let body = str::from_utf8(response.body()).map_err(|error| Error::Encode(error.into()))?;
        query("SELECT idempotency_finish($1, $2, $3, $4, $5)")
            .bind(request.scope())
            .bind(request.key().as_str())
            .bind(i32::from(response.status()))
            .bind(Json(response.headers()))
            .bind(body)
            .execute(&mut *self.0)
            .await?;
        Ok(())
    }

    async fn commit(mut self) -> Result<(), Error> {
        // COMMIT says nothing of a statement that failed and was ignored.
        query("SELECT").execute(&mut *self.0).await?;
        self.0.commit().await
    }
}

/// Whether another transaction has the key for longer than `lock_timeout`, or `statement_timeout`.
fn is_busy(error: &Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["55P03", "57014"].contains(&&*code))
}
