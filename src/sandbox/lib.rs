//! Private servers for the demo, the benchmarks and the tests: started on loopback, owned by the
//! caller, gone with it.
//!
//! Enters: options. Leaves: a running server and its address. Always holds: nothing outside the
//! temporary folder of a server is written; a server never runs as root; it is stopped and its
//! folder removed on drop, after a panic, and also when this process is killed ([`tether`]). No
//! other user of the machine gets in: folders and the sockets in them are the server's account's
//! alone, TCP wants a password that is drawn at the start, and no command line has it.
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
pub mod spawn;
pub mod tether;

pub use error::SandboxError;
