//! Servers, clients, judges and waits that the tests and the benchmarks share.
//!
//! Input: what a test asks for, and the path of the binary it runs, which cargo tells the tests of the
//! root package alone. Invariant: what a machine lacks is skipped with a line on stderr, and fails
//! where `CI=true`; servers end with the process that started them.

#![expect(missing_docs, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

pub mod acl;
pub mod broker;
pub mod chance;
pub mod compare;
pub mod connect;
pub mod cutting_proxy;
pub mod fault;
pub mod freezing_proxy;
pub mod http;
pub mod iam_directory;
pub mod java;
pub mod judge;
pub mod kafka;
mod kafka_settings;
pub mod oracle;
pub mod otlp;
pub mod pgbouncer;
pub mod postgres;
pub mod promtool;
pub mod redis_database;
pub mod register;
pub mod relay;
pub mod relay_http;
pub mod requests;
pub mod retention;
pub mod secured;
pub mod setnx;
pub mod skip;
pub mod smtp;
pub mod sql;
pub mod status_log;
pub mod status_proxy;
pub mod task;
pub mod token_provider;
pub mod topic;
pub mod valkey;
pub mod wait;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

pub use wait::wait_for;

/// The folder of the whole repository.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("tests/support lies two folders below")
}

/// Whether the tests run every combination of modes, as `make nightly` does with `FULL=1`. `make test` leaves out
/// combinations that prove a fact again.
pub fn is_full() -> bool {
    std::env::var("FULL").is_ok_and(|full| full == "1")
}

/// A name that no other test of this run uses: for databases, slots, topics and groups.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
