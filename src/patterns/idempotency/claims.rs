//! Claims an idempotency key in Postgres: inserts its row into `idempotency_keys` in the transaction of the
//! effect, so that only one of several identical requests commits its effect.
//!
//! Input: the caller's transaction, a [`Request`] and the [`StoredResponse`] it will get, now or (`reserve`,
//! then `store`) before the transaction ends. Output: a [`Claim`]; [`find_claim`] only looks for a committed
//! one. Invariant: of all transactions that claim one key with [`Claim::Won`] at most one commits, and its
//! row exists if and only if its effect does; a committed row never changes. Needs
//! the table of `migrations::Piece::Idempotency`.
//!
//! # Why in Postgres and not in Redis
//!
//! An owner in Redis is the owner only until its time to live expires: a process that was paused (its
//! machine was suspended, its disk hung, it waited for a lock) still reaches COMMIT after a successor has
//! begun. A longer time to live makes clients of a crashed owner wait longer and the overlap rarer, never
//! impossible; and a flush, or a failover of Redis, whose replication is asynchronous, loses the owner
//! altogether. So one request may always be executed twice. What can be guaranteed is one *effect*: the
//! effect and a row with a unique key commit together or not at all, and both executions need that row.
//!
//! # When a row may be deleted
//!
//! When neither a client nor anything that retries for it (a queue, a job, a browser tab) can repeat the
//! request any more: after the longest retry period, and never before the COMPLETED time to live in
//! Redis plus the longest transaction. With the defaults two days, where nothing repeats a request for longer;
//! a row takes some 300 bytes.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::{Json, ToSql, Type};
use tokio_postgres::{Error, GenericClient, Row, Transaction};

use super::error::IdempotencyError;
use super::request::{Fingerprint, Request};
use super::response::StoredResponse;

/// A locked row is one that another run deletes.
const CLEAN: &str = "\
    DELETE FROM idempotency_keys AS kept USING ( \
        SELECT scope, key FROM idempotency_keys \
        WHERE created_at < statement_timestamp() - $1 * interval '1 second' \
        ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED \
    ) AS old WHERE kept.scope = old.scope AND kept.key = old.key";

/// A row may be deleted between the INSERT that conflicted with it and the SELECT that reads it.
const ATTEMPTS: u32 = 3;

const INSERT: &str = "\
    INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, key) DO NOTHING";
const SELECT: &str = "\
    SELECT fingerprint, status, headers, body FROM idempotency_keys WHERE scope = $1 AND key = $2";

/// Lets the next statements of the transaction wait for a lock for $1 at most, or for as long as the session
/// lets them where that is shorter or $1 is NULL, until [`AS_BEFORE`].
///
/// Also has the server end the session if the transaction is then idle for 30 s, as long as a lease in Redis lasts by
/// default, unless the session has a limit of its own. Without any, a process that was frozen in its effect for 51 s
/// kept its key for all of them.
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
/// The status of a row whose transaction has not got its response yet: none that a response can have, so
/// that such a row, should it ever be committed, is an error and not an empty response.
const RESERVED: i16 = 0;

/// Whether the transaction may have its effect. A new variant would be a breaking change on purpose: each
/// needs code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "unless the claim is won, the effect has happened before"]
pub enum Claim {
    /// It is the first: go on, and commit.
    Won,
    /// The same request has committed before: roll back, and send this response.
    Done(StoredResponse),
    /// The key belongs to another request: roll back, 422.
    Mismatch,
}

/// The committed claim of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExistingClaim {
    /// By the same request, with this response.
    Done(StoredResponse),
    /// By another request: 422.
    Mismatch,
}

/// Claims the key for the caller's transaction.
///
/// Waits while another transaction has the key locked, until that one commits (then [`Claim::Done`]) or
/// rolls back (then [`Claim::Won`]). Set `lock_timeout` to bound the wait, which then ends in
/// [`IdempotencyError::Busy`]; by default Postgres sets no limit. Claim first where the response is known
/// beforehand (ids are generated by the client), so that the loser does no work; claiming last is as safe, if
/// everything is rolled back unless it won. In REPEATABLE READ and SERIALIZABLE the loser may get a
/// serialization failure instead: repeat the transaction.
pub async fn claim(
    transaction: &Transaction<'_>,
    request: &Request,
    response: &StoredResponse,
) -> Result<Claim, IdempotencyError> {
    let (status, headers) = (status(response), response.headers());
    insert(transaction, request, (status, headers, response.body()), None).await
}

/// The same before the response is known: if it is won, `store` must follow in the same transaction. Waits
/// no longer than `wait_max`, or the session's `lock_timeout` where that is shorter; zero sets no limit. Limits how
/// long the transaction may be idle.
pub(super) async fn reserve(
    transaction: &Transaction<'_>,
    request: &Request,
    wait_max: Duration,
) -> Result<Claim, IdempotencyError> {
    insert(transaction, request, (RESERVED, &[], &[]), Some(wait_max)).await
}

/// Gives the row that `reserve` has inserted in this transaction its response. An error where a
/// statement of the transaction has failed before, even if that was ignored.
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
/// Status, headers and body.
type Parts<'a> = (i16, &'a [(String, String)], &'a [u8]);

async fn insert(
    transaction: &Transaction<'_>,
    request: &Request,
    (status, headers, body): Parts<'_>,
    wait_max: Option<Duration>,
) -> Result<Claim, IdempotencyError> {
    let fingerprint = request.fingerprint().as_bytes().as_slice();
    for _ in 0..ATTEMPTS {
        // Types are given, so it is one round trip: nothing is prepared.
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

/// Lets a statement that has not been sent wait for locks for `wait_max` at most, and those after it for as
/// long as before. In the same round trip: each future sends its statement when it is first polled.
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

/// The committed claim of the request's key, if any. Does not wait, so an open transaction is not seen:
/// only [`claim`] decides.
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

/// Deletes up to `batch` claims that are older than `older_than`, the oldest first, in one statement, and returns
/// how many. Call it until it deletes fewer than `batch`. It needs DELETE on `idempotency_keys`. Which age is safe:
/// see the time to live in Redis, [`GuardSettings`](super::GuardSettings), and for how long a client may repeat a
/// request; a request that is repeated after that has its effect again.
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
