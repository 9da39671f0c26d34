//! Metrics of the services' dead letters: the number not redriven, and the age of the oldest.
//!
//! Invariant: while any topic cannot be read, both are absent, because a number that is too small
//! would end an alert. A missing topic has no dead letters.

use std::sync::Mutex;
use std::time::Duration;

use postrider_patterns::dead_letter::{DeadLetterError, DeadLetters, Pending, now_ms};
use tokio::sync::watch;
use tracing::warn;

use super::sweep::pause;
use crate::ShopError;
use crate::probes::Metric;
use crate::{inventory, notifications, orders, payments};

/// A reading covers whole topics, which contain few records.
const INTERVAL: Duration = Duration::from_secs(30);

const CONSUMERS: [&str; 4] = [orders::NAME, payments::NAME, inventory::NAME, notifications::NAME];

#[derive(Debug, Default)]
pub(super) struct DeadLetterGauges {
    known: Mutex<Option<Pending>>,
}

impl DeadLetterGauges {
    /// Reads the topics at intervals of `every`, but of at least 30 s.
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
                // The runtime is shutting down.
                Err(_) => return,
            };
            self.set(pending);
            pause(every.min(INTERVAL), stop).await;
        }
    }

    fn set(&self, pending: Option<Pending>) {
        *self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = pending;
    }

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

/// Blocks.
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
