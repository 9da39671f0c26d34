//! Stores the state of idempotency keys in Redis: runs the Lua scripts, behind a circuit breaker.
//!
//! Input: `GuardSettings`, a request, or the `Lease` of the request that executes, with its response.
//! Output: a new lease, the existing value, or whether the lease was still valid; `None` if Redis did not
//! answer in time. Invariant: a call but `begin` takes no longer than the response timeout, connecting included; after
//! a failure Redis is bypassed for a while, so that an outage neither fails nor slows down requests.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, FromRedisValue, IntoConnectionInfo as _, RedisResult, ScriptInvocation, Value,
};

use super::breaker::{Attempt, CircuitBreaker};
use super::cache_entry::{self, Pending};
use super::error::IdempotencyError;
use super::request::{Fingerprint, Request};
use super::scripts::Scripts;

/// For TCP, TLS and authentication of a new connection, in the background.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long sent data may stay unacknowledged before the kernel closes the connection. Its default is
/// some fifteen minutes, during which every probe would go to the same dead connection.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);
/// With less, any pause would miss the renewal at every third of it.
const PENDING_TTL_MIN: Duration = Duration::from_millis(30);
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
#[derive(Debug, Clone)]
pub(super) struct Lease {
    redis_key: RedisKey,
    fingerprint: Fingerprint,
    token: u64,
}

impl Lease {
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    fn pending(&self) -> Pending {
        cache_entry::pending(&self.fingerprint, self.token)
    }
}

/// Contains the client's key, so `Debug` hides it.
#[derive(Clone)]
struct RedisKey(String);

impl std::fmt::Debug for RedisKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RedisKey({} bytes)", self.0.len())
    }
}

/// The result of the `begin` script.
#[derive(Debug)]
pub(super) enum BeginReply {
    New(Lease),
    Existing(bytes::Bytes),
}

/// A Redis server and the state of its circuit breaker.
#[derive(Debug)]
pub(super) struct RedisStore {
    client: Client,
    settings: GuardSettings,
    scripts: Scripts,
    state: Mutex<RedisState>,
}

#[derive(Debug)]
struct RedisState {
    breaker: CircuitBreaker,
    connection: ConnectionManager,
}

impl RedisStore {
    pub(super) fn connect(url: &str, settings: &GuardSettings) -> Result<Self, IdempotencyError> {
        settings.check()?;
        let settings = settings.clone();
        let client = client(url).map_err(IdempotencyError::url)?;
        let connection = connection(&client).map_err(IdempotencyError::url)?;
        let state = RedisState { breaker: CircuitBreaker::new(settings.bypass), connection };
        Ok(Self { client, settings, scripts: Scripts::new(), state: Mutex::new(state) })
    }

    /// However long it takes: what Redis answers too late must be known, or nobody can release it. The
    /// caller sets the limit, and says so by `late`.
    pub(super) async fn begin(&self, request: &Request) -> Option<BeginReply> {
        let fingerprint = *request.fingerprint();
        let redis_key = self.key_of(request);
        let mut call = self.scripts.begin.key(redis_key.0.as_str());
        let prefix = cache_entry::pending_prefix(&fingerprint);
        call.arg(prefix.as_slice()).arg(millis(self.settings.pending_ttl));
        match self.answer(&call).await? {
            Value::Int(token) => {
                let token = u64::try_from(token).ok()?;
                Some(BeginReply::New(Lease { redis_key, fingerprint, token }))
            }
            Value::BulkString(value) => Some(BeginReply::Existing(value.into())),
            // A key of another type.
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
        let value = cache_entry::completed(&lease.fingerprint, response, bytes_max);
        let mut call = self.scripts.complete.key(lease.redis_key.0.as_str());
        call.arg(lease.pending().as_slice()).arg(value).arg(millis(self.settings.completed_ttl));
        self.call(&call).await
    }

    pub(super) async fn renew(&self, lease: &Lease) -> Option<bool> {
        let mut call = self.scripts.renew.key(lease.redis_key.0.as_str());
        call.arg(lease.pending().as_slice()).arg(millis(self.settings.pending_ttl));
        self.call(&call).await
    }

    pub(super) async fn release(&self, lease: &Lease) -> Option<bool> {
        let mut call = self.scripts.release.key(lease.redis_key.0.as_str());
        call.arg(lease.pending().as_slice());
        self.call(&call).await
    }

    pub(super) fn settings(&self) -> &GuardSettings {
        &self.settings
    }

    /// The client's key contains no space, so different pairs of scope and key give different Redis keys.
    fn key_of(&self, request: &Request) -> RedisKey {
        let parts = [&self.settings.prefix, request.scope(), " ", request.key().as_str()];
        RedisKey(parts.concat())
    }

    async fn call<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Option<T> {
        match tokio::time::timeout(self.settings.response_timeout, self.answer(call)).await {
            Ok(answer) => answer,
            Err(elapsed) => {
                self.late(&elapsed);
                None
            }
        }
    }

    /// Redis has not answered in time.
    pub(super) fn late(&self, elapsed: &tokio::time::error::Elapsed) {
        self.failed(elapsed);
    }

    async fn answer<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Option<T> {
        let (ask, mut connection) = {
            let mut state = self.state();
            (state.breaker.ask(Instant::now()), state.connection.clone())
        };
        if ask == Attempt::Bypass {
            return None;
        }
        match call.invoke_async(&mut connection).await {
            Ok(value) => {
                if ask == Attempt::Probe {
                    self.state().breaker.recovered();
                    tracing::info!("Redis is available again; the idempotency guard uses it");
                }
                Some(value)
            }
            Err(error) => {
                if !error.is_io_error() {
                    self.replace_connection();
                }
                self.failed(&error);
                None
            }
        }
    }

    fn failed(&self, why: &(dyn std::error::Error + 'static)) {
        if self.state().breaker.failed(Instant::now()) {
            tracing::warn!(
                error = why,
                "Redis is unavailable; until it is back, Postgres alone guards against duplicates"
            );
        }
    }

    /// `ConnectionManager` reconnects by itself after a network error only: after a failed login it would
    /// repeat the same error for ever.
    fn replace_connection(&self) {
        if let Ok(fresh) = connection(&self.client) {
            self.state().connection = fresh;
        }
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        // A panic leaves nothing in there half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(url: &str) -> RedisResult<Client> {
    // Without nodelay a small request waits until the one before it is acknowledged.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(TCP_USER_TIMEOUT);
    Client::open(url.into_connection_info()?.set_tcp_settings(tcp))
}

/// Returns at once, and connects meanwhile.
fn connection(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        // One attempt for each probe: no retries inside the manager.
        .set_number_of_retries(0)
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // `call` has a timeout of its own around everything.
        .set_response_timeout(None);
    let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
    let mut first = manager.clone();
    tokio::spawn(async move {
        // It only drives the connection: the next call sees the outcome.
        let _: RedisResult<()> = redis::cmd("PING").query_async(&mut first).await;
    });
    Ok(manager)
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

    #[test]
    fn an_invalid_url_is_refused_without_being_repeated() {
        let error =
            client("redis://:s3cret@host:port/").map_err(IdempotencyError::url).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(!error.to_string().contains("s3cret") && !source.contains("s3cret"), "{source}");
    }
}
