//! The order service.
//!
//! Enters: `POST /orders` behind an idempotency key, and what payment and inventory report. Leaves:
//! OrderCreated, OrderConfirmed, OrderCancelled, OrderTimedOut. What always holds: one key makes one
//! order; every order ends confirmed or cancelled.

mod admission;
mod deadlines;
mod effects;
mod http;
#[cfg(test)]
mod model;
mod place;
mod problem;
mod process;
mod request;
mod under_way;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::error::ShopError;
use super::face::{Count, Face};
use super::service;
use super::settings::{Place, Settings, pool};
use admission::Admission;
use effects::{OrderEffects, TOPICS};
use place::Placing;
use postrider_patterns::idempotency::{self, Counts, Guard};
use postrider_patterns::inbox::Consumer;

/// Consumer group, owner of markers, beginning of the dead-letter topic.
pub const NAME: &str = "shop-orders";
/// The event types of the whole shop, which are its topics.
pub const EVENT_TYPES: [&str; 10] = [
    "OrderCreated",
    "OrderConfirmed",
    "OrderCancelled",
    "OrderTimedOut",
    "PaymentProcessed",
    "PaymentFailed",
    "PaymentRefunded",
    "InventoryReserved",
    "InventoryUnavailable",
    "InventoryReleased",
];

/// Counts what was not even begun.
const SHED: &str = "shop_requests_shed_total";

/// What holds for orders alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long an order may take before it is given up.
    pub patience: Duration,
    /// After how much silence the owner of an idempotency key counts as dead, 30 ms to 366 days.
    pub owner_silence: Duration,
}

/// Serves at `place` until its end.
pub async fn run(
    settings: &Settings,
    terms: Terms,
    place: Place<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let Terms { patience, owner_silence } = terms;
    let database = settings.database()?;
    let pool = pool(&database)?;
    let guard = Arc::new(match &settings.redis_url {
        Some(url) => {
            let how = idempotency::Settings { pending_ttl: owner_silence, ..Default::default() };
            Guard::connect(url, &how)?
        }
        None => Guard::without_redis(),
    });
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, OrderEffects)?;
    let admission = Arc::new(Admission::default());
    let guarded = Arc::clone(&guard);
    let admitting = Arc::clone(&admission);
    let (counting, known) = watch::channel(None);
    let face = Face::new(pool.clone(), move || {
        let mut all = guard_counts(&guarded.counts()).to_vec();
        all.extend(deadlines::counts(*known.borrow()));
        all.push((SHED, "requests turned away, as too many were under way", admitting.shed()));
        all
    })
    // Orders are taken while Kafka is away: that is what the outbox is for.
    .beside(consumer.counters());
    let watching = deadlines::watch(pool.clone(), patience);
    let standing = deadlines::count(pool.clone(), counting);
    let beside = Box::pin(async move {
        tokio::select! {
            error = settings.login_refused() => error,
            ((), ()) = async { tokio::join!(watching, standing) } => std::future::pending().await,
        }
    });
    let router =
        http::router(Placing { pool, guard, admission, under_way: Arc::default(), patience }, face);
    service::run(consumer, database.tls, router, beside, place).await
}

fn guard_counts(guard: &Counts) -> [Count; 6] {
    [
        ("shop_requests_new_total", "requests nobody had sent before", guard.new),
        ("shop_requests_pending_total", "requests that met one under way", guard.pending),
        ("shop_requests_replayed_total", "requests Redis had the answer of", guard.replayed),
        ("shop_requests_mismatched_total", "keys used for another request", guard.mismatched),
        ("shop_requests_unsure_total", "requests Redis knew nothing of", guard.unsure),
        ("shop_requests_stale_total", "answers that came after their permit", guard.stale),
    ]
}
