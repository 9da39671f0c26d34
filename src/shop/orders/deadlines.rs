//! Gives up orders that took too long.
//!
//! Enters: the clock of the database. Leaves: OrderTimedOut in the outbox, for payment and inventory
//! to undo what they did, again and again until they have. What always holds: an order is given up
//! under its saga's lock, so it cannot be confirmed meanwhile; one that cannot go on stands in nobody's
//! way. Called by `service`.

use std::time::Duration;

use deadpool_postgres::Pool;
use tracing::warn;
use uuid::Uuid;

use super::effects::go_on;
use super::process::{Fact, OrderProcess};
use crate::saga::{self, SagaError};
use crate::shop::ShopError;

/// Orders in one transaction.
const BATCH: u32 = 100;
/// How often it looks.
const TICK: Duration = Duration::from_millis(500);

/// Looks for orders that took longer than `patience`, until it is dropped.
pub(super) async fn watch(pool: Pool, patience: Duration) {
    loop {
        match give_up(&pool, patience).await {
            Ok(count) if count >= BATCH as usize => {}
            Ok(_) => tokio::time::sleep(TICK).await,
            Err(error) => {
                warn!(error = %error.in_full(), "deadlines are not watched; trying again");
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
    for id in &overdue {
        // Every saga of this kind was begun by `place`, with a UUID.
        let Ok(order) = Uuid::parse_str(id) else { continue };
        let transaction = client.transaction().await?;
        match go_on(&transaction, order, &Fact::DeadlinePassed).await {
            Ok(()) => transaction.commit().await?,
            Err(error @ (SagaError::State { .. } | SagaError::Unknown { .. })) => {
                let error = ShopError::from(error);
                warn!(%order, error = %error.in_full(), help = error.hint(), "an order is stuck");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(overdue.len())
}
