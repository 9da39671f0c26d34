//! The right to execute a request, which ends by itself however the code that holds it ends.
//!
//! Input: what `begin` wrote to Redis. Output: a [`Lease`], which frees its key in the background when it is
//! dropped, unless its request was completed, released or left to expire; futures that go on in the
//! background when whoever awaits them is dropped. Invariant: no cancelled future and no panic keeps a key
//! PENDING, unless the process dies, Redis does not answer, or its owner asked for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use super::guard::Shared;
use super::redis_store::OwnedKey;

/// Between two attempts to release a key, where Redis is not bypassed for longer after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// For what is awaited in the background. A Redis that hangs for longer may keep keys PENDING until they
/// expire; without an end, memory would grow while it hangs.
const BACKGROUND_MAX: Duration = Duration::from_mins(10);

/// The exclusive right to execute a request, until its time to live expires. Dropped, it frees its key in
/// the background: a handler that returns early, panics or is cancelled locks nobody out.
#[derive(Debug)]
#[must_use = "a lease that is dropped frees its key"]
pub struct Lease {
    pub(super) owned: OwnedKey,
    shared: Arc<Shared>,
    /// Nothing is left to do when it is dropped.
    is_settled: AtomicBool,
}

impl Lease {
    pub(super) fn new(owned: OwnedKey, shared: Arc<Shared>) -> Self {
        Self { owned, shared, is_settled: AtomicBool::new(false) }
    }

    /// From now on a drop does not free the key; it is free when its time to live expires.
    pub fn leave_to_expire(&self) {
        // It orders nothing else in memory.
        self.is_settled.store(true, Ordering::Relaxed);
    }

    /// As before `leave_to_expire`.
    pub(super) fn free_when_dropped(&self) {
        self.is_settled.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_settled() {
            return;
        }
        let (shared, owned) = (Arc::clone(&self.shared), self.owned.clone());
        self.shared.spawn(async move {
            let Some(redis) = &shared.redis else { return };
            let settings = redis.settings();
            // Later it has expired by itself.
            let until = Instant::now() + settings.pending_ttl;
            while redis.release(&owned).await.is_none() && Instant::now() < until {
                tokio::time::sleep(settings.bypass.max(PAUSE_MIN)).await;
            }
        });
    }
}

/// Runs a future in a task of its own, which goes on when this one is dropped; what it returns is then dropped
/// there. `None` also where it takes too long, or the runtime ends before it does.
pub(super) async fn in_background<T: Send + 'static>(
    future: impl Future<Output = Option<T>> + Send + 'static,
) -> Option<T> {
    let limited = async move { timeout(BACKGROUND_MAX, future).await.ok().flatten() };
    match tokio::spawn(limited.in_current_span()).await {
        Ok(output) => output,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}
