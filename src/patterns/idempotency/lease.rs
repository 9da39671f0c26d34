//! The right to execute a request, and futures that continue in the background. Invariant: a
//! cancelled future or a panic leaves a key PENDING only if the process dies, Redis does not
//! answer, or the owner asked for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use super::guard::Shared;
use super::redis_store::OwnedKey;

const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Without a limit, memory would grow while Redis hangs.
const BACKGROUND_MAX: Duration = Duration::from_mins(10);

/// The exclusive right to execute a request, until its time to live expires. Dropping it frees its
/// key in the background.
#[derive(Debug)]
#[must_use = "a lease that is dropped frees its key"]
pub struct Lease {
    pub(super) owned: OwnedKey,
    shared: Arc<Shared>,
    is_settled: AtomicBool,
}

impl Lease {
    pub(super) fn new(owned: OwnedKey, shared: Arc<Shared>) -> Self {
        Self { owned, shared, is_settled: AtomicBool::new(false) }
    }

    /// Keeps the key until its time to live expires.
    pub fn leave_to_expire(&self) {
        // The flag orders no other memory access.
        self.is_settled.store(true, Ordering::Relaxed);
    }

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
            // After this time the key has expired anyway.
            let until = Instant::now() + settings.pending_ttl;
            while redis.release(&owned).await.is_none() && Instant::now() < until {
                tokio::time::sleep(settings.bypass.max(PAUSE_MIN)).await;
            }
        });
    }
}

/// Runs a future in its own task, which continues if this future is dropped. `None` if it takes too
/// long.
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
