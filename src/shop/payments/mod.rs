//! The payment service: charges and refunds orders, through a simulated gateway. An order is
//! charged at most once and refunded at most once.

mod effects;
mod gateway;
mod settlement;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::error::ShopError;
use super::probes::Probes;
use super::service;
use super::settings::{ServiceListener, ServiceSettings, pool};
use effects::PaymentEffects;
pub(crate) use effects::TOPICS;
use gateway::Gateway;
use postrider_patterns::inbox::Consumer;
use settlement::settle;

pub use gateway::CARD_LIMIT_CENTS;

/// Consumer group, owner of the markers, and prefix of the dead-letter topic.
pub const NAME: &str = "shop-payments";

pub async fn run(
    settings: &ServiceSettings,
    endpoint: ServiceListener<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let database = settings.database()?;
    let pool = pool(&database)?;
    let intents = Arc::new(Notify::new());
    let effects = PaymentEffects { intents: Arc::clone(&intents) };
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, effects)?;
    let (counting, waiting) = watch::channel(None);
    let probes = Probes::new(pool.clone(), move || settlement::counts(*waiting.borrow()).collect())
        .with_required_consumer(consumer.counters());
    let settling = settle(pool.clone(), Gateway::new(pool.clone()), intents);
    let background = Box::pin(async move {
        tokio::select! {
            error = settings.login_refused() => error,
            ((), ()) = async { tokio::join!(settling, settlement::count(pool, counting)) } => {
                std::future::pending().await
            }
        }
    });
    service::run(consumer, database.tls, probes.router(), background, endpoint).await
}
