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

mod containers;
mod control;
mod dead_letters;
mod demo;
#[cfg(feature = "faults")]
mod drawn;
mod faults;
mod hostile;
mod import;
mod kafka;
mod listeners;
mod login;
#[cfg(feature = "faults")]
mod matrix;
mod other_users;
mod promotion;
mod readme;
mod readmission;
mod refusals;
#[cfg(feature = "faults")]
mod regressions;
mod relay;
mod rights;
mod rotation;
mod routing;
mod servers;
mod setup;
mod shop;
mod tail;
mod topics;
mod transactions;
mod wal;
