//! The idempotency guard on a real Redis and a real PostgreSQL.
//!
//! Each test has a Redis of its own, to flush, pause and kill, and a database of its own in a cluster
//! that all share. What published versions of the pattern do instead is in `published`, which shows
//! their mistakes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod claims;
mod dropped;
mod errors;
mod execute;
mod failover;
mod fixture;
mod hang_ups;
mod hostile;
mod layer;
mod lock_waits;
mod lost_answers;
mod memory;
mod outages;
mod published;
mod sql;
mod storm;
mod transitions;
mod valkey;
mod zombies;
