//! Private servers for the demo, the benchmarks and the tests: started on loopback, owned by the
//! caller, gone with it.
//!
//! Enters: options. Leaves: a running server and its address. Always holds: nothing outside the
//! temporary folder of a server is written; a server never runs as root; it is stopped and its
//! folder removed on drop, after a panic, and also when this process is killed ([`tether`]).
//! Called by `cli` (demo, bench) and by the integration tests; knows no other room.

pub mod account;
pub mod binaries;
mod error;
pub mod port;
pub mod postgres;
pub mod redis;
pub mod tether;

pub use error::SandboxError;
