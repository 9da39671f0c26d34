//! The order service over HTTP, as a process of its own, against real PostgreSQL and Redis: one key
//! makes one order, and what is wrong is said and leaves nothing behind.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod bursts;
mod deadlines;
mod gate;
mod gauges;
mod letters;
mod logins;
mod maintenance;
mod orders;
mod pauses;
mod refusals;
mod secured;
mod silent;
mod stage;
mod standby;
