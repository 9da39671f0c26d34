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
//! no call returns an error; a call that is dropped half-way leaves no key PENDING without an owner.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::cache_entry::CacheEntry;
use super::counts::{AtomicCounts, Counts, count};
use super::error::IdempotencyError;
use super::in_flight::AllInFlight;
use super::lease::{Lease, in_background};
use super::redis_store::{BeginReply, RedisStore};
use super::request::Request;
use super::response::StoredResponse;
use super::settings::GuardSettings;

/// The Retry-After of a guard without Redis, as the default of one with it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longer than any client or proxy waits for a response.
const WAIT_MAX: Duration = Duration::from_hours(1);

/// How long a request waits for a claim that another session holds: longer than most transactions take, and
/// less than clients wait.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// What `lock_timeout` can hold.
const LOCK_TIMEOUT_MAX: Duration = Duration::from_millis(2_147_483_647);

/// `begin` waits this much longer than the response timeout, so that Redis is bypassed by then.
const LATE_NOTED: Duration = Duration::from_millis(2);

/// What to do with a request. A new variant would be a breaking change on purpose: each needs code.
#[derive(Debug)]
#[must_use = "whether to execute the request"]
pub enum BeginOutcome {
    /// It is the first: execute it, then [`Guard::complete`]. Dropped, the lease frees its key.
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
    /// Redis did not answer. The key is free when it expires, or the lease is dropped; until then clients may be
    /// told to wait.
    Unsure,
}

/// The cache in front of the claims table, with or without Redis. A clone is the same guard.
#[derive(Debug, Clone)]
pub struct Guard {
    pub(super) shared: Arc<Shared>,
    pub(super) waiting: Waiting,
    pub(super) lock_timeout: Duration,
}

/// What all clones of a guard and its leases have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) redis: Option<RedisStore>,
    pub(super) tally: AtomicCounts,
    pub(super) in_flight: Arc<AllInFlight>,
    /// For what is left to do when a future or a lease is dropped.
    runtime: Option<Handle>,
}

/// How requests wait for the first with their key.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) time_max: Duration,
    pub(super) places: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn retry_after(&self) -> Duration {
        self.redis.as_ref().map_or(RETRY_AFTER, |redis| redis.settings().retry_after)
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(future);
        }
    }
}

impl Guard {
    /// A guard with the Redis at `url`, version 7.0 or newer. Returns at once, whether or not Redis is
    /// available, and connects in the background; must be called inside a tokio runtime. Errors:
    /// [`IdempotencyError::Url`], [`IdempotencyError::Settings`].
    ///
    /// One server: `redis://user:password@host:6379/0`. A Redis Cluster (feature `redis-cluster`):
    /// `redis+cluster://user:password@one:6379,two:6379`, any of its nodes. Sentinels (feature
    /// `redis-sentinel`) and the name by which they know the master:
    /// `redis+sentinel://user:password@one:26379,two:26379/NAME/0?sentinel_login=user:password`; the first
    /// login is the master's, and without the last the Sentinels are asked without one. With `rediss` in
    /// place of `redis`, TLS (feature `redis-tls`).
    pub fn connect(url: &str, settings: &GuardSettings) -> Result<Self, IdempotencyError> {
        Ok(Self::new(Some(RedisStore::connect(url, settings)?)))
    }

    /// A guard that leaves everything to Postgres: always [`BeginOutcome::Unsure`].
    pub fn without_redis() -> Self {
        Self::new(None)
    }

    fn new(redis: Option<RedisStore>) -> Self {
        let shared = Shared {
            redis,
            tally: AtomicCounts::default(),
            in_flight: Arc::default(),
            runtime: Handle::try_current().ok(),
        };
        let waiting = Waiting { time_max: Duration::ZERO, places: Arc::new(Semaphore::new(0)) };
        Self { shared: Arc::new(shared), waiting, lock_timeout: LOCK_TIMEOUT }
    }

    /// The same guard, whose [`Guard::execute`] lets a request wait for the response of the first with
    /// its key, for `time_max` at most (an hour is the limit), before it is told to retry; so may
    /// `requests_max` at a time. By default none waits for an effect, only for a moment until Postgres has said
    /// whether there is one.
    ///
    /// Those that wait for a request of this process are woken by it; the others ask Redis, every 10 ms
    /// at first and every 200 ms later.
    #[must_use]
    pub fn with_waiting(mut self, time_max: Duration, requests_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(requests_max.min(Semaphore::MAX_PERMITS)));
        self.waiting = Waiting { time_max: time_max.min(WAIT_MAX), places };
        self
    }

    /// The same guard, whose [`Attempt::run`](super::Attempt::run) waits for a claim of another session for
    /// `time_max` at most, before the client is told to retry; 5 s by default, and zero sets no limit. Where
    /// the session's own `lock_timeout` is shorter, it counts. The effect has that of the session.
    ///
    /// `run` also sets `idle_in_transaction_session_timeout` to 30 s for its transaction, unless the session has a
    /// limit of its own: a process that is frozen keeps its key no longer.
    ///
    /// While a request waits it has a session with Postgres, and other requests have not.
    #[must_use]
    pub fn with_lock_timeout(mut self, time_max: Duration) -> Self {
        self.lock_timeout = time_max.min(LOCK_TIMEOUT_MAX);
        self
    }

    /// Tries to get the lease.
    ///
    /// If the future is dropped while it waits, or Redis answers too late, a lease that it gets all the
    /// same is released in the background.
    pub async fn begin(&self, request: &Request) -> BeginOutcome {
        let begin = self.begin_uncounted(request).await;
        count(match &begin {
            BeginOutcome::New(_) => &self.shared.tally.new,
            BeginOutcome::Pending { .. } => &self.shared.tally.pending,
            BeginOutcome::Replay(_) => &self.shared.tally.replayed,
            BeginOutcome::Mismatch => &self.shared.tally.mismatched,
            BeginOutcome::Unsure => &self.shared.tally.unsure,
        });
        begin
    }

    /// For a request that begins again and again while it waits.
    pub(super) async fn begin_uncounted(&self, request: &Request) -> BeginOutcome {
        let Some(redis) = &self.shared.redis else { return BeginOutcome::Unsure };
        let (shared, request) = (Arc::clone(&self.shared), request.clone());
        // A task of its own, which goes on when nobody awaits it any more: a lease is then released.
        let begin = in_background(async move {
            Some(match shared.redis.as_ref()?.begin(&request).await? {
                BeginReply::New(owned) => BeginOutcome::New(Lease::new(owned, Arc::clone(&shared))),
                BeginReply::Lost(owned) => {
                    drop(Lease::new(owned, Arc::clone(&shared)));
                    BeginOutcome::Unsure
                }
                BeginReply::Existing(value) => match CacheEntry::of(&value, &request) {
                    CacheEntry::Pending => {
                        BeginOutcome::Pending { retry_after: shared.retry_after() }
                    }
                    CacheEntry::Completed(response) => BeginOutcome::Replay(response),
                    CacheEntry::Mismatch => BeginOutcome::Mismatch,
                    CacheEntry::Pointer | CacheEntry::Corrupt => return None,
                },
            })
        });
        let limit = redis.settings().response_timeout + LATE_NOTED;
        match timeout(limit, begin).await {
            Ok(outcome) => outcome.unwrap_or(BeginOutcome::Unsure),
            Err(late) => {
                // The task may notice after the next request has asked.
                redis.late(&late);
                BeginOutcome::Unsure
            }
        }
    }

    /// Stores the response that the owner's transaction committed, or found committed by another. Call it
    /// after the COMMIT, never before.
    ///
    /// If the future is dropped while it waits, the response is stored in the background. Where Redis does not
    /// answer, the lease frees its key when it is dropped: Postgres has the response.
    pub async fn complete(&self, lease: &Lease, response: &StoredResponse) -> OwnerUpdate {
        lease.leave_to_expire();
        let (shared, owned) = (Arc::clone(&self.shared), lease.owned.clone());
        let response = response.clone();
        let completed =
            in_background(async move { shared.redis.as_ref()?.complete(&owned, &response).await });
        let update = self.owner_update(completed.await);
        if update == OwnerUpdate::Unsure {
            lease.free_when_dropped();
        }
        update
    }

    /// Extends the lease. [`Guard::run_renewing`] does it by itself.
    pub async fn renew(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.shared.redis else { return OwnerUpdate::Unsure };
        self.owner_update(redis.renew(&lease.owned).await)
    }

    /// Deletes the key after a failure without effect, so that the client's next attempt need not wait.
    /// A lease that is dropped does it too, but later than its handler's response. After a COMMIT whose outcome is
    /// unknown as well: the next attempt waits for that transaction in Postgres, or finds its row.
    pub async fn release(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.shared.redis else { return OwnerUpdate::Unsure };
        let released = redis.release(&lease.owned).await;
        // Where Redis has not answered, or this future is dropped before, the lease sees to it.
        if released.is_some() {
            lease.leave_to_expire();
        }
        self.owner_update(released)
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
        self.shared.tally.snapshot()
    }

    async fn renew_until_stale(&self, lease: &Lease) -> Infallible {
        if let Some(redis) = &self.shared.redis {
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
                count(&self.shared.tally.stale);
                OwnerUpdate::Stale
            }
            None => OwnerUpdate::Unsure,
        }
    }
}
