//! Background tasks of the order service: `watch` times out orders, `count` counts open ones.
//!
//! Invariant: an order is timed out under its saga's lock, so it cannot be confirmed concurrently.
//! An order that fails does not block others.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::watch;
use tracing::warn;

use super::process::OrderProcess;
use crate::ShopError;
use crate::probes::Metric;
use postrider_patterns::saga::{self, OpenSagas};
use postrider_service::log_throttle::LogThrottle;

const TICK: Duration = Duration::from_millis(500);
const COUNTING: Duration = Duration::from_secs(5);

/// `None` while the database is unavailable.
pub(super) type OpenOrders = Option<OpenSagas>;

pub(super) async fn count(pool: Pool, known: watch::Sender<OpenOrders>) {
    loop {
        // `watch` logs the reason.
        known.send_replace(count_open(&pool).await.ok());
        tokio::time::sleep(COUNTING).await;
    }
}

async fn count_open(pool: &Pool) -> Result<OpenSagas, ShopError> {
    let client = pool.get().await?;
    Ok(saga::count_open::<OrderProcess>(&**client).await?)
}

/// Every process of the service reports equal values, from the one database.
pub(super) fn counts(known: OpenOrders) -> impl Iterator<Item = Metric> {
    known.into_iter().flat_map(|OpenSagas { open, overdue, .. }| {
        [
            ("shop_sagas_open", "orders that have not ended", open),
            ("shop_sagas_overdue", "of these, those whose deadline has passed", overdue),
        ]
    })
}

pub(super) async fn watch(pool: Pool, order_timeout: Duration) {
    let mut throttle = LogThrottle::default();
    let round = || async {
        let mut client = pool.get().await?;
        Ok(saga::fire_due::<OrderProcess>(&mut client, order_timeout).await?)
    };
    let log = |error: &ShopError| {
        let (text, help) = (error.with_causes(), error.hint());
        if throttle.is_due(&text) {
            warn!(error = text, help, "cannot watch deadlines; retrying");
        }
    };
    saga::run_deadlines(TICK, round, log).await;
}
