//! What the tests themselves stand on: private servers, and the proxies between them and the relay.

mod bytes;
pub(crate) mod ends;
mod other_users;
mod servers;
mod statuses;
