//! The order service: takes orders over HTTP, and runs the saga of each order to its end. One key
//! creates at most one order.

mod admission;
mod deadlines;
mod effects;
mod http;
#[cfg(test)]
mod model;
mod operator;
mod place;
mod problem;
mod process;
mod request;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::error::ShopError;
use super::probes::{Metric, Probes};
use super::service;
use super::settings::{ServiceListener, ServiceSettings, pool};
use admission::AdmissionControl;
use effects::OrderEffects;
pub(crate) use effects::TOPICS;
pub(super) use operator::SagasArgs;
use place::OrderPlacer;
use postrider_patterns::idempotency::{Counts, Guard, GuardSettings};
use postrider_patterns::inbox::Consumer;

/// Consumer group, owner of the markers, and prefix of the dead-letter topic.
pub const NAME: &str = "shop-orders";
/// Event types of the whole shop, which are its topics.
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

const SHED: &str = "shop_requests_shed_total";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderLimits {
    pub order_timeout: Duration,
    /// Lease of an idempotency key without renewal, 30 ms to 366 days.
    pub owner_silence: Duration,
}

pub async fn run(
    settings: &ServiceSettings,
    limits: OrderLimits,
    endpoint: ServiceListener<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let OrderLimits { order_timeout, owner_silence } = limits;
    let database = settings.database()?;
    let pool = pool(&database)?;
    let guard = match &settings.redis_url {
        Some(url) => Guard::connect(url, &GuardSettings::default().pending_ttl(owner_silence))?,
        None => Guard::without_redis(),
    };
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, OrderEffects)?;
    let admission = Arc::new(AdmissionControl::default());
    let guarded = guard.clone();
    let admitting = Arc::clone(&admission);
    let (counting, known) = watch::channel(None);
    let probes = Probes::new(pool.clone(), move || {
        let mut all = guard_counts(&guarded.counts()).to_vec();
        all.extend(deadlines::counts(*known.borrow()));
        all.push((SHED, "requests refused because too many were in flight", admitting.shed()));
        all
    })
    // Orders are accepted while Kafka is unavailable.
    .with_optional_consumer(consumer.counters());
    let watching = deadlines::watch(pool.clone(), order_timeout);
    let open_orders = deadlines::count(pool.clone(), counting);
    let background = Box::pin(async move {
        tokio::select! {
            error = settings.login_refused() => error,
            ((), ()) = async { tokio::join!(watching, open_orders) } => std::future::pending().await,
        }
    });
    let placer = OrderPlacer { pool, admission, order_timeout, failures: Arc::default() };
    let router = http::router(placer, guard, probes);
    service::run(consumer, database.tls, router, background, endpoint).await
}

fn guard_counts(guard: &Counts) -> [Metric; 6] {
    [
        ("shop_requests_new_total", "first requests of their key", guard.new),
        (
            "shop_requests_pending_total",
            "requests that found the same one in progress",
            guard.pending,
        ),
        ("shop_requests_replayed_total", "requests answered from Redis", guard.replayed),
        (
            "shop_requests_mismatched_total",
            "requests that reused the key of another",
            guard.mismatched,
        ),
        ("shop_requests_unsure_total", "requests that Redis could not decide", guard.unsure),
        ("shop_requests_stale_total", "requests that outlasted their lease", guard.stale),
    ]
}
