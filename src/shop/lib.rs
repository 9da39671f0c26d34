//! The reference shop: the application side of the outbox, without the relay.
//!
//! Input: a command line (`cli`) or a plan built in-process (`load`). Output: rows in `orders` and
//! `outbox`, written in one transaction. Invariant: the shop communicates with the relay through
//! Postgres and Kafka only; of the relay's crates it uses `postrider-postgres`, which knows how a server is
//! reached and authenticated, and `postrider-secrets`.

pub mod cli;
pub mod draw;
pub mod inventory;
pub mod load;
mod maintenance;
pub mod orders;
pub mod payments;
pub mod settings;

mod connect;
mod dead_letters;
mod error;
mod kafka;
mod messages;
mod probes;
mod service;

pub use connect::connect;
pub use error::ShopError;
pub use kafka::{KafkaArgs, KafkaSettingError};
