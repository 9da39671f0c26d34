//! Gives up orders that took too long, and counts those that are open.
//!
//! Enters: the clock of the database. Leaves: OrderTimedOut in the outbox, for payment and inventory
//! to undo what they did, again and again until they have. What always holds: an order is given up
//! under its saga's lock, so it cannot be confirmed meanwhile; one that cannot go on stands in nobody's
//! way.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::watch;
use tracing::warn;
use uuid::Uuid;

use super::effects::go_on;
use super::process::{Fact, OrderProcess};
use crate::ShopError;
use crate::face::Count;
use postrider_patterns::saga::{self, SagaError, Standing};
use postrider_service::log_throttle::LogThrottle;

/// Orders in one transaction.
const BATCH: u32 = 100;
/// How often it looks.
const TICK: Duration = Duration::from_millis(500);
/// How often it counts what is open, for people to look at.
const COUNTING: Duration = Duration::from_secs(5);

/// How the orders stand; `None` while the database does not say.
pub(super) type Known = Option<Standing>;

/// Counts the orders that have not ended, until it is dropped.
pub(super) async fn count(pool: Pool, known: watch::Sender<Known>) {
    loop {
        // Whoever cannot be asked is silent on the metrics; `watch` says why.
        known.send_replace(standing(&pool).await.ok());
        tokio::time::sleep(COUNTING).await;
    }
}

async fn standing(pool: &Pool) -> Result<Standing, ShopError> {
    let client = pool.get().await?;
    Ok(saga::standing::<OrderProcess>(&**client).await?)
}

/// For the face. Every process of the service says the same of the one database.
pub(super) fn counts(known: Known) -> impl Iterator<Item = Count> {
    known.into_iter().flat_map(|Standing { open, overdue }| {
        [
            ("shop_sagas_open", "orders that have not ended", open),
            ("shop_sagas_overdue", "of these, those whose deadline has passed", overdue),
        ]
    })
}

/// Looks for orders that took longer than `patience`, until it is dropped.
pub(super) async fn watch(pool: Pool, patience: Duration) {
    let mut throttle = LogThrottle::default();
    loop {
        match give_up(&pool, patience).await {
            Ok(count) if count >= BATCH as usize => {}
            Ok(_) => tokio::time::sleep(TICK).await,
            Err(error) => {
                let (text, help) = (error.in_full(), error.hint());
                if throttle.is_due(&text) {
                    warn!(error = text, help, "cannot watch deadlines; retrying");
                }
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// One round. Returns how many orders were overdue.
async fn give_up(pool: &Pool, patience: Duration) -> Result<usize, ShopError> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let overdue = saga::overdue::<OrderProcess>(&transaction, patience, BATCH).await?;
    transaction.commit().await?;
    let mut failure = None;
    for id in &overdue {
        // Every saga of this kind was begun by `place`, with a UUID.
        let Ok(order) = Uuid::parse_str(id) else { continue };
        // All of them are put off by now: one that somebody holds must not make the others wait.
        if let Err(error) = give_up_one(&mut client, order).await {
            failure = Some(error);
        }
    }
    failure.map_or(Ok(overdue.len()), Err)
}

async fn give_up_one(client: &mut tokio_postgres::Client, order: Uuid) -> Result<(), ShopError> {
    let transaction = client.transaction().await?;
    match go_on(&transaction, order, &Fact::DeadlinePassed).await {
        Ok(()) => transaction.commit().await?,
        Err(error @ (SagaError::State { .. } | SagaError::Unknown { .. })) => {
            let error = ShopError::from(error);
            warn!(%order, error = %error.in_full(), help = error.hint(), "an order is stuck");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
