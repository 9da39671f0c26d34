//! Stores the state of idempotency keys in Redis: one command or script for each transition, behind a circuit
//! breaker.
//!
//! Input: `GuardSettings`, a request, or the `Lease` of the request that executes, with its response.
//! Output: a new lease, the existing value, or whether the lease was still valid; `None` if Redis did not
//! answer in time. Invariant: a call but `begin` takes no longer than the response timeout, connecting included;
//! after a failure Redis is bypassed for a while, so that an outage neither fails nor slows down requests.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};

use super::breaker::{Attempt, CircuitBreaker};
use super::cache_entry::{self, Pending};
use super::connecting::Connecting;
use super::error::IdempotencyError;
use super::request::Request;
use super::scripts::Script;
use crate::redis_client::{Connection, Server};

/// With less, any pause would miss the renewal at every third of it.
const PENDING_TTL_MIN: Duration = Duration::from_millis(30);
/// `ERR syntax error`, or another text after ERR.
const UNKNOWN_OPTION: ErrorKind = ErrorKind::Server(ServerErrorKind::ResponseError);
/// Longer is a mistake in the unit.
const TTL_MAX: Duration = Duration::from_hours(24 * 366);

/// Settings of the guard's Redis cache: the default, changed by the method of each name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardSettings {
    /// Before every key; 0 to 64 bytes.
    pub prefix: String,
    /// How long a lease lasts without renewal; 30 ms to 366 days. Longer than usual pauses of a process,
    /// shorter than clients wait.
    pub pending_ttl: Duration,
    /// How long a response is cached; 1 ms to 366 days.
    pub completed_ttl: Duration,
    /// Largest response to cache, in bytes, headers included; a larger one becomes a pointer to Postgres.
    pub stored_bytes_max: usize,
    /// How long a request waits for Redis, at most; at least 1 ms.
    pub response_timeout: Duration,
    /// How long Redis is bypassed after a failure.
    pub bypass: Duration,
    /// The Retry-After of requests that have to wait for the owner.
    pub retry_after: Duration,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            prefix: "idem:".to_owned(),
            pending_ttl: Duration::from_secs(30),
            completed_ttl: Duration::from_hours(24),
            stored_bytes_max: 16 * 1024,
            response_timeout: Duration::from_millis(100),
            bypass: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
        }
    }
}

impl GuardSettings {
    fn check(&self) -> Result<(), IdempotencyError> {
        let millisecond = Duration::from_millis(1);
        let checks = [
            (self.prefix.len() > 64, "prefix must be at most 64 bytes"),
            (self.pending_ttl < PENDING_TTL_MIN, "pending_ttl must be at least 30 ms"),
            (self.completed_ttl < millisecond, "completed_ttl must be at least 1 ms"),
            (
                self.pending_ttl.max(self.completed_ttl) > TTL_MAX,
                "a time to live must be at most 366 days",
            ),
            (self.response_timeout < millisecond, "response_timeout must be at least 1 ms"),
        ];
        match checks.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(IdempotencyError::Settings(why)),
            None => Ok(()),
        }
    }
}

/// What only the owner of a key knows; [`super::Lease`] says when it ends.
#[derive(Clone)]
pub(super) struct Lease {
    redis_key: String,
    pending: Pending,
}

/// Without the client's key and the fingerprint of its request.
impl std::fmt::Debug for Lease {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lease").finish_non_exhaustive()
    }
}

/// What becomes of a call that Redis has not answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenLate {
    GiveUp,
    GoOn,
}

/// The outcome of `begin`.
#[derive(Debug)]
pub(super) enum BeginReply {
    New(Lease),
    Existing(bytes::Bytes),
}

/// Redis, and the state of its circuit breaker.
pub(super) struct RedisStore {
    server: Server,
    settings: GuardSettings,
    set: Script,
    delete: Script,
    /// Whether the server has SET with IFEQ, as far as is known.
    has_ifeq: AtomicBool,
    state: Mutex<RedisState>,
}

struct RedisState {
    breaker: CircuitBreaker,
    /// `None` after a failure, until the next call.
    connection: Option<Connecting>,
}

/// Without the server's address and password.
impl std::fmt::Debug for RedisStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl RedisStore {
    pub(super) fn connect(url: &str, settings: &GuardSettings) -> Result<Self, IdempotencyError> {
        settings.check()?;
        let settings = settings.clone();
        let server = Server::parse(url).map_err(IdempotencyError::url)?;
        let state = RedisState {
            breaker: CircuitBreaker::new(settings.bypass),
            connection: Some(Connecting::start(&server)),
        };
        Ok(Self {
            server,
            settings,
            set: Script::set(),
            delete: Script::delete(),
            has_ifeq: AtomicBool::new(true),
            state: Mutex::new(state),
        })
    }

    /// However long it takes: what Redis answers too late must be known, or nobody can release it. The
    /// caller sets the limit; that the answer is late is noted here.
    pub(super) async fn begin(&self, request: &Request) -> Option<BeginReply> {
        let redis_key = self.key_of(request);
        let pending = cache_entry::pending(request.fingerprint(), token());
        let mut command = redis::cmd("SET");
        command.arg(redis_key.as_str()).arg(pending.as_slice()).arg("NX").arg("GET");
        command.arg("PX").arg(millis(self.settings.pending_ttl));
        let call = async |mut connection: Connection| {
            unless_of_another_type(command.query_async(&mut connection).await, Value::Okay)
        };
        match self.exchange(call, WhenLate::GoOn).await? {
            Value::Nil => Some(BeginReply::New(Lease { redis_key, pending })),
            Value::BulkString(value) => Some(BeginReply::Existing(value.into())),
            _ => None,
        }
    }

    /// Whether the lease was still valid.
    pub(super) async fn complete(
        &self,
        lease: &Lease,
        response: &super::response::StoredResponse,
    ) -> Option<bool> {
        let bytes_max = self.settings.stored_bytes_max;
        let value = cache_entry::completed(&lease.pending, response, bytes_max);
        self.replace(lease, &value, self.settings.completed_ttl).await
    }

    pub(super) async fn renew(&self, lease: &Lease) -> Option<bool> {
        self.replace(lease, &lease.pending, self.settings.pending_ttl).await
    }

    pub(super) async fn release(&self, lease: &Lease) -> Option<bool> {
        let (key, pending) = (lease.redis_key.as_str(), lease.pending.as_slice());
        self.call(async |mut it| self.delete.run(&mut it, key, &[pending]).await).await
    }

    /// Replaces the lease's PENDING, if it is there, by one command where the server has it: Redis from 8.4
    /// on, Valkey from 8.1 on. Others have a script for it, which costs them as much as the rest of a
    /// request.
    async fn replace(&self, lease: &Lease, value: &[u8], ttl: Duration) -> Option<bool> {
        let (key, pending) = (lease.redis_key.as_str(), lease.pending.as_slice());
        let ttl = millis(ttl).to_string();
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value).arg("IFEQ").arg(pending).arg("PX").arg(&ttl);
        let call = async |mut connection: Connection| {
            if self.has_ifeq.load(Ordering::Relaxed) {
                match command.query_async(&mut connection).await {
                    Err(error) if error.kind() == UNKNOWN_OPTION => {
                        self.has_ifeq.store(false, Ordering::Relaxed);
                    }
                    outcome => return unless_of_another_type(outcome, false),
                }
            }
            self.set.run(&mut connection, key, &[pending, value, ttl.as_bytes()]).await
        };
        self.call(call).await
    }

    pub(super) fn settings(&self) -> &GuardSettings {
        &self.settings
    }

    /// The client's key contains no space, so different pairs of scope and key give different Redis keys.
    fn key_of(&self, request: &Request) -> String {
        [&self.settings.prefix, request.scope(), " ", request.key().as_str()].concat()
    }

    async fn call<T>(&self, call: impl AsyncFnOnce(Connection) -> RedisResult<T>) -> Option<T> {
        self.exchange(call, WhenLate::GiveUp).await
    }

    async fn exchange<T>(
        &self,
        call: impl AsyncFnOnce(Connection) -> RedisResult<T>,
        when_late: WhenLate,
    ) -> Option<T> {
        let (attempt, mut connecting) = self.attempt()?;
        let shared = connecting.clone();
        let mut reply = pin!(async { call(connecting.ready().await?).await });
        let reply = match tokio::time::timeout(self.settings.response_timeout, &mut reply).await {
            Ok(reply) => reply,
            Err(elapsed) => {
                // Once may be a pause of the server; twice, it may be a host that is gone, or one that
                // is no master any more. Another connection finds out.
                let is_dead = attempt == Attempt::Probe && !shared.is_pending();
                self.failed(&elapsed, is_dead.then_some(&shared));
                if when_late == WhenLate::GiveUp {
                    return None;
                }
                reply.await
            }
        };
        match reply {
            Ok(value) => {
                if attempt == Attempt::Probe {
                    self.state().breaker.recovered();
                    tracing::info!("Redis is available again; the idempotency guard uses it");
                }
                Some(value)
            }
            Err(error) => {
                self.failed(&error, Some(&shared));
                None
            }
        }
    }

    /// `None` while Redis is bypassed.
    fn attempt(&self) -> Option<(Attempt, Connecting)> {
        let mut state = self.state();
        let attempt = state.breaker.ask(Instant::now());
        if attempt == Attempt::Bypass {
            return None;
        }
        let connection = state.connection.get_or_insert_with(|| Connecting::start(&self.server));
        Some((attempt, connection.clone()))
    }

    /// `useless` is given up, if another call has not done so.
    fn failed(&self, why: &(dyn std::error::Error + 'static), useless: Option<&Connecting>) {
        let mut state = self.state();
        if useless.is_some_and(|it| state.connection.as_ref().is_some_and(|now| now.is_same_as(it)))
        {
            state.connection = None;
        }
        if state.breaker.failed(Instant::now()) {
            tracing::warn!(
                error = why,
                "Redis is unavailable; until it is back, Postgres alone guards against duplicates"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        // A panic leaves nothing in there half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key of another type than ours is no failure of Redis.
fn unless_of_another_type<T>(outcome: RedisResult<T>, other: T) -> RedisResult<T> {
    match outcome {
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(other),
        outcome => outcome,
    }
}

/// Different for each owner: 62 random bits of the system's generator. Random, and not a counter, so that no
/// copy of a process or of its machine gives the same one again.
fn token() -> u64 {
    uuid::Uuid::now_v7().as_u64_pair().1
}

fn millis(time: Duration) -> u64 {
    // Checked to be below 366 days.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused() {
        let good = GuardSettings::default();
        assert!(good.check().is_ok());
        for bad in [
            GuardSettings { prefix: "x".repeat(65), ..good.clone() },
            GuardSettings { pending_ttl: Duration::from_millis(29), ..good.clone() },
            GuardSettings { completed_ttl: Duration::ZERO, ..good.clone() },
            GuardSettings { completed_ttl: Duration::MAX, ..good.clone() },
            GuardSettings { response_timeout: Duration::ZERO, ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(IdempotencyError::Settings(_))), "{bad:?}");
        }
    }
}
