//! The inventory service: reserves stock for paid orders and releases it for orders that timed out.
//! An order takes and returns stock at most once. Stock is never below zero.

mod effects;

use std::future::Future;

use super::error::ShopError;
use super::probes::Probes;
use super::service;
use super::settings::{ServiceListener, ServiceSettings, pool};
use effects::InventoryEffects;
pub(crate) use effects::TOPICS;
use postrider_patterns::inbox::Consumer;

/// Consumer group, owner of the markers, and prefix of the dead-letter topic.
pub const NAME: &str = "shop-inventory";

pub async fn run(
    settings: &ServiceSettings,
    endpoint: ServiceListener<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let database = settings.database()?;
    let pool = pool(&database)?;
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, InventoryEffects)?;
    let probes = Probes::new(pool, Vec::new).with_required_consumer(consumer.counters());
    service::run(
        consumer,
        database.tls,
        probes.router(),
        Box::pin(settings.login_refused()),
        endpoint,
    )
    .await
}
