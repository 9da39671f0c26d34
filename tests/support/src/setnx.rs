//! The guard as it is usually published: a result under one key, a lock under another, each step a
//! command of its own. The baseline of `benches/guard.rs`, and the subject of `published`.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, cmd};

const LOCK_TTL_S: u64 = 30;
const RESULT_TTL_S: u64 = 86_400;

/// What it says of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum SetnxBegin {
    New,
    Locked,
    Stored(Vec<u8>),
}

/// GET, SETNX, EXPIRE; work; SET, EXPIRE, DEL.
#[derive(Clone)]
pub struct Setnx {
    pub connection: MultiplexedConnection,
}

impl Setnx {
    pub async fn begin(&mut self, key: &str) -> RedisResult<SetnxBegin> {
        let stored: Option<Vec<u8>> =
            cmd("GET").arg(result(key)).query_async(&mut self.connection).await?;
        if let Some(stored) = stored {
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

fn result(key: &str) -> String {
    format!("idem:result:{key}")
}

pub fn lock(key: &str) -> String {
    format!("idem:lock:{key}")
}
