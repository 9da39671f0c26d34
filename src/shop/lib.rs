//! The reference shop: the application side of the outbox, without the relay.
//!
//! Enters: what the operator asked for (`cli`) or a plan built in-process (`load`). Leaves: rows in
//! `orders` and `outbox`, written together or not at all. What always holds: the shop meets the
//! relay through Postgres and Kafka only; of its rooms `config` may be imported here, and `control`'s
//! `SqlAddress`, which knows how a server is checked. Called
//! by `bin/shop` and by the demo.

pub mod cli;
pub mod draw;
pub mod inventory;
pub mod load;
mod maintenance;
pub mod orders;
pub mod payments;
pub mod settings;

mod connect;
mod error;
mod face;
mod kafka;
mod letters;
mod messages;
mod service;

pub use connect::connect;
pub use error::ShopError;
pub use kafka::{Kafka, KafkaSettingError};
