//! Talks to Redis, for as long as it answers.
//!
//! Enters: a script's arguments. Leaves: its answer, or `None` where Redis did not give one in time.
//! What always holds: a call takes no longer than the response timeout, connecting included; a Redis
//! that failed is passed over for a moment, so that it costs no time; nothing here fails a request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, FromRedisValue, IntoConnectionInfo as _, RedisResult, ScriptInvocation, Value,
};

use super::breaker::{Ask, Breaker};
use super::error::IdempotencyError;
use super::held::{self, Pending};
use super::request::{Fingerprint, Request};
use super::scripts::Scripts;

/// For TCP, TLS and the login of a new connection, which nobody waits for.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long the kernel sends into a void before it gives the connection up. Its own patience is some
/// fifteen minutes, for which every trial would be sent into the same void.
const VOID_LIMIT: Duration = Duration::from_secs(3);
/// Shorter, and a renewal every third of it would be lost to any pause.
const PENDING_TTL_MIN: Duration = Duration::from_millis(30);
/// Longer is a mistake in the unit.
const TTL_MAX: Duration = Duration::from_hours(24 * 366);

/// How the Redis side behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Before every key; 0 to 64 bytes.
    pub prefix: String,
    /// After how much silence an owner counts as dead; 30 ms to 366 days. Longer than any pause that
    /// is usual, shorter than clients are patient.
    pub pending_ttl: Duration,
    /// How long an answer is kept in front of Postgres; 1 ms to 366 days.
    pub completed_ttl: Duration,
    /// Bytes of an answer, headers included, up to which Redis holds it; beyond, a pointer to Postgres.
    pub stored_bytes_max: usize,
    /// How long a request waits for Redis, at most; at least 1 ms.
    pub response_timeout: Duration,
    /// For how long Redis is passed over after it failed.
    pub pass_over: Duration,
    /// What to tell who has to wait for the owner.
    pub retry_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "idem:".to_owned(),
            pending_ttl: Duration::from_secs(30),
            completed_ttl: Duration::from_hours(24),
            stored_bytes_max: 16 * 1024,
            response_timeout: Duration::from_millis(100),
            pass_over: Duration::from_secs(1),
            retry_after: Duration::from_secs(1),
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), IdempotencyError> {
        let millisecond = Duration::from_millis(1);
        let checks = [
            (self.prefix.len() > 64, "the prefix has at most 64 bytes"),
            (self.pending_ttl < PENDING_TTL_MIN, "an owner has at least 30 ms"),
            (self.completed_ttl < millisecond, "an answer is kept for at least 1 ms"),
            (self.pending_ttl.max(self.completed_ttl) > TTL_MAX, "nothing is kept over 366 days"),
            (self.response_timeout < millisecond, "Redis has at least 1 ms to answer"),
        ];
        match checks.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(IdempotencyError::Settings(why)),
            None => Ok(()),
        }
    }
}

/// The right to work on a request, until its time to live is over.
#[derive(Debug, Clone)]
pub struct Permit {
    redis_key: RedisKey,
    fingerprint: Fingerprint,
    token: u64,
}

impl Permit {
    /// The fencing token: microseconds of Redis's clock, larger for a later owner of the key while that
    /// clock is not set back. For a second system that should refuse an owner that was overtaken.
    pub fn token(&self) -> u64 {
        self.token
    }

    fn pending(&self) -> Pending {
        held::pending(&self.fingerprint, self.token)
    }
}

/// Holds the client's key, so it does not show itself.
#[derive(Clone)]
struct RedisKey(String);

impl std::fmt::Debug for RedisKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RedisKey({} bytes)", self.0.len())
    }
}

/// What Redis said of a request.
#[derive(Debug)]
pub(super) enum Said {
    New(Permit),
    Held(bytes::Bytes),
}

/// A Redis and what is known of its health.
#[derive(Debug)]
pub(super) struct RedisSide {
    client: Client,
    settings: Settings,
    scripts: Scripts,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    breaker: Breaker,
    connection: ConnectionManager,
}

impl RedisSide {
    pub(super) fn connect(url: &str, settings: &Settings) -> Result<Self, IdempotencyError> {
        settings.check()?;
        let settings = settings.clone();
        let client = client(url).map_err(IdempotencyError::Url)?;
        let connection = connection(&client).map_err(IdempotencyError::Url)?;
        let line = Line { breaker: Breaker::new(settings.pass_over), connection };
        Ok(Self { client, settings, scripts: Scripts::new(), line: Mutex::new(line) })
    }

    pub(super) async fn begin(&self, request: &Request) -> Option<Said> {
        let fingerprint = *request.fingerprint();
        let redis_key = self.key_of(request);
        let mut call = self.scripts.begin.key(redis_key.0.as_str());
        let head = held::pending_head(&fingerprint);
        call.arg(head.as_slice()).arg(millis(self.settings.pending_ttl));
        match self.call(&call).await? {
            Value::Int(token) => {
                let token = u64::try_from(token).ok()?;
                Some(Said::New(Permit { redis_key, fingerprint, token }))
            }
            Value::BulkString(value) => Some(Said::Held(value.into())),
            // A key of another type.
            _ => None,
        }
    }

    /// Whether the permit's owner still had the key.
    pub(super) async fn complete(
        &self,
        permit: &Permit,
        answer: &super::answer::Answer,
    ) -> Option<bool> {
        let bytes_max = self.settings.stored_bytes_max;
        let value = held::completed(&permit.fingerprint, answer, bytes_max);
        let mut call = self.scripts.complete.key(permit.redis_key.0.as_str());
        call.arg(permit.pending().as_slice()).arg(value).arg(millis(self.settings.completed_ttl));
        self.call(&call).await
    }

    pub(super) async fn renew(&self, permit: &Permit) -> Option<bool> {
        let mut call = self.scripts.renew.key(permit.redis_key.0.as_str());
        call.arg(permit.pending().as_slice()).arg(millis(self.settings.pending_ttl));
        self.call(&call).await
    }

    pub(super) async fn release(&self, permit: &Permit) -> Option<bool> {
        let mut call = self.scripts.release.key(permit.redis_key.0.as_str());
        call.arg(permit.pending().as_slice());
        self.call(&call).await
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The client's key has no space, so that no two pairs of scope and key run together.
    fn key_of(&self, request: &Request) -> RedisKey {
        let parts = [&self.settings.prefix, request.scope(), " ", request.key().as_str()];
        RedisKey(parts.concat())
    }

    async fn call<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Option<T> {
        let (ask, mut connection) = {
            let mut line = self.line();
            (line.breaker.ask(Instant::now()), line.connection.clone())
        };
        if ask == Ask::PassOver {
            return None;
        }
        let answer = call.invoke_async(&mut connection);
        match tokio::time::timeout(self.settings.response_timeout, answer).await {
            Ok(Ok(value)) => {
                if ask == Ask::Trial {
                    self.line().breaker.recovered();
                    tracing::info!("Redis answers again; the idempotency guard asks it first");
                }
                Some(value)
            }
            Ok(Err(error)) => {
                if !error.is_io_error() {
                    self.replace_connection();
                }
                self.failed(&error);
                None
            }
            Err(elapsed) => {
                self.failed(&elapsed);
                None
            }
        }
    }

    fn failed(&self, why: &(dyn std::error::Error + 'static)) {
        if self.line().breaker.failed(Instant::now()) {
            tracing::warn!(
                error = why,
                "Redis does not answer; until it does, Postgres alone guards against duplicates"
            );
        }
    }

    /// The connection's keeper connects again by itself after an error of the network, and after none
    /// else: a refused login it would repeat for ever.
    fn replace_connection(&self) {
        if let Ok(fresh) = connection(&self.client) {
            self.line().connection = fresh;
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing in there is left half changed by a panic.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(url: &str) -> RedisResult<Client> {
    // Without nodelay a small request waits until the one before it is acknowledged.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(VOID_LIMIT);
    Client::open(url.into_connection_info()?.set_tcp_settings(tcp))
}

/// Returns at once, and connects meanwhile.
fn connection(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        // One attempt for each trial: nobody is to wait for the keeper's own.
        .set_number_of_retries(0)
        .set_connection_timeout(Some(CONNECT_LIMIT))
        // `call` has a timeout of its own around everything.
        .set_response_timeout(None);
    let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
    let mut first = manager.clone();
    tokio::spawn(async move {
        // It only drives the connection: whoever asks next sees for himself.
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
        let good = Settings::default();
        assert!(good.check().is_ok());
        for bad in [
            Settings { prefix: "x".repeat(65), ..good.clone() },
            Settings { pending_ttl: Duration::from_millis(29), ..good.clone() },
            Settings { completed_ttl: Duration::ZERO, ..good.clone() },
            Settings { completed_ttl: Duration::MAX, ..good.clone() },
            Settings { response_timeout: Duration::ZERO, ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(IdempotencyError::Settings(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_being_repeated() {
        let error =
            client("redis://:s3cret@host:port/").map_err(IdempotencyError::Url).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(!error.to_string().contains("s3cret") && !source.contains("s3cret"), "{source}");
    }
}
