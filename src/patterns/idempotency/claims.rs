//! Claims of idempotency keys in Postgres, inserted into `idempotency_keys` in the effect's
//! transaction.
//!
//! Invariant: of all transactions that claim one key with [`Claim::Won`], at most one commits. Its
//! row exists if and only if its effect does, and never changes.
//!
//! Redis does not suffice: a paused owner may still COMMIT after its time to live, when a successor
//! has begun, and a flush or failover loses the owner.
//!
//! A row may be deleted when nothing can repeat the request. Never delete it before the COMPLETED
//! time to live in Redis plus the longest transaction: two days with the default settings. A row
//! takes about 300 bytes.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::{Json, ToSql, Type};
use tokio_postgres::{Error, GenericClient, Row, Transaction};

use super::error::IdempotencyError;
use super::request::{Fingerprint, Request};
use super::response::StoredResponse;

/// Skips rows that another run is deleting.
const CLEAN: &str = "\
    DELETE FROM idempotency_keys AS kept USING ( \
        SELECT scope, key FROM idempotency_keys \
        WHERE created_at < statement_timestamp() - $1 * interval '1 second' \
        ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED \
    ) AS old WHERE kept.scope = old.scope AND kept.key = old.key";

/// A row may be deleted between the conflicting INSERT and the SELECT.
const ATTEMPTS: u32 = 3;

const INSERT: &str = "\
    INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, key) DO NOTHING";
const SELECT: &str = "\
    SELECT fingerprint, status, headers, body FROM idempotency_keys WHERE scope = $1 AND key = $2";

/// Limits lock waits to $1 until [`AS_BEFORE`], unless $1 is NULL or the session's own limit is
/// shorter.
///
/// Also ends the session if this transaction is idle for 30 s, the default length of a lease,
/// unless the session has its own limit. Without this, a process that was frozen for 51 s kept its
/// key for 51 s.
const BOUND: &str = "\
    SELECT set_config('postrider.lock_timeout', session, true), set_config('lock_timeout', \
        CASE WHEN claim IS NULL OR session::interval BETWEEN '1 us' AND claim::interval \
            THEN session ELSE claim END, true), \
        set_config('idle_in_transaction_session_timeout', CASE idle WHEN '0' THEN '30s' ELSE idle END, true) \
    FROM (SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'), $1) \
        AS timeouts (session, idle, claim)";
const AS_BEFORE: &str =
    "SELECT set_config('lock_timeout', current_setting('postrider.lock_timeout'), true)";
const UPDATE: &str = "\
    UPDATE idempotency_keys SET status = $3, headers = $4, body = $5 WHERE scope = $1 AND key = $2";
/// Status of a row without a response yet. A committed row of this kind causes an error instead of
/// an empty response.
const RESERVED: i16 = 0;

/// Whether the transaction may have its effect. Exhaustive, because each variant needs code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "unless the claim is won, the effect has happened before"]
pub enum Claim {
    /// First request: continue and commit.
    Won,
    /// The request committed before: roll back and send this response.
    Done(StoredResponse),
    /// The key belongs to another request: roll back and respond with 422.
    Mismatch,
}

/// The committed claim of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExistingClaim {
    /// This request committed the claim, with this response.
    Done(StoredResponse),
    /// Another request committed the claim: respond with 422.
    Mismatch,
}

/// Claims the key for the caller's transaction.
///
/// Waits while another transaction has the key: [`Claim::Done`] if it commits, [`Claim::Won`] if it
/// rolls back. `lock_timeout` bounds the wait, which then ends in [`IdempotencyError::Busy`].
///
/// If the response is known, claim first: the losing transaction then does no work. In REPEATABLE
/// READ and SERIALIZABLE the losing transaction may get a serialization failure: repeat it.
pub async fn claim(
    transaction: &Transaction<'_>,
    request: &Request,
    response: &StoredResponse,
) -> Result<Claim, IdempotencyError> {
    let (status, headers) = (status(response), response.headers());
    insert(transaction, request, (status, headers, response.body()), None).await
}

/// The response is not known yet, so `store` must follow in the same transaction. Waits for at most
/// `wait_max` or the session's shorter `lock_timeout`; zero sets no limit.
pub(super) async fn reserve(
    transaction: &Transaction<'_>,
    request: &Request,
    wait_max: Duration,
) -> Result<Claim, IdempotencyError> {
    insert(transaction, request, (RESERVED, &[], &[]), Some(wait_max)).await
}

/// Fails if an earlier statement of the transaction failed, even if that error was ignored.
pub(super) async fn store(
    transaction: &Transaction<'_>,
    request: &Request,
    response: &StoredResponse,
) -> Result<(), IdempotencyError> {
    let updated = transaction
        .execute_typed(
            UPDATE,
            &[
                (&request.scope(), Type::TEXT),
                (&request.key().as_str(), Type::TEXT),
                (&status(response), Type::INT2),
                (&Json(response.headers()), Type::JSONB),
                (&response.body().as_ref(), Type::BYTEA),
            ],
        )
        .await
        .map_err(IdempotencyError::of_claim)?;
    if updated == 1 { Ok(()) } else { Err(IdempotencyError::Vanishing) }
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);
type Parts<'a> = (i16, &'a [(String, String)], &'a [u8]);

async fn insert(
    transaction: &Transaction<'_>,
    request: &Request,
    (status, headers, body): Parts<'_>,
    wait_max: Option<Duration>,
) -> Result<Claim, IdempotencyError> {
    let fingerprint = request.fingerprint().as_bytes().as_slice();
    for _ in 0..ATTEMPTS {
        // Typed, so the statement needs one round trip and no preparation.
        let (key, headers) = (request.key().as_str(), Json(headers));
        let values: [Parameter<'_>; 6] = [
            (&request.scope(), Type::TEXT),
            (&key, Type::TEXT),
            (&fingerprint, Type::BYTEA),
            (&status, Type::INT2),
            (&headers, Type::JSONB),
            (&body, Type::BYTEA),
        ];
        let inserting = transaction.execute_typed(INSERT, &values);
        let inserted = match wait_max {
            Some(wait_max) => bounded(transaction, inserting, wait_max).await,
            None => inserting.await,
        };
        if inserted.map_err(IdempotencyError::of_insert)? == 1 {
            return Ok(Claim::Won);
        }
        match find_claim(transaction, request).await? {
            Some(ExistingClaim::Done(response)) => return Ok(Claim::Done(response)),
            Some(ExistingClaim::Mismatch) => return Ok(Claim::Mismatch),
            None => {}
        }
    }
    Err(IdempotencyError::Vanishing)
}

/// Limits the lock wait of `statement` and restores the limit, in one round trip: each future sends
/// its statement when first polled, so `statement` must not have been sent.
async fn bounded(
    transaction: &Transaction<'_>,
    statement: impl Future<Output = Result<u64, Error>>,
    wait_max: Duration,
) -> Result<u64, Error> {
    let wait_max = (!wait_max.is_zero()).then(|| format!("{}ms", wait_max.as_millis().max(1)));
    let limit: [Parameter<'_>; 1] = [(&wait_max, Type::TEXT)];
    let (bound, affected, unbound) = tokio::join!(
        biased;
        transaction.execute_typed(BOUND, &limit),
        statement,
        transaction.execute_typed(AS_BEFORE, &[]),
    );
    bound?;
    let affected = affected?;
    unbound?;
    Ok(affected)
}

fn status(response: &StoredResponse) -> i16 {
    let Ok(status) = i16::try_from(response.status()) else {
        unreachable!("a response has a status from 200 to 599");
    };
    status
}

/// Committed claim of the request's key. Does not wait for open transactions: only
/// [`claim`] decides.
pub async fn find_claim(
    client: &(impl GenericClient + Sync),
    request: &Request,
) -> Result<Option<ExistingClaim>, IdempotencyError> {
    let key = request.key().as_str();
    let row = client
        .query_typed_opt(SELECT, &[(&request.scope(), Type::TEXT), (&key, Type::TEXT)])
        .await
        .map_err(IdempotencyError::of_claim)?;
    row.map(|row| read(&row, request)).transpose()
}

/// Deletes up to `batch` claims older than `older_than`, and returns their number. Needs DELETE on
/// `idempotency_keys`.
///
/// A request that is repeated later has its effect again. A safe age exceeds the time to live in
/// Redis ([`GuardSettings`](super::GuardSettings)) and the client's longest retry.
pub async fn clean_claims(
    client: &impl GenericClient,
    older_than: Duration,
    batch: u32,
) -> Result<u64, IdempotencyError> {
    let statement = client.prepare_typed(CLEAN, &[Type::FLOAT8, Type::INT8]).await;
    let statement = statement.map_err(IdempotencyError::of_claim)?;
    let (seconds, batch) = (older_than.as_secs_f64(), i64::from(batch));
    let deleted = client.execute(&statement, &[&seconds, &batch]).await;
    deleted.map_err(IdempotencyError::of_claim)
}

fn read(row: &Row, request: &Request) -> Result<ExistingClaim, IdempotencyError> {
    let stored = Fingerprint::try_from(row.try_get::<_, &[u8]>(0)?);
    if !stored.is_ok_and(|stored| request.accepts(&stored)) {
        return Ok(ExistingClaim::Mismatch);
    }
    let status: i16 = row.try_get(1)?;
    let garbled = |_| IdempotencyError::CorruptRow;
    let status = u16::try_from(status).map_err(|_| IdempotencyError::CorruptRow)?;
    let Json(headers): Json<Vec<(String, String)>> = row.try_get(2).map_err(garbled)?;
    let body = Bytes::copy_from_slice(row.try_get(3)?);
    StoredResponse::new(status, headers, body)
        .map(ExistingClaim::Done)
        .map_err(|_| IdempotencyError::CorruptRow)
}
