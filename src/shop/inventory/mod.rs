//! The inventory service.
//!
//! Enters: paid orders, and orders to be undone. Leaves: InventoryReserved, InventoryUnavailable,
//! InventoryReleased. What always holds: stock is taken once and given back once for an order, and
//! never below zero.

mod effects;

use std::future::Future;

use super::error::ShopError;
use super::face::Face;
use super::service;
use super::settings::{Place, Settings, pool};
use effects::{InventoryEffects, TOPICS};
use postrider_patterns::inbox::Consumer;

/// Consumer group, owner of markers, beginning of the dead-letter topic.
pub const NAME: &str = "shop-inventory";

/// Serves at `place` until its end.
pub async fn run(
    settings: &Settings,
    place: Place<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let database = settings.database()?;
    let pool = pool(&database)?;
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, InventoryEffects)?;
    let face = Face::new(pool, Vec::new).needing(consumer.counters());
    service::run(consumer, database.tls, face.router(), Box::pin(settings.login_refused()), place)
        .await
}
