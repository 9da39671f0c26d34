//! Two Lua scripts that change an idempotency key only if it still has its owner's PENDING.
//! Invariant: comparison and write are atomic. A key of another type stays unchanged and raises no
//! error. PSETEX replaces SET with options, because each argument of a call from Lua costs time.

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind};

/// ARGV: the owner's PENDING, the new value, its time to live in ms.
const SET: &str = "\
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return 1";

/// ARGV: the owner's PENDING.
const DELETE: &str = "\
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1";

pub(super) struct Script {
    code: &'static str,
    digest: String,
}

impl Script {
    pub(super) fn set() -> Self {
        Self::new(SET)
    }

    pub(super) fn delete() -> Self {
        Self::new(DELETE)
    }

    fn new(code: &'static str) -> Self {
        Self { code, digest: redis::Script::new(code).get_hash().to_owned() }
    }

    /// Sends the script's text if Redis does not know the digest (restart, failover, SCRIPT FLUSH).
    pub(super) async fn run(
        &self,
        connection: &mut impl ConnectionLike,
        key: &str,
        arguments: &[&[u8]],
    ) -> RedisResult<bool> {
        let command = |name, script: &str| -> Cmd {
            let mut command = redis::cmd(name);
            command.arg(script).arg(1).arg(key).arg(arguments);
            command
        };
        match command("EVALSHA", &self.digest).query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                command("EVAL", self.code).query_async(connection).await
            }
            outcome => outcome,
        }
    }
}
