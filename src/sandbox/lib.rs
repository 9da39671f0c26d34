//! Temporary Postgres and Redis servers for an application's tests, and for Postrider's own demo
//! and benchmarks.
//!
//! Input: options. Output: a running server on loopback, and its address.
//!
//! Invariants:
//!
//! * Files are written only inside the server's temporary folder.
//! * A server never runs as root.
//! * The server ends and its folder is removed on drop, after a panic, and when this process is
//!   killed ([`watchdog`]).
//! * No other user of the machine has access: folders and sockets belong to the server's account,
//!   and TCP requires a random password, which no command line contains.
//!
//! | for | type | can |
//! |---|---|---|
//! | PostgreSQL | [`postgres::Cluster`], about a second to start | be stopped, killed and restarted on its data, and be configured: settings, encoding, TLS |
//! | Redis, Valkey | [`redis::Redis`], about 20 ms to start | be killed and restarted empty |
//! | Redis Cluster, Sentinel | [`redis_group`] | lose a master |
//! | Kafka | `postrider_kafka::embedded::Broker`, in the test's own process | refuse, delay, and lose records and topics |
//!
//! Programs are searched in the folders of Debian's and the makers' packages ([`binaries`]). Docker
//! is not needed. Each test can start its own servers, or tests can share one in a `OnceLock`.
//!
//! ```
//! # fn main() -> Result<(), postrider_sandbox::SandboxError> {
//! use postrider_sandbox::postgres::{Cluster, Options, Stop};
//!
//! // Ready for logical decoding; `with` adds lines of postgresql.conf.
//! let mut cluster = Cluster::start(&Options::default().with("work_mem", "8MB"))?;
//! let url = cluster.url(); // postgres://postgres:<password>@127.0.0.1:<port>/postgres
//! // Here: run the service with it, and then crash the server under it.
//! cluster.restart(Stop::Kill)?;
//! assert_eq!(cluster.url(), url, "on the same port, with what was committed");
//! # Ok(())
//! # } // stopped, and its folder removed
//! ```
//!
//! `examples/test_kit.rs` is a complete test to copy.

#![warn(missing_docs)]

pub mod account;
pub mod binaries;
mod error;
pub mod password;
pub mod port;
pub mod postgres;
pub mod proc;
pub mod redis;
pub mod redis_group;
pub mod spawn;
pub mod watchdog;

pub use error::SandboxError;
