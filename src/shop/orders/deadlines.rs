//! Gives up orders that took too long.
//!
//! Enters: the clock of the database. Leaves: OrderTimedOut in the outbox, for payment and inventory
//! to undo what they did. What always holds: an order is given up in the transaction that looks at its
//! deadline, so it cannot be confirmed meanwhile. Called by `service`.

use std::time::Duration;

use deadpool_postgres::Pool;
use tracing::warn;
use uuid::Uuid;

use super::effects::go_on;
use super::process::{Fact, OrderProcess};
use crate::saga;
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
    for id in &overdue {
        // Every saga of this kind was begun by `place`, with a UUID.
        if let Ok(order) = Uuid::parse_str(id) {
            go_on(&transaction, order, &Fact::DeadlinePassed).await?;
        }
    }
    transaction.commit().await?;
    Ok(overdue.len())
}
