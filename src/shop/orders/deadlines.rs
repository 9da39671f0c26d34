//! Background tasks of the order service: `watch` times out orders that took too long, `count` counts open
//! ones.
//!
//! Input: the clock of the database. Output: OrderTimedOut in the outbox, at which payment and inventory undo
//! what they did, repeated until they have; and metrics of open orders. Invariant: an order is timed out
//! under its saga's lock, so it cannot be confirmed concurrently; an order that fails does not block others.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::watch;
use tracing::warn;
use uuid::Uuid;

use super::effects::advance;
use super::process::{Fact, OrderProcess};
use crate::ShopError;
use crate::probes::Metric;
use postrider_patterns::saga::{self, OpenSagas, SagaError};
use postrider_service::log_throttle::LogThrottle;

/// Orders in one transaction.
const BATCH: u32 = 100;
/// How often it checks.
const TICK: Duration = Duration::from_millis(500);
/// How often the metrics are updated.
const COUNTING: Duration = Duration::from_secs(5);

/// Open orders; `None` while the database is unavailable.
pub(super) type OpenOrders = Option<OpenSagas>;

/// Counts the orders that have not ended, until it is dropped.
pub(super) async fn count(pool: Pool, known: watch::Sender<OpenOrders>) {
    loop {
        // Without the database the metrics are absent; `watch` logs why.
        known.send_replace(count_open(&pool).await.ok());
        tokio::time::sleep(COUNTING).await;
    }
}

async fn count_open(pool: &Pool) -> Result<OpenSagas, ShopError> {
    let client = pool.get().await?;
    Ok(saga::count_open::<OrderProcess>(&**client).await?)
}

/// The metrics. Every process of the service reports the same of the one database.
pub(super) fn counts(known: OpenOrders) -> impl Iterator<Item = Metric> {
    known.into_iter().flat_map(|OpenSagas { open, overdue }| {
        [
            ("shop_sagas_open", "orders that have not ended", open),
            ("shop_sagas_overdue", "of these, those whose deadline has passed", overdue),
        ]
    })
}

/// Times out orders that took longer than `order_timeout`, until it is dropped.
pub(super) async fn watch(pool: Pool, order_timeout: Duration) {
    let mut throttle = LogThrottle::default();
    loop {
        match give_up(&pool, order_timeout).await {
            Ok(count) if count >= BATCH as usize => {}
            Ok(_) => tokio::time::sleep(TICK).await,
            Err(error) => {
                let (text, help) = (error.with_causes(), error.hint());
                if throttle.is_due(&text) {
                    warn!(error = text, help, "cannot watch deadlines; retrying");
                }
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// One round. Returns how many orders were overdue.
async fn give_up(pool: &Pool, order_timeout: Duration) -> Result<usize, ShopError> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let overdue = saga::overdue::<OrderProcess>(&transaction, order_timeout, BATCH).await?;
    transaction.commit().await?;
    let mut failure = None;
    for id in &overdue {
        // Every saga of this kind was started by `place`, with a UUID.
        let Ok(order) = Uuid::parse_str(id) else { continue };
        // Their deadlines are all postponed by now: one that is locked must not make the others wait.
        if let Err(error) = give_up_one(&mut client, order).await {
            failure = Some(error);
        }
    }
    failure.map_or(Ok(overdue.len()), Err)
}

async fn give_up_one(client: &mut tokio_postgres::Client, order: Uuid) -> Result<(), ShopError> {
    let transaction = client.transaction().await?;
    match advance(&transaction, order, &Fact::DeadlinePassed).await {
        Ok(()) => transaction.commit().await?,
        Err(error @ (SagaError::State { .. } | SagaError::Unknown { .. })) => {
            let error = ShopError::from(error);
            warn!(%order, error = %error.with_causes(), help = error.hint(), "cannot time out an order");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
