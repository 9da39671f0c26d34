//! The shop, an example application whose order, payment, inventory and notification services communicate through the
//! outbox.
//!
//! Input: a command line (`cli`), HTTP requests and Kafka messages, or a plan of a load (`load`). Output:
//! rows in the services' tables and in `outbox`, written in one transaction. Invariant: the shop communicates
//! with the relay through Postgres and Kafka only, as any application would.

pub mod cli;
pub mod draw;
pub mod inventory;
pub mod load;
mod maintenance;
pub mod migrations;
pub mod notifications;
pub mod orders;
pub mod payments;
pub mod settings;

#[cfg(test)]
mod choreography;
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
