//! Redis connections of the idempotency guard and of the inbox cache.
//!
//! Input: a URL. Output: a [`Server`], and a [`Connection`] to it for commands. Invariant: the
//! guard and the cache accept the same URLs, so a service has one Redis setting.

mod connection;
mod server;

pub(crate) use connection::Connection;
#[cfg(feature = "idempotency")]
pub(crate) use server::CONNECT_TIMEOUT;
pub(crate) use server::Server;
