//! The waiting of [`crate::wait`] for tests that are tasks.

use std::time::{Duration, Instant};

/// How long anything may take that must happen, on a machine busy with other tests.
const LIMIT: Duration = Duration::from_mins(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks again and again until there is something to see.
///
/// # Panics
/// After a minute.
pub async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lets a time pass that is the fault itself, or a timeout that must run out, or the pace of what the
/// test does; `why` says which.
pub async fn let_pass(time: Duration, why: &str) {
    assert!(!why.is_empty(), "a time that passes has a reason");
    tokio::time::sleep(time).await;
}
