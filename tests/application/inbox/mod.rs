//! The idempotent consumer and its dead letters, on real Kafka, PostgreSQL and Redis.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this crate is a test"
)]

mod blocked;
mod cache;
mod contention;
mod culprits;
mod dead_letters;
mod failures;
mod formats;
mod frozen_brokers;
mod gap_time;
mod mistakes;
mod once;
mod outages;
mod published;
mod rebalances;
mod restores;
mod scene;
mod sequences;
mod sessions;
mod standby;
mod traces;
mod zombies;
