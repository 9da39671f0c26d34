//! The Lua scripts that begin, complete, renew and release an idempotency key in Redis, each in one round
//! trip.
//!
//! Output: `Scripts`, called by digest; the client loads a script that Redis does not know yet. Invariant:
//! reads and writes of a script are atomic; a key of another type is left alone and raises no error, so
//! that it does not look like a failure of Redis. Needs Redis 5 or newer, since the clock is read before a
//! write. PSETEX and locals rather than SET with options: a call from Lua costs more than the command
//! itself, and each argument adds to that.
//!
//! # The fencing token
//!
//! Microseconds of Redis's own clock at the moment of `begin`: it rises from owner to owner of a key
//! without a counter that a flush, an eviction or the key's expiry would forget. Between two owners lie
//! at least two other scripts, which take more than a microsecond. If the clock is set back, or after a
//! failover to a server whose clock is behind, a later owner may have a smaller token. The scripts compare
//! tokens for equality alone, so even then the former owner is told that it is stale; only another
//! system that compares them by size is affected. Lua's numbers hold microseconds exactly
//! until the year 2255.

use redis::Script;

/// KEYS: the key. ARGV: what PENDING begins with, its time to live in ms.
/// Returns the token, or the existing value, or nil if that is not a string.
const BEGIN: &str = "\
local call, key = redis.call, KEYS[1]
local held = redis.pcall('GET', key)
if held then return type(held) == 'string' and held end
local now = call('TIME')
local token = now[1] * 1000000 + now[2]
call('PSETEX', key, ARGV[2], ARGV[1] .. struct.pack('>I8', token))
return token";

/// ARGV: the owner's PENDING, the value to replace it with, its time to live in ms.
const COMPLETE: &str = "\
local key = KEYS[1]
if redis.pcall('GET', key) ~= ARGV[1] then return 0 end
redis.call('PSETEX', key, ARGV[3], ARGV[2])
return 1";

/// ARGV: the owner's PENDING, its time to live in ms.
const RENEW: &str = "\
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

/// ARGV: the owner's PENDING.
const RELEASE: &str = "\
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1";

/// The scripts and their digests.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) begin: Script,
    pub(super) complete: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            begin: Script::new(BEGIN),
            complete: Script::new(COMPLETE),
            renew: Script::new(RENEW),
            release: Script::new(RELEASE),
        }
    }
}
