//! The idempotency guard: decides with Redis which request executes, waits, or gets the stored
//! response.
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
//! Invariant: only the owner changes a key. Each call takes at most one round trip and returns no
//! error. A dropped call leaves no key PENDING without an owner.

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

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Upper bound of the waiting time: clients and proxies give up earlier.
const WAIT_MAX: Duration = Duration::from_hours(1);

/// Longer than most transactions, shorter than clients wait.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum of `lock_timeout` in Postgres.
const LOCK_TIMEOUT_MAX: Duration = Duration::from_millis(2_147_483_647);

/// Additional wait of `begin` after the response timeout, so that Redis is bypassed by then.
const LATE_NOTED: Duration = Duration::from_millis(2);

/// How to continue with a request. Exhaustive, because each variant needs code.
#[derive(Debug)]
#[must_use = "whether to execute the request"]
pub enum BeginOutcome {
    /// First request: execute it, then call [`Guard::complete`]. Dropping the lease frees its key.
    New(Lease),
    /// Another attempt is in progress: respond with 409.
    Pending {
        /// Value for the Retry-After header.
        retry_after: Duration,
    },
    /// The request has completed: send this response.
    Replay(StoredResponse),
    /// The key belongs to another request: respond with 422.
    Mismatch,
    /// Redis cannot decide. Call [`find_claim`](super::find_claim), and execute without a lease if
    /// it finds no claim. Concurrent duplicates then wait in [`claim`](super::claim).
    Unsure,
}

/// Outcome of `complete`, `renew` or `release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerUpdate {
    /// Redis made the change.
    Applied,
    /// The lease had expired, so nothing was changed.
    Stale,
    /// Redis did not answer. Expiry, or dropping the lease, frees the key.
    Unsure,
}

/// The cache in front of the claims table, with or without Redis. Clones share their state.
#[derive(Debug, Clone)]
pub struct Guard {
    pub(super) shared: Arc<Shared>,
    pub(super) waiting: Waiting,
    pub(super) lock_timeout: Duration,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) redis: Option<RedisStore>,
    pub(super) tally: AtomicCounts,
    pub(super) in_flight: Arc<AllInFlight>,
    runtime: Option<Handle>,
}

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
    /// Creates a guard with the Redis at `url`, version 7.0 or newer. Connects in the background,
    /// inside a tokio runtime. Errors: [`IdempotencyError::Url`], [`IdempotencyError::Settings`].
    ///
    /// * One server: `redis://user:password@host:6379/0`.
    /// * A Redis Cluster (feature `redis-cluster`):
    ///   `redis+cluster://user:password@one:6379,two:6379`.
    /// * Sentinels (feature `redis-sentinel`) and the name of the master:
    ///   `redis+sentinel://user:password@one:26379,two:26379/NAME/0?sentinel_login=user:password`.
    ///   The first login is for the master.
    /// * TLS (feature `redis-tls`): `rediss` instead of `redis`.
    pub fn connect(url: &str, settings: &GuardSettings) -> Result<Self, IdempotencyError> {
        Ok(Self::new(Some(RedisStore::connect(url, settings)?)))
    }

    /// Creates a guard without Redis: always [`BeginOutcome::Unsure`].
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

    /// Lets at most `requests_max` requests wait in [`Guard::execute`] for the response of the
    /// first one with their key, for at most `time_max` (at most an hour). By default no request
    /// waits. Requests of other processes poll Redis, every 10 to 200 ms.
    #[must_use]
    pub fn with_waiting(mut self, time_max: Duration, requests_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(requests_max.min(Semaphore::MAX_PERMITS)));
        self.waiting = Waiting { time_max: time_max.min(WAIT_MAX), places };
        self
    }

    /// Sets how long [`Attempt::run`](super::Attempt::run) waits for a claim of another session:
    /// 5 s by default, zero for no limit. A shorter `lock_timeout` of the session takes precedence.
    ///
    /// `run` also sets `idle_in_transaction_session_timeout` to 30 s, unless the session has a
    /// limit, so that a frozen process loses its key.
    #[must_use]
    pub fn with_lock_timeout(mut self, time_max: Duration) -> Self {
        self.lock_timeout = time_max.min(LOCK_TIMEOUT_MAX);
        self
    }

    /// Tries to get the lease. A lease that is granted too late is released in the background.
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

    pub(super) async fn begin_uncounted(&self, request: &Request) -> BeginOutcome {
        let Some(redis) = &self.shared.redis else { return BeginOutcome::Unsure };
        let (shared, request) = (Arc::clone(&self.shared), request.clone());
        // This task continues if the future is dropped, and then releases the lease.
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
                // The task may notice this only after the next request has asked.
                redis.late(&late);
                BeginOutcome::Unsure
            }
        }
    }

    /// Stores the committed response. Call it after the COMMIT, never before.
    ///
    /// If the future is dropped, the response is stored in the background.
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

    /// Extends the lease. [`Guard::run_renewing`] calls it automatically.
    pub async fn renew(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.shared.redis else { return OwnerUpdate::Unsure };
        self.owner_update(redis.renew(&lease.owned).await)
    }

    /// Deletes the key after a failure without effect, so that the next attempt does not wait.
    ///
    /// Call it also after a COMMIT with an unknown outcome: the next attempt waits for that
    /// transaction, or finds its row.
    pub async fn release(&self, lease: &Lease) -> OwnerUpdate {
        let Some(redis) = &self.shared.redis else { return OwnerUpdate::Unsure };
        let released = redis.release(&lease.owned).await;
        // Otherwise dropping the lease frees the key.
        if released.is_some() {
            lease.leave_to_expire();
        }
        self.owner_update(released)
    }

    /// Runs the work and renews the lease at every third of its time to live. Work whose lease
    /// expired continues, because [`claim`](super::claim) decides. The work must not block its
    /// thread.
    pub async fn run_renewing<F: Future>(&self, lease: &Lease, work: F) -> F::Output {
        tokio::select! {
            biased;
            output = work => output,
            never = self.renew_until_stale(lease) => match never {},
        }
    }

    /// Counts since the guard was created.
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
