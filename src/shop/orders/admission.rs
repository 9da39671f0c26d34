//! Admission control: limits the requests in progress and in the queue, so that overload is refused
//! early. Fewer requests are in progress than the pool has sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::settings::SESSIONS;

/// For the readiness probe, deadlines and the count of open orders.
const SESSIONS_RESERVED: usize = 3;
/// Requests that wait for a slot, each with a body of at most 16 KiB. Requests that are still being
/// received do not count: `http` limits their time.
const QUEUE_MAX: usize = 256;
/// About ten times the duration of a burst that fills the queue. Twice the `lock_timeout` of
/// requests that wait for their key.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct AdmissionControl {
    queue: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    wait_max: Duration,
    shed: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Admitted {
    _slot: OwnedSemaphorePermit,
    _queue: OwnedSemaphorePermit,
}

impl Default for AdmissionControl {
    fn default() -> Self {
        Self::new(SESSIONS - SESSIONS_RESERVED, QUEUE_MAX, QUEUE_TIMEOUT)
    }
}

impl AdmissionControl {
    fn new(slots: usize, waiting_max: usize, wait_max: Duration) -> Self {
        Self {
            queue: Arc::new(Semaphore::new(slots + waiting_max)),
            slots: Arc::new(Semaphore::new(slots)),
            wait_max,
            shed: AtomicU64::new(0),
        }
    }

    /// `None` if the queue is full or the wait was too long.
    pub(super) async fn enter(&self) -> Option<Admitted> {
        let admitted = self.try_enter().await;
        if admitted.is_none() {
            self.shed.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    pub(super) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    async fn try_enter(&self) -> Option<Admitted> {
        let queue = Arc::clone(&self.queue).try_acquire_owned().ok()?;
        let slot = tokio::time::timeout(self.wait_max, Arc::clone(&self.slots).acquire_owned());
        // The semaphore is never closed.
        let slot = slot.await.ok()?.ok()?;
        Some(Admitted { _slot: slot, _queue: queue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_a_queued_request_gets_the_next_slot() {
        let admission = Arc::new(AdmissionControl::new(1, 1, LONG));
        let first = admission.enter().await.unwrap();
        let waiting = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.enter().await }
        });
        while admission.queue.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(admission.enter().await.is_none(), "an hour has not passed");
        assert_eq!(admission.shed(), 1);
        drop(first);
        let second = waiting.await.unwrap();
        assert!(second.is_some());
        drop(second);
        assert_eq!(
            (admission.queue.available_permits(), admission.slots.available_permits()),
            (2, 1)
        );
    }

    #[tokio::test]
    async fn a_request_that_waits_too_long_is_refused_and_leaves_the_queue() {
        let admission = AdmissionControl::new(1, 1, Duration::from_millis(1));
        let first = admission.enter().await.unwrap();
        assert!(admission.enter().await.is_none());
        assert!(admission.enter().await.is_none());
        assert_eq!(admission.shed(), 2);
        drop(first);
        assert!(admission.enter().await.is_some());
    }

    #[test]
    fn there_is_a_session_for_each_request_and_some_are_left() {
        let admission = AdmissionControl::default();
        assert!((1..SESSIONS).contains(&admission.slots.available_permits()));
    }
}
