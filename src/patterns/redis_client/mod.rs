//! Redis connections of the idempotency guard and of the inbox cache. Invariant: both accept the
//! same URLs, so a service has one Redis setting.

mod connection;
mod server;

pub(crate) use connection::Connection;
#[cfg(feature = "idempotency")]
pub(crate) use server::CONNECT_TIMEOUT;
pub(crate) use server::Server;
