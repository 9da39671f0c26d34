//! Servers and judges that the tests share.

pub(crate) mod acl;
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
pub(crate) mod requests;
pub(crate) mod retention;
pub(crate) mod scissors;
pub(crate) mod skip;
pub(crate) mod sluice;
pub(crate) mod sql;
pub(crate) mod tap;
pub(crate) mod topic;
pub(crate) mod wait;
pub(crate) mod wiretap;

use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use wait::wait_for;

/// A name that no other test of this run uses: for databases, slots, topics and groups.
pub(crate) fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
