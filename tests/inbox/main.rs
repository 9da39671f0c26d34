//! The idempotent consumer and its dead letters, on real Kafka, PostgreSQL and Redis.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "all of this crate is a test"
)]
#![expect(dead_code, unused_imports, reason = "the integration tests use more of what is shared")]

#[path = "../it/support/mod.rs"]
mod support;

mod cache;
mod contention;
mod failures;
mod letters;
mod mistakes;
mod once;
mod outages;
mod rebalances;
mod scene;
#[path = "../idempotency/wait.rs"]
mod wait;
