//! The truth: one row for each key, written in the transaction that has the effect.
//!
//! Enters: the caller's transaction, a [`Request`] and the [`Answer`] it shall get. Leaves: a
//! [`Claim`]. What always holds: of all transactions that claim one key with [`Claim::Won`] at most
//! one commits, and its row is there if and only if its effect is; a row never changes. Needs
//! `migrations/0003_application.sql`.
//!
//! # Why here, and not in Redis
//!
//! An owner in Redis is one for as long as its time to live lasts, and no longer: a process that stood
//! still for a while (its machine was suspended, its disk hung, a lock made it wait) goes on to COMMIT
//! after a successor has begun. Making the time longer makes a crashed owner's clients wait longer and
//! the case rarer, never impossible; and a flush or a failover of Redis, which confirms writes before
//! its replicas have them, forgets the owner altogether. So two executions of one request are always
//! possible. What can be had is one *effect*: the effect and a row with a unique key commit together or
//! not at all, in the one place that both executions have to pass.
//!
//! # When a row may be deleted
//!
//! When no client can repeat its request any more, and nothing that still holds it (a queue, a job
//! that retries, a browser tab) will: the longest retry horizon, and never less than the COMPLETED time
//! to live in Redis plus the longest transaction. 24 hours is what Stripe keeps at least; a week is
//! safer and costs some 300 bytes a request.

use bytes::Bytes;
use tokio_postgres::types::{Json, Type};
use tokio_postgres::{GenericClient, Row, Transaction};

use super::answer::Answer;
use super::error::IdempotencyError;
use super::request::Request;

/// A row may be cleaned away between the INSERT that met it and the SELECT that reads it, once.
const ATTEMPTS: u32 = 3;

const INSERT: &str = "\
    INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (scope, key) DO NOTHING";
const SELECT: &str = "\
    SELECT fingerprint, status, headers, body FROM idempotency_keys WHERE scope = $1 AND key = $2";

/// Whether the transaction may have its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is the first: go on, and commit.
    Won,
    /// Another committed the same request before: roll back, and give this answer.
    Done(Answer),
    /// The key belongs to another request: roll back, 422.
    Mismatch,
}

/// What has been committed for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// The same request, answered so.
    Done(Answer),
    /// Another request: 422.
    Mismatch,
}

/// Claims the key for the caller's transaction.
///
/// Waits while another transaction holds it, until that one commits (then [`Claim::Done`]) or rolls back
/// (then [`Claim::Won`]); set `lock_timeout` to bound the wait, which then ends in
/// [`IdempotencyError::Busy`]. Claim first where the answer is known beforehand (ids are the client's
/// to draw), so that the loser does no work; claiming last is as safe, if all is rolled back unless it
/// won. In REPEATABLE READ and SERIALIZABLE losing may be a serialization failure instead: begin again.
pub async fn claim(
    transaction: &Transaction<'_>,
    request: &Request,
    answer: &Answer,
) -> Result<Claim, IdempotencyError> {
    let fingerprint = request.fingerprint().as_bytes().as_slice();
    let Ok(status) = i16::try_from(answer.status()) else {
        unreachable!("an answer has a status from 200 to 599");
    };
    for _ in 0..ATTEMPTS {
        // Types are given, so it is one round trip: nothing is prepared.
        let inserted = transaction
            .execute_typed(
                INSERT,
                &[
                    (&request.scope(), Type::TEXT),
                    (&request.key().as_str(), Type::TEXT),
                    (&fingerprint, Type::BYTEA),
                    (&status, Type::INT2),
                    (&Json(answer.headers()), Type::JSONB),
                    (&answer.body().as_ref(), Type::BYTEA),
                ],
            )
            .await?;
        if inserted == 1 {
            return Ok(Claim::Won);
        }
        match look_up(transaction, request).await? {
            Some(Known::Done(answer)) => return Ok(Claim::Done(answer)),
            Some(Known::Mismatch) => return Ok(Claim::Mismatch),
            None => {}
        }
    }
    Err(IdempotencyError::Vanishing)
}

/// What has been committed for the request's key, if anything. Waits for nobody, so that a transaction
/// under way is not seen: only [`claim`] decides.
pub async fn look_up(
    client: &(impl GenericClient + Sync),
    request: &Request,
) -> Result<Option<Known>, IdempotencyError> {
    let key = request.key().as_str();
    let row = client
        .query_typed_opt(SELECT, &[(&request.scope(), Type::TEXT), (&key, Type::TEXT)])
        .await?;
    row.map(|row| read(&row, request)).transpose()
}

fn read(row: &Row, request: &Request) -> Result<Known, IdempotencyError> {
    if row.try_get::<_, &[u8]>(0)? != request.fingerprint().as_bytes().as_slice() {
        return Ok(Known::Mismatch);
    }
    let status: i16 = row.try_get(1)?;
    let garbled = |_| IdempotencyError::Garbled;
    let status = u16::try_from(status).map_err(|_| IdempotencyError::Garbled)?;
    let Json(headers): Json<Vec<(String, String)>> = row.try_get(2).map_err(garbled)?;
    let body = Bytes::copy_from_slice(row.try_get(3)?);
    Answer::new(status, headers, body).map(Known::Done).map_err(|_| IdempotencyError::Garbled)
}
