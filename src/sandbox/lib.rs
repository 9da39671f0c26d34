//! Temporary Postgres and Redis servers for the demo, the benchmarks and the tests.
//!
//! Input: options. Output: a running server on loopback, and its address. Invariant: nothing outside of a
//! server's temporary folder is written; a server never runs as root; it is stopped and its folder removed on
//! drop, after a panic, and when this process is killed ([`watchdog`]). No other user of the machine has
//! access: folders and sockets belong to the server's account, TCP requires a random password, and no command
//! line contains it.
//!
//! ```no_run
//! # fn main() -> Result<(), postrider_sandbox::SandboxError> {
//! use postrider_sandbox::postgres::{Cluster, Options};
//!
//! let cluster = Cluster::start(&Options::default())?;
//! println!("psql {}", cluster.url());
//! # Ok(())
//! # } // stopped, and its folder removed
//! ```

pub mod account;
pub mod binaries;
mod error;
pub mod password;
pub mod port;
pub mod postgres;
pub mod redis;
pub mod redis_group;
pub mod spawn;
pub mod watchdog;

pub use error::SandboxError;
