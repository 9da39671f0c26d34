//! The order service over HTTP, as a process of its own, against real PostgreSQL and Redis: one key
//! makes one order, and bad requests are reported and write nothing.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod blocked;
mod bursts;
mod databases;
mod dead_letters;
mod deadlines;
mod gate;
mod gateway_outage;
mod gauges;
mod idle_connections;
mod logins;
mod lost_replies;
mod maintenance;
mod notifications;
mod orders;
mod pauses;
mod published;
mod refusals;
mod sagas;
mod secured;
mod stage;
mod standby;
