//! The payment service.
//!
//! Enters: orders to be charged, and orders to be undone. Leaves: PaymentProcessed, PaymentFailed,
//! PaymentRefunded. What always holds: an order is charged once and refunded once at most, whatever is
//! delivered twice and whoever dies in between.

mod effects;
mod gateway;
mod settlement;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::error::ShopError;
use super::face::Face;
use super::service;
use super::settings::{Place, Settings, pool};
use effects::{PaymentEffects, TOPICS};
use gateway::Gateway;
use postrider_patterns::inbox::Consumer;
use settlement::settle;

pub use gateway::CARD_LIMIT_CENTS;

/// Consumer group, owner of markers, beginning of the dead-letter topic.
pub const NAME: &str = "shop-payments";

/// Serves at `place` until its end.
pub async fn run(
    settings: &Settings,
    place: Place<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let database = settings.database()?;
    let pool = pool(&database)?;
    let intents = Arc::new(Notify::new());
    let effects = PaymentEffects { intents: Arc::clone(&intents) };
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, effects)?;
    let (counting, waiting) = watch::channel(None);
    let face = Face::new(pool.clone(), move || settlement::counts(*waiting.borrow()).collect())
        .needing(consumer.counters());
    let settling = settle(pool.clone(), Gateway::new(pool.clone()), intents);
    let beside = Box::pin(async move {
        tokio::select! {
            error = settings.login_refused() => error,
            ((), ()) = async { tokio::join!(settling, settlement::count(pool, counting)) } => {
                std::future::pending().await
            }
        }
    });
    service::run(consumer, database.tls, face.router(), beside, place).await
}
