//! The right to execute a request, which ends by itself however the code that holds it ends.
//!
//! Input: what `begin` wrote to Redis. Output: a [`Lease`], which frees its key in the background when it is
//! dropped, unless its request was completed, released or left to expire; futures that go on in the
//! background when whoever awaits them is dropped. Invariant: no cancelled future and no panic keeps a key
//! PENDING, unless the process dies, Redis does not answer, or a COMMIT with an unknown outcome asked for it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::guard::Shared;
use super::redis_store::OwnedKey;
use super::response::StoredResponse;

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

    /// From now on a drop does not free the key; it is free when its time to live expires. For the time
    /// from before a COMMIT until its outcome is known.
    pub fn leave_to_expire(&self) {
        // It orders nothing else in memory.
        self.is_settled.store(true, Ordering::Relaxed);
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

/// Completes a lease in the background if it is dropped before `done`.
pub(super) struct Completion<'a> {
    lease: &'a Lease,
    response: Option<&'a StoredResponse>,
}

impl<'a> Completion<'a> {
    pub(super) fn of(lease: &'a Lease, response: &'a StoredResponse) -> Self {
        Self { lease, response: Some(response) }
    }

    pub(super) fn done(mut self) {
        self.response = None;
    }
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        let Some(response) = self.response.cloned() else { return };
        let (shared, owned) = (Arc::clone(&self.lease.shared), self.lease.owned.clone());
        self.lease.shared.spawn(async move {
            if let Some(redis) = &shared.redis {
                // Nothing changes if it has happened already.
                redis.complete(&owned, &response).await;
            }
        });
    }
}

/// A future that runs to its end in the background when it is dropped half-way; what it returns is then
/// dropped there.
pub(super) struct Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    future: Option<Pin<Box<F>>>,
    has_begun: bool,
    runtime: Option<Handle>,
}

impl<F> Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(super) fn new(future: F, runtime: Option<Handle>) -> Self {
        Self { future: Some(Box::pin(future)), has_begun: false, runtime }
    }
}

impl<F> Future for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.has_begun = true;
        let Some(future) = &mut self.future else {
            unreachable!("a future that is ready is not polled again");
        };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<F> Drop for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        if let (true, Some(runtime)) = (self.has_begun, &self.runtime) {
            runtime.spawn(async move { drop(timeout(BACKGROUND_MAX, future).await) });
        }
    }
}
