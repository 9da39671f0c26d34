//! State of idempotency keys in Redis: one command or script per transition, behind a circuit
//! breaker. `None` means that Redis did not answer in time.
//!
//! Invariant: every call except `begin` takes at most the response timeout. After a failure Redis
//! is bypassed for a while, so an outage neither fails nor slows down requests.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};

use super::breaker::{CallMode, CircuitBreaker};
use super::cache_entry::{self, Pending};
use super::connecting::Connecting;
use super::error::IdempotencyError;
use super::request::Request;
use super::response::StoredResponse;
use super::scripts::Script;
use super::settings::GuardSettings;
use crate::redis_client::{Connection, Server};

/// Kind of `ERR syntax error`, and of any other text after ERR.
const UNKNOWN_OPTION: ErrorKind = ErrorKind::Server(ServerErrorKind::ResponseError);
/// The key and its PENDING value, which only its owner knows.
#[derive(Clone)]
pub(super) struct OwnedKey {
    redis_key: String,
    pending: Pending,
}

impl std::fmt::Debug for OwnedKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("OwnedKey").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenLate {
    GiveUp,
    GoOn,
}

#[derive(Debug)]
pub(super) enum BeginReply {
    New(OwnedKey),
    Existing(bytes::Bytes),
    /// The key may be owned: Redis did not answer.
    Lost(OwnedKey),
}

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
    connection: Option<Connecting>,
}

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

    /// Has no time limit: a late answer must still be read, or nothing could release the key.
    pub(super) async fn begin(&self, request: &Request) -> Option<BeginReply> {
        let redis_key = self.key_of(request);
        let pending = cache_entry::pending(request.fingerprint(), token());
        let mut command = redis::cmd("SET");
        command.arg(redis_key.as_str()).arg(pending.as_slice()).arg("NX").arg("GET");
        command.arg("PX").arg(millis(self.settings.pending_ttl));
        let mut is_lost = false;
        let call = async |mut connection: Connection| {
            let outcome = command.query_async(&mut connection).await;
            // An error with a code is an answer of the server, which has set nothing.
            is_lost = matches!(&outcome, Err(error) if error.code().is_none());
            unless_of_another_type(outcome, Value::Okay)
        };
        let reply = self.exchange(call, WhenLate::GoOn).await;
        match reply {
            Some(Value::Nil) => Some(BeginReply::New(OwnedKey { redis_key, pending })),
            // The cluster client sent the command twice, because the first answer was lost.
            Some(Value::BulkString(value)) if value == pending => {
                Some(BeginReply::New(OwnedKey { redis_key, pending }))
            }
            Some(Value::BulkString(value)) => Some(BeginReply::Existing(value.into())),
            None if is_lost => Some(BeginReply::Lost(OwnedKey { redis_key, pending })),
            None | Some(_) => None,
        }
    }

    pub(super) async fn complete(
        &self,
        owned: &OwnedKey,
        response: &StoredResponse,
    ) -> Option<bool> {
        let bytes_max = self.settings.stored_bytes_max;
        let value = cache_entry::completed(&owned.pending, response, bytes_max);
        self.replace(owned, &value, self.settings.completed_ttl).await
    }

    pub(super) async fn renew(&self, owned: &OwnedKey) -> Option<bool> {
        self.replace(owned, &owned.pending, self.settings.pending_ttl).await
    }

    pub(super) async fn release(&self, owned: &OwnedKey) -> Option<bool> {
        let (key, pending) = (owned.redis_key.as_str(), owned.pending.as_slice());
        self.call(async |mut it| self.delete.run(&mut it, key, &[pending]).await).await
    }

    /// Replaces the owner's PENDING value, if it is still there, with one command: Redis from 8.4,
    /// Valkey from 8.1. Other servers run a script, which costs them as much as the rest of a
    /// request.
    async fn replace(&self, owned: &OwnedKey, value: &[u8], ttl: Duration) -> Option<bool> {
        let (key, pending) = (owned.redis_key.as_str(), owned.pending.as_slice());
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

    /// A client's key contains no space, so scope and key are unambiguous.
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
        let (mode, mut connecting) = self.connection()?;
        let shared = connecting.clone();
        let mut reply = pin!(async { call(connecting.ready().await?).await });
        let reply = match tokio::time::timeout(self.settings.response_timeout, &mut reply).await {
            Ok(reply) => reply,
            Err(elapsed) => {
                // A single timeout may be a pause of the server. After two, the host may be gone or no
                // longer the master.
                let is_dead = mode == CallMode::Probe && !shared.is_pending();
                self.failed(&elapsed, is_dead.then_some(&shared));
                if when_late == WhenLate::GiveUp {
                    return None;
                }
                reply.await
            }
        };
        match reply {
            Ok(value) => {
                if mode == CallMode::Probe {
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

    fn connection(&self) -> Option<(CallMode, Connecting)> {
        let mut state = self.state();
        let mode = state.breaker.mode(Instant::now());
        if mode == CallMode::Bypass {
            return None;
        }
        let connection = state.connection.get_or_insert_with(|| Connecting::start(&self.server));
        Some((mode, connection.clone()))
    }

    /// Drops the connection `useless`, if another call has not done so.
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

    pub(super) fn late(&self, why: &(dyn std::error::Error + 'static)) {
        self.failed(why, None);
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value of another type is an answer, not a failure of Redis.
fn unless_of_another_type<T>(outcome: RedisResult<T>, other: T) -> RedisResult<T> {
    match outcome {
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(other),
        outcome => outcome,
    }
}

/// 62 random bits. A counter would repeat in a copy of the process or machine.
fn token() -> u64 {
    uuid::Uuid::now_v7().as_u64_pair().1
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
