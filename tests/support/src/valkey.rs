//! Valkey 9, whose SET has IFEQ: what the guard uses in place of a script, and Debian's Redis lacks.
//!
//! Output: a running server. Invariant: where it cannot be fetched the suite says so and is left out.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use postrider_sandbox::redis::Redis;

use crate::{postgres, root, skip};

/// A server of the test's own, or `None` after saying why not.
pub fn start() -> Option<Redis> {
    static FETCHED: OnceLock<bool> = OnceLock::new();
    let is_there = *FETCHED.get_or_init(|| {
        let script = root().join("docker/valkey/fetch");
        let output = Command::new(script).stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            skip::skip("Valkey 9", words.lines().last().unwrap_or("fetch failed"));
        }
        output.status.success()
    });
    let folder = is_there.then(|| postgres::readable(&root().join(".servers/valkey-9")))?;
    Some(Redis::start_program(&folder.join("valkey-server")).unwrap())
}
