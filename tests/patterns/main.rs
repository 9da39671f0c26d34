//! The outbox writer and sagas against real PostgreSQL: what they keep in the caller's transaction,
//! and the mistakes of published versions, each shown where it bites.

#![expect(
    clippy::unwrap_used,
    reason = "all of this crate is test code; clippy sees only the marked functions as such"
)]

mod saga;
mod stage;
mod writer;
