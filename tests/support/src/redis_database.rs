//! The Redis server that the tests share. A test that pauses, configures or ends its server starts its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use postrider_sandbox::redis::Redis;
use redis::FromRedisValue;

/// The URL of an empty database that no other test of this run uses.
pub fn next() -> String {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let shared = SHARED.get_or_init(|| Redis::start().unwrap());
    format!("{}/{}", shared.url(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The answer to a command of one word, in a session of its own.
pub fn ask<T: FromRedisValue>(url: &str, command: &str) -> T {
    let mut session = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd(command).query(&mut session).unwrap()
}
