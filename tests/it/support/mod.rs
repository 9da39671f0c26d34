//! Servers and judges that the tests share.

pub(crate) mod broker;
pub(crate) mod fault;
pub(crate) mod fortress;
pub(crate) mod java;
pub(crate) mod judge;
pub(crate) mod kafka;
mod kafka_settings;
pub(crate) mod oracle;
pub(crate) mod postgres;
pub(crate) mod relay;
pub(crate) mod retention;
pub(crate) mod scissors;
pub(crate) mod skip;
pub(crate) mod sluice;
pub(crate) mod sql;
pub(crate) mod tap;
pub(crate) mod topic;
pub(crate) mod wiretap;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A name that no other test of this run uses: for databases, slots, topics and groups.
pub(crate) fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Looks again and again until there is something to see.
///
/// # Panics
/// After a minute.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
