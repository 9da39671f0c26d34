//! How many dead letters of this shop's services nobody has redriven, and how old the oldest is, as metrics.
//!
//! Input: how to reach Kafka; the dead-letter topics of the services. Output: two gauges. Invariant: while any of
//! the topics cannot be read, both are absent: a number that is too small would end an alert. A topic that does
//! not exist has no dead letters, since its service is not deployed, or waits for it and says so.

use std::sync::Mutex;
use std::time::Duration;

use postrider_patterns::dead_letter::{DeadLetterError, DeadLetters, Pending, now_ms};
use tokio::sync::watch;
use tracing::warn;

use super::sweep::pause;
use crate::ShopError;
use crate::probes::Metric;
use crate::{inventory, notifications, orders, payments};

/// A reading is a pass over whole topics, which hold few records; an alert waits for it.
const INTERVAL: Duration = Duration::from_secs(30);

const CONSUMERS: [&str; 4] = [orders::NAME, payments::NAME, inventory::NAME, notifications::NAME];

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct DeadLetterGauges {
    known: Mutex<Option<Pending>>,
}

impl DeadLetterGauges {
    /// Reads the topics at intervals of `every`, or of 30 s where that is longer, until it is told to stop.
    pub(super) async fn watch(
        &self,
        kafka: &[(String, String)],
        every: Duration,
        stop: &watch::Receiver<bool>,
    ) {
        while !*stop.borrow() {
            let kafka = kafka.to_vec();
            let read = tokio::task::spawn_blocking(move || read(&kafka)).await;
            let pending = match read {
                Ok(Ok(pending)) => Some(pending),
                Ok(Err(error)) => {
                    let error = ShopError::from(error);
                    let (error, help) = (error.with_causes(), error.hint());
                    warn!(error, help, "cannot count the dead letters; trying again");
                    None
                }
                // The runtime ends.
                Err(_) => return,
            };
            self.set(pending);
            pause(every.min(INTERVAL), stop).await;
        }
    }

    fn set(&self, pending: Option<Pending>) {
        *self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = pending;
    }

    /// The gauges; none while nothing is known.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let known = *self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(Pending { count, oldest_ms, .. }) = known else { return Vec::new() };
        let age_ms = oldest_ms.map_or(0, |oldest| now_ms().saturating_sub(oldest).max(0));
        let seconds = age_ms.unsigned_abs() / 1_000;
        vec![
            ("shop_dead_letter_depth", "dead letters that nobody has redriven", count),
            (
                "shop_dead_letter_oldest_seconds",
                "time since the oldest of them failed for the first time; 0 without any",
                seconds,
            ),
        ]
    }
}

/// All services together. Blocks.
fn read(kafka: &[(String, String)]) -> Result<Pending, DeadLetterError> {
    let mut all = Pending::default();
    for consumer in CONSUMERS {
        let pending = match DeadLetters::new(consumer, kafka).pending() {
            Err(DeadLetterError::NoDeadLetters { .. }) => continue,
            read => read?,
        };
        all.count += pending.count;
        all.oldest_ms = all.oldest_ms.into_iter().chain(pending.oldest_ms).min();
    }
    Ok(all)
}
