//! The guard as it is usually published: a result under one key, a lock under another, each step a
//! command of its own. The baselines of `benches/guard.rs`, and the subject of `published`.
//!
//! Input: a connection and the request's key. Output: what each version says of the request. Invariant:
//! each method is the commands that its documentation names, in that order and in as many round trips.

use redis::aio::MultiplexedConnection;
use redis::{ExistenceCheck, RedisResult, SetExpiry, SetOptions, cmd};

const LOCK_TTL_S: u64 = 30;
const RESULT_TTL_S: u64 = 86_400;

/// What it says of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum SetnxBegin {
    New,
    Locked,
    Stored(Vec<u8>),
}

/// Six round trips: GET, SETNX, EXPIRE; work; SET, EXPIRE, DEL.
#[derive(Clone)]
pub struct Setnx {
    pub connection: MultiplexedConnection,
}

impl Setnx {
    pub async fn begin(&mut self, key: &str) -> RedisResult<SetnxBegin> {
        if let Some(stored) = stored(&mut self.connection, key).await? {
            return Ok(SetnxBegin::Stored(stored));
        }
        if !self.lock(key).await? {
            return Ok(SetnxBegin::Locked);
        }
        let () =
            cmd("EXPIRE").arg(lock(key)).arg(LOCK_TTL_S).query_async(&mut self.connection).await?;
        Ok(SetnxBegin::New)
    }

    /// The second step of `begin`.
    pub async fn lock(&mut self, key: &str) -> RedisResult<bool> {
        cmd("SETNX").arg(lock(key)).arg(1).query_async(&mut self.connection).await
    }

    pub async fn complete(&mut self, key: &str, response: &[u8]) -> RedisResult<()> {
        let () =
            cmd("SET").arg(result(key)).arg(response).query_async(&mut self.connection).await?;
        let () = cmd("EXPIRE")
            .arg(result(key))
            .arg(RESULT_TTL_S)
            .query_async(&mut self.connection)
            .await?;
        self.unlock(key).await
    }

    /// The last step of `complete`.
    pub async fn unlock(&mut self, key: &str) -> RedisResult<()> {
        cmd("DEL").arg(lock(key)).query_async(&mut self.connection).await
    }
}

/// Three round trips: GET, SET with NX and EX; work; SET with EX and DEL in one MULTI.
#[derive(Clone)]
pub struct SetNxEx {
    pub connection: MultiplexedConnection,
}

impl SetNxEx {
    pub async fn begin(&mut self, key: &str) -> RedisResult<SetnxBegin> {
        if let Some(stored) = stored(&mut self.connection, key).await? {
            return Ok(SetnxBegin::Stored(stored));
        }
        let is_first = self.lock(key).await?;
        Ok(if is_first { SetnxBegin::New } else { SetnxBegin::Locked })
    }

    /// The second step of `begin`.
    pub async fn lock(&mut self, key: &str) -> RedisResult<bool> {
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::EX(LOCK_TTL_S));
        cmd("SET").arg(lock(key)).arg(1).arg(options).query_async(&mut self.connection).await
    }

    pub async fn complete(&mut self, key: &str, response: &[u8]) -> RedisResult<()> {
        let mut both = redis::pipe();
        both.atomic().set_ex(result(key), response, RESULT_TTL_S).ignore().del(lock(key)).ignore();
        both.query_async(&mut self.connection).await
    }
}

/// The first step of `begin`.
pub async fn stored(
    connection: &mut MultiplexedConnection,
    key: &str,
) -> RedisResult<Option<Vec<u8>>> {
    cmd("GET").arg(result(key)).query_async(connection).await
}

fn result(key: &str) -> String {
    format!("idem:result:{key}")
}

pub fn lock(key: &str) -> String {
    format!("idem:lock:{key}")
}
