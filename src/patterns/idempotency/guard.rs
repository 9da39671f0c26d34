//! The idempotency guard: decides with Redis which request executes, which must wait, and which gets the
//! stored response, so that most repeats never reach Postgres.
//!
//! ```text
//!            begin: New                      complete by the owner
//!  absent ---------------> PENDING(token) ----------------------------> COMPLETED(response or pointer)
//!    ^                        |  |                                           |
//!    +------------------------+  +-- renew by the owner                      |
//!    |   release by the owner,                                               |
//!    |   or expiry                                                           |
//!    +---------------------------------------- expiry -----------------------+
//! ```
//!
//! Input: a [`Request`], a [`Lease`], a [`StoredResponse`]. Output: [`BeginOutcome`], [`OwnerUpdate`].
//! Invariant: only the owner changes a key; each call is one round trip, and none while Redis is bypassed;
//! no call returns an error.

use std::convert::Infallible;
use std::time::Duration;

use super::cache_entry::CacheEntry;
use super::counts::{AtomicCounts, Counts, count};
use super::error::IdempotencyError;
use super::redis_store::{BeginReply, GuardSettings, Lease, RedisStore};
use super::request::Request;
use super::response::StoredResponse;

/// What to do with a request. A new variant would be a breaking change on purpose: each needs code.
#[derive(Debug)]
#[must_use = "whether to execute the request"]
pub enum BeginOutcome {
    /// It is the first: execute it, then [`Guard::complete`].
    New(Lease),
    /// The same request is in progress: 409, retry later.
    Pending {
        /// For the Retry-After header.
        retry_after: Duration,
    },
    /// It has completed: send this response again.
    Replay(StoredResponse),
    /// The key belongs to another request: 422.
    Mismatch,
    /// Redis cannot say: [`find_claim`](super::find_claim) in Postgres; if there is none, execute without a
    /// lease. It is as safe, only slower for concurrent duplicates: they wait for each other in
    /// [`claim`](super::claim).
    Unsure,
}

/// The outcome of `complete`, `renew` or `release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerUpdate {
    /// Redis made the change.
    Applied,
    /// The lease had expired, and another owner may have begun. Nothing was changed; what Postgres has
    /// is valid.
    Stale,
    /// Redis did not answer. The key is free when it expires; until then clients may be told to wait.
    Unsure,
}

/// The cache in front of the claims table, with or without Redis. Share it: all its calls take `&self`.
#[derive(Debug)]
pub struct Guard {
    redis: Option<RedisStore>,
    tally: AtomicCounts,
}

impl Guard {
    /// A guard with the Redis at `url`. Returns at once, whether or not Redis is available, and connects
    /// in the background; must be called inside a tokio runtime. Errors:
    /// [`IdempotencyError::Url`], [`IdempotencyError::Settings`].
    pub fn connect(url: &str, settings: &GuardSettings) -> Result<Self, IdempotencyError> {
        Ok(Self {
            redis: Some(RedisStore::connect(url, settings)?),
            tally: AtomicCounts::default(),
        })
    }

    /// A guard that leaves everything to Postgres: always [`BeginOutcome::Unsure`].
    pub fn without_redis() -> Self {
        Self { redis: None, tally: AtomicCounts::default() }
    }

    /// Tries to get the lease.
    ///
    /// If the future is dropped while it waits, the key may stay PENDING without an owner until it
    /// expires.
    pub async fn begin(&self, request: &Request) -> BeginOutcome {
        let begin = self.ask(request).await.unwrap_or(BeginOutcome::Unsure);
        count(match &begin {
            BeginOutcome::New(_) => &self.tally.new,
            BeginOutcome::Pending { .. } => &self.tally.pending,
            BeginOutcome::Replay(_) => &self.tally.replayed,
            BeginOutcome::Mismatch => &self.tally.mismatched,
            BeginOutcome::Unsure => &self.tally.unsure,
        });
        begin
    }

    async fn ask(&self, request: &Request) -> Option<BeginOutcome> {
        let redis = self.redis.as_ref()?;
        let value = match redis.begin(request).await? {
            BeginReply::New(lease) => return Some(BeginOutcome::New(lease)),
            BeginReply::Existing(value) => value,
        };
        Some(match CacheEntry::of(&value, request) {
            CacheEntry::Pending => {
                BeginOutcome::Pending { retry_after: redis.settings().retry_after }
            }
            CacheEntry::Completed(response) => BeginOutcome::Replay(response),
            CacheEntry::Mismatch => BeginOutcome::Mismatch,
            CacheEntry::Pointer | CacheEntry::Corrupt => BeginOutcome::Unsure,
        })
    }

    /// Stores the response that the owner's transaction committed, or found committed by another. Call it
    /// after the COMMIT, never before.
    pub async fn complete(&self, lease: &Lease, response: &StoredResponse) -> OwnerUpdate {
        let Some(redis) = &self.redis else { return OwnerUpdate::Unsure };
        self.owner_update(redis.complete(lease, response).await)
    }

    /// Extends the lease. [`Guard::run_renewing`] does it by itself.
    pub async fn renew(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.redis else { return OwnerUpdate::Unsure };
        self.owner_update(redis.renew(lease).await)
    }

    /// Deletes the key after a failure without effect, so that the client's next attempt need not wait.
    /// Not after a COMMIT whose outcome is unknown.
    pub async fn release(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.redis else { return OwnerUpdate::Unsure };
        self.owner_update(redis.release(lease).await)
    }

    /// Runs the work, and renews the lease at every third of its time to live, so that two renewals may
    /// fail.
    ///
    /// Work whose lease expired is not cancelled: in the midst of a COMMIT its outcome would be unknown,
    /// and [`claim`](super::claim) decides who was first. The work should not block its thread, or
    /// nothing is renewed.
    pub async fn run_renewing<F: Future>(&self, lease: &Lease, work: F) -> F::Output {
        tokio::select! {
            biased;
            output = work => output,
            never = self.renew_until_stale(lease) => match never {},
        }
    }

    /// Numbers since the guard was made.
    pub fn counts(&self) -> Counts {
        self.tally.snapshot()
    }

    async fn renew_until_stale(&self, lease: &Lease) -> Infallible {
        if let Some(redis) = &self.redis {
            let third = redis.settings().pending_ttl / 3;
            loop {
                tokio::time::sleep(third).await;
                if self.renew(lease).await == OwnerUpdate::Stale {
                    break;
                }
            }
        }
        std::future::pending().await
    }

    fn owner_update(&self, was_owner: Option<bool>) -> OwnerUpdate {
        match was_owner {
            Some(true) => OwnerUpdate::Applied,
            Some(false) => {
                count(&self.tally.stale);
                OwnerUpdate::Stale
            }
            None => OwnerUpdate::Unsure,
        }
    }
}
