//! The product against real servers: private PostgreSQL clusters, Apache Kafka in KRaft mode, and
//! the `postrider` binary as a process of its own.
//!
//! One binary, so that all tests share the servers; `support` starts, watches and judges them. What
//! a machine lacks is skipped with a line on stderr, and fails where `CI=true`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod commands;
mod dashboard;
mod dead_letters;
mod delivery;
mod doctor;
mod http;
mod kafka;
mod load;
mod metrics;
mod operate;
mod poll;
mod postgres;
mod prune;
mod readiness;
mod refusals;
mod routing;
mod secrets;
mod servers_and_clients;
mod service_manager;
mod shutdown;
mod stage;
mod standby;
mod streams;
mod tables;
mod topics;
mod traces;
mod trial;
mod verify;
