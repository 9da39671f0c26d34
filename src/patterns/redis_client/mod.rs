//! How the guard and the cache of the inbox reach Redis: a URL, and connections to what it names.
//!
//! Input: a URL. Output: a [`Server`], and a [`Connection`] to it for commands. Invariant: both take the same
//! URLs, so that a service has one setting for Redis.

mod connection;
mod server;

pub(crate) use connection::Connection;
#[cfg(feature = "idempotency")]
pub(crate) use server::CONNECT_TIMEOUT;
pub(crate) use server::Server;
