//! Executes the charges and refunds that are due (`settle`), and counts those without a result
//! (`count`).
//!
//! Input: rows of `payments`. Output: the gateway's result and its event, in one transaction;
//! metrics.
//!
//! Invariants:
//!
//! * No transaction is open while the gateway is called.
//! * If the process of a payment dies, the payment is retried with its key after its lease.
//! * A key that the gateway may have forgotten is never sent again. The gateway is asked for the
//!   booking instead; without one, the payment stays open for an operator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::Transaction;
use tracing::warn;
use uuid::Uuid;

use super::gateway::{Gateway, GatewayReply, GatewayRequest, KEY_MEMORY, Operation};
use crate::ShopError;
use crate::probes::Metric;
use postrider_patterns::outbox_writer::{Event, append};
use postrider_service::log_throttle::LogThrottle;

const BATCH: i64 = 32;
/// Time after which a process without a result counts as dead. A call takes milliseconds.
const LEASE: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Part of the gateway's memory for keys that is reserved for calls in progress and for clock
/// differences.
const KEY_MARGIN: Duration = Duration::from_hours(1);
/// Interval for a payment that the gateway does not know.
const REVIEW_INTERVAL_S: f64 = 600.0;
/// Doubled up to [`BACKOFF_MAX_S`].
const BACKOFF_S: f64 = 0.1;
const BACKOFF_MAX_S: f64 = 30.0;
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct DuePayment {
    order: Uuid,
    placed: Value,
    amount_cents: i64,
    kind: Operation,
    attempt: i32,
    /// True if the gateway may have forgotten the key.
    is_key_old: bool,
    leased: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OpenPayments {
    open: u64,
    due: u64,
    /// Unknown outcome, and a key that is too old.
    unknown: u64,
}

fn key_age_max_s() -> f64 {
    KEY_MEMORY.saturating_sub(KEY_MARGIN).as_secs_f64()
}

/// `None` while the database is unavailable.
pub(super) async fn count(pool: Pool, waiting: watch::Sender<Option<OpenPayments>>) {
    loop {
        waiting.send_replace(count_open(&pool).await.ok());
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

async fn count_open(pool: &Pool) -> Result<OpenPayments, ShopError> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE next_attempt_at <= statement_timestamp()), \
                   count(*) FILTER (WHERE first_attempt_at \
                       < statement_timestamp() - $1 * interval '1 second') \
               FROM payments WHERE status IN ('PENDING', 'REFUNDING')";
    let row = pool.get().await?.query_one(sql, &[&key_age_max_s()]).await?;
    let number = |at| Ok::<_, ShopError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok(OpenPayments { open: number(0)?, due: number(1)?, unknown: number(2)? })
}

/// Every process of the service reports equal values, from the one database.
pub(super) fn counts(waiting: Option<OpenPayments>) -> impl Iterator<Item = Metric> {
    waiting.into_iter().flat_map(|OpenPayments { open, due, unknown }| {
        [
            ("shop_payments_open", "charges and refunds without a result", open),
            ("shop_payments_due", "of these, those that are due and not being executed", due),
            (
                "shop_payments_unknown",
                "of these, those that the gateway was asked for too long ago to ask again",
                unknown,
            ),
        ]
    })
}

pub(super) async fn settle(pool: Pool, gateway: Gateway, intents: Arc<Notify>) {
    let mut throttle = LogThrottle::default();
    loop {
        match execute_due(&pool, &gateway).await {
            Ok(0) => {
                let _ = tokio::time::timeout(POLL_INTERVAL, intents.notified()).await;
            }
            Ok(_) => {}
            Err(error) => {
                let (text, help) = (error.with_causes(), error.hint());
                if throttle.is_due(&text) {
                    warn!(error = text, help, "cannot execute payments; retrying");
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

async fn execute_due(pool: &Pool, gateway: &Gateway) -> Result<usize, ShopError> {
    let due = lease(pool).await?;
    let count = due.len();
    let mut calls = JoinSet::new();
    for payment in due {
        let (pool, gateway) = (pool.clone(), gateway.clone());
        calls.spawn(async move { execute(&pool, &gateway, &payment).await });
    }
    let mut failure = None;
    while let Some(finished) = calls.join_next().await {
        match finished {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failure = Some(error),
            Err(error) => warn!(%error, "a payment task failed; it is retried after its lease"),
        }
    }
    failure.map_or(Ok(count), Err)
}

/// The lease keeps other processes away during a call.
async fn lease(pool: &Pool) -> Result<Vec<DuePayment>, ShopError> {
    let rows = pool
        .get()
        .await?
        .query(
            // An earlier version did not store the time of its first call. That call preceded the
            // last change of the intent, unless a refund was requested since.
            "UPDATE payments SET attempts = attempts + 1, \
                 first_attempt_at = coalesce(first_attempt_at, CASE \
                     WHEN attempts = 0 THEN statement_timestamp() \
                     WHEN status = 'PENDING' AND undo THEN '-infinity' ELSE updated_at END), \
                 next_attempt_at = statement_timestamp() + $2 * interval '1 second' \
             WHERE order_id = ANY (ARRAY(SELECT order_id FROM payments \
                 WHERE status IN ('PENDING', 'REFUNDING') \
                     AND next_attempt_at <= statement_timestamp() \
                 ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)) \
             RETURNING order_id, order_placed, amount_cents, status = 'REFUNDING', attempts, \
                 first_attempt_at < statement_timestamp() - $3 * interval '1 second'",
            &[&BATCH, &LEASE.as_secs_f64(), &key_age_max_s()],
        )
        .await?;
    let leased = Instant::now();
    let due = rows.iter().map(|row| {
        let is_refund: bool = row.try_get(3)?;
        Ok(DuePayment {
            order: row.try_get(0)?,
            placed: row.try_get(1)?,
            amount_cents: row.try_get(2)?,
            kind: if is_refund { Operation::Refund } else { Operation::Charge },
            attempt: row.try_get(4)?,
            is_key_old: row.try_get(5)?,
            leased,
        })
    });
    due.collect()
}

async fn execute(pool: &Pool, gateway: &Gateway, due: &DuePayment) -> Result<(), ShopError> {
    if due.leased.elapsed() > LEASE.saturating_sub(CALL_LIMIT) {
        // This process was paused: another one may have the payment, or the key may be too old.
        return Ok(());
    }
    let asked = tokio::time::timeout(CALL_LIMIT, ask(gateway, due)).await;
    let answer = asked.unwrap_or(Ok(Some(GatewayReply::Lost)))?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    match (due.kind, answer) {
        (_, Some(GatewayReply::Lost)) => reschedule(&transaction, due).await?,
        (_, None) => await_review(&transaction, due).await?,
        (Operation::Charge, Some(GatewayReply::Approved)) => charged(&transaction, due).await?,
        (Operation::Charge, Some(GatewayReply::Declined(reason))) => {
            declined(&transaction, due, &reason).await?;
        }
        (Operation::Refund, Some(GatewayReply::Approved)) => refunded(&transaction, due).await?,
        (Operation::Refund, Some(GatewayReply::Declined(reason))) => {
            // Retried without limit: the customer must get the refund.
            warn!(order = %due.order, reason, "the gateway declined a refund; retrying");
            reschedule(&transaction, due).await?;
        }
    }
    transaction.commit().await?;
    Ok(())
}

/// Queries the result if the gateway may have forgotten the key: sending it would be a second
/// charge. `None`: the gateway does not know the request.
async fn ask(gateway: &Gateway, due: &DuePayment) -> Result<Option<GatewayReply>, ShopError> {
    let reference = due.order.to_string();
    if due.is_key_old {
        return gateway.find(due.kind, &reference).await;
    }
    let key = format!("{}-{reference}", due.kind.as_str());
    let (kind, amount_cents, attempt) = (due.kind, due.amount_cents, due.attempt);
    let request = GatewayRequest { kind, key: &key, reference: &reference, amount_cents, attempt };
    gateway.call(&request).await.map(Some)
}

/// A person must find out if money moved. The gateway is asked again at long intervals, and
/// `shop_payments_unknown` shows the payment.
async fn await_review(transaction: &Transaction<'_>, due: &DuePayment) -> Result<(), ShopError> {
    let kind = due.kind.as_str();
    warn!(
        order = %due.order, kind,
        "the gateway does not know an old request; it is not repeated: \
         docs/patterns/saga-operations.md, \"A payment whose outcome is unknown\""
    );
    put_off(transaction, due, REVIEW_INTERVAL_S).await
}

async fn reschedule(transaction: &Transaction<'_>, due: &DuePayment) -> Result<(), ShopError> {
    let pause = (BACKOFF_S * 2_f64.powi(due.attempt.clamp(1, 16) - 1)).min(BACKOFF_MAX_S);
    put_off(transaction, due, pause).await
}

/// Does nothing if another process leased the payment since.
async fn put_off(
    transaction: &Transaction<'_>,
    due: &DuePayment,
    pause_s: f64,
) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET next_attempt_at = clock_timestamp() + $2 * interval '1 second' \
               WHERE order_id = $1 AND attempts = $3 AND status = $4";
    let status = if due.kind == Operation::Refund { "REFUNDING" } else { "PENDING" };
    transaction.execute(sql, &[&due.order, &pause_s, &due.attempt, &status]).await?;
    Ok(())
}

/// Does nothing if another process executed this payment: its result is equal.
async fn charged(transaction: &Transaction<'_>, due: &DuePayment) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET updated_at = now(), attempts = 0, next_attempt_at = now(), \
                   first_attempt_at = NULL, \
                   status = CASE WHEN undo THEN 'REFUNDING' ELSE 'CHARGED' END \
               WHERE order_id = $1 AND status = 'PENDING' RETURNING undo";
    let Some(row) = transaction.query_opt(sql, &[&due.order]).await? else { return Ok(()) };
    if row.try_get(0)? {
        // The order is undone: the refund and PaymentRefunded follow.
        return Ok(());
    }
    emit(transaction, due, "PaymentProcessed", due.placed.clone()).await
}

async fn declined(
    transaction: &Transaction<'_>,
    due: &DuePayment,
    reason: &str,
) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET status = 'DECLINED', reason = $2, updated_at = now() \
               WHERE order_id = $1 AND status = 'PENDING'";
    if transaction.execute(sql, &[&due.order, &reason]).await? == 0 {
        return Ok(());
    }
    emit(transaction, due, "PaymentFailed", json!({ "reason": reason })).await
}

async fn refunded(transaction: &Transaction<'_>, due: &DuePayment) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET status = 'REFUNDED', updated_at = now() \
               WHERE order_id = $1 AND status = 'REFUNDING'";
    if transaction.execute(sql, &[&due.order]).await? == 0 {
        return Ok(());
    }
    emit(transaction, due, "PaymentRefunded", json!({ "amount_cents": due.amount_cents })).await
}

async fn emit(
    transaction: &Transaction<'_>,
    due: &DuePayment,
    event_type: &str,
    payload: Value,
) -> Result<(), ShopError> {
    let event = Event::new("payment", due.order.to_string(), event_type, payload);
    append(transaction, &event).await?;
    Ok(())
}
