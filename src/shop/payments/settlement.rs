//! Carries out payment intents: intent -> call -> result; and counts those that wait.
//!
//! Enters: rows of `payments` that are due. Leaves: their results and the events that tell of them,
//! together. What always holds: no transaction is open while the gateway is called; a payment whose
//! caller died is due again after its lease, and asks with the same key, so that normal work and
//! recovery are one and the same.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::Transaction;
use tracing::warn;
use uuid::Uuid;

use super::gateway::{Answer, Gateway, Kind};
use crate::ShopError;
use crate::face::Count;
use postrider_patterns::outbox_writer::{Event, append};
use postrider_service::log_throttle::LogThrottle;

/// Payments that are called for at a time.
const BATCH: i64 = 32;
/// A call takes milliseconds; who has not written a result after this is taken for dead.
const LEASE_S: f64 = 5.0;
/// How long a call may take; well below the lease, which it is a part of.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// The first pause after a call without an answer, doubled each time up to [`PAUSE_MAX_S`].
const PAUSE_S: f64 = 0.1;
const PAUSE_MAX_S: f64 = 30.0;
/// How often it looks for payments that became due by the clock.
const TICK: Duration = Duration::from_millis(250);
/// How often it counts what is unsettled, for people to look at.
const COUNTING: Duration = Duration::from_secs(5);

/// One payment that is due.
#[derive(Debug)]
struct Due {
    order: Uuid,
    placed: Value,
    amount_cents: i64,
    kind: Kind,
    attempt: i32,
}

/// Intents without a result, and those of them that nobody is calling for though they are due; `None`
/// while the database does not say.
pub(super) type Waiting = Option<(u64, u64)>;

/// Counts intents until it is dropped.
pub(super) async fn count(pool: Pool, waiting: watch::Sender<Waiting>) {
    loop {
        // Whoever cannot be asked is silent on the metrics; `settle` says why.
        waiting.send_replace(ask(&pool).await.ok());
        tokio::time::sleep(COUNTING).await;
    }
}

async fn ask(pool: &Pool) -> Result<(u64, u64), ShopError> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE next_attempt_at <= statement_timestamp()) \
               FROM payments WHERE status IN ('PENDING', 'REFUNDING')";
    let row = pool.get().await?.query_one(sql, &[]).await?;
    let number = |at| Ok::<_, ShopError>(u64::try_from(row.try_get::<_, i64>(at)?).unwrap_or(0));
    Ok((number(0)?, number(1)?))
}

/// For the face. Every process of the service says the same of the one database.
pub(super) fn counts(waiting: Waiting) -> impl Iterator<Item = Count> {
    waiting.into_iter().flat_map(|(open, due)| {
        [
            ("shop_payments_open", "charges and refunds without a result", open),
            ("shop_payments_due", "of these, those that nobody is calling for yet", due),
        ]
    })
}

/// Carries out what is due until it is dropped. Woken by `intents` and by the clock.
pub(super) async fn settle(pool: Pool, gateway: Gateway, intents: Arc<Notify>) {
    let mut throttle = LogThrottle::default();
    loop {
        match settle_due(&pool, &gateway).await {
            Ok(0) => {
                let _ = tokio::time::timeout(TICK, intents.notified()).await;
            }
            Ok(_) => {}
            Err(error) => {
                let (text, help) = (error.in_full(), error.hint());
                if throttle.is_due(&text) {
                    warn!(error = text, help, "payments are not carried out; trying again");
                }
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// One round. Returns how many payments were due.
async fn settle_due(pool: &Pool, gateway: &Gateway) -> Result<usize, ShopError> {
    let due = lease(pool).await?;
    let count = due.len();
    let mut calls = JoinSet::new();
    for payment in due {
        let (pool, gateway) = (pool.clone(), gateway.clone());
        calls.spawn(async move { carry_out(&pool, &gateway, &payment).await });
    }
    let mut failure = None;
    while let Some(finished) = calls.join_next().await {
        match finished {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failure = Some(error),
            Err(error) => warn!(%error, "a payment was not carried out; it is due again soon"),
        }
    }
    failure.map_or(Ok(count), Err)
}

/// Takes what is due, so that nobody else does for as long as a call may take.
async fn lease(pool: &Pool) -> Result<Vec<Due>, ShopError> {
    let rows = pool
        .get()
        .await?
        .query(
            "UPDATE payments SET attempts = attempts + 1, \
                 next_attempt_at = statement_timestamp() + $2 * interval '1 second' \
             WHERE order_id = ANY (ARRAY(SELECT order_id FROM payments \
                 WHERE status IN ('PENDING', 'REFUNDING') \
                     AND next_attempt_at <= statement_timestamp() \
                 ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)) \
             RETURNING order_id, order_placed, amount_cents, status = 'REFUNDING', attempts",
            &[&BATCH, &LEASE_S],
        )
        .await?;
    let due = rows.iter().map(|row| {
        let is_refund: bool = row.try_get(3)?;
        Ok(Due {
            order: row.try_get(0)?,
            placed: row.try_get(1)?,
            amount_cents: row.try_get(2)?,
            kind: if is_refund { Kind::Refund } else { Kind::Charge },
            attempt: row.try_get(4)?,
        })
    });
    due.collect()
}

async fn carry_out(pool: &Pool, gateway: &Gateway, due: &Due) -> Result<(), ShopError> {
    let key = format!("{}-{}", due.kind.as_str(), due.order);
    let call = gateway.call(due.kind, &key, due.amount_cents, due.attempt);
    let answer = tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or(Ok(Answer::Lost))?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    match (due.kind, answer) {
        (_, Answer::Lost) => put_off(&transaction, due).await?,
        (Kind::Charge, Answer::Approved) => charged(&transaction, due).await?,
        (Kind::Charge, Answer::Declined(reason)) => declined(&transaction, due, &reason).await?,
        (Kind::Refund, Answer::Approved) => refunded(&transaction, due).await?,
        (Kind::Refund, Answer::Declined(reason)) => {
            // Never given up: somebody's money is at stake.
            warn!(order = %due.order, reason, "a refund was declined; trying again");
            put_off(&transaction, due).await?;
        }
    }
    transaction.commit().await?;
    Ok(())
}

async fn put_off(transaction: &Transaction<'_>, due: &Due) -> Result<(), ShopError> {
    let pause = (PAUSE_S * 2_f64.powi(due.attempt.clamp(1, 16) - 1)).min(PAUSE_MAX_S);
    // Unless somebody else has begun to carry it out since.
    let sql = "UPDATE payments SET next_attempt_at = clock_timestamp() + $2 * interval '1 second' \
               WHERE order_id = $1 AND attempts = $3 AND status = $4";
    let status = if due.kind == Kind::Refund { "REFUNDING" } else { "PENDING" };
    transaction.execute(sql, &[&due.order, &pause, &due.attempt, &status]).await?;
    Ok(())
}

/// Whoever else carried out the same payment has written the same result: then there is nothing to do.
async fn charged(transaction: &Transaction<'_>, due: &Due) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET updated_at = now(), attempts = 0, next_attempt_at = now(), \
                   status = CASE WHEN undo THEN 'REFUNDING' ELSE 'CHARGED' END \
               WHERE order_id = $1 AND status = 'PENDING' RETURNING undo";
    let Some(row) = transaction.query_opt(sql, &[&due.order]).await? else { return Ok(()) };
    if row.try_get(0)? {
        // Given up meanwhile: nobody waits for this payment, and PaymentRefunded will tell of it.
        return Ok(());
    }
    tell(transaction, due, "PaymentProcessed", due.placed.clone()).await
}

async fn declined(transaction: &Transaction<'_>, due: &Due, reason: &str) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET status = 'DECLINED', reason = $2, updated_at = now() \
               WHERE order_id = $1 AND status = 'PENDING'";
    if transaction.execute(sql, &[&due.order, &reason]).await? == 0 {
        return Ok(());
    }
    tell(transaction, due, "PaymentFailed", json!({ "reason": reason })).await
}

async fn refunded(transaction: &Transaction<'_>, due: &Due) -> Result<(), ShopError> {
    let sql = "UPDATE payments SET status = 'REFUNDED', updated_at = now() \
               WHERE order_id = $1 AND status = 'REFUNDING'";
    if transaction.execute(sql, &[&due.order]).await? == 0 {
        return Ok(());
    }
    tell(transaction, due, "PaymentRefunded", json!({ "amount_cents": due.amount_cents })).await
}

async fn tell(
    transaction: &Transaction<'_>,
    due: &Due,
    event_type: &str,
    payload: Value,
) -> Result<(), ShopError> {
    let event = Event::new("payment", due.order.to_string(), event_type, payload);
    append(transaction, &event).await?;
    Ok(())
}
