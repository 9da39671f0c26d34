//! What runs that write rows under disasters have in common: settings, rows, and writers that go on over the loss of a server.
//!
//! Input: environment variables, a seed, a pace. Output: transactions whose rows are known by dense numbers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

pub(crate) mod rows;
pub(crate) mod settings;
pub(crate) mod writers;
