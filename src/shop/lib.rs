//! The shop, an example application whose order, payment, inventory and notification services
//! communicate through the outbox.
//!
//! Input: a command line (`cli`), HTTP requests and Kafka messages, or a load plan (`load`).
//! Output: rows in the services' tables and in `outbox`, written in one transaction. Invariant: the
//! shop communicates with the relay only through Postgres and Kafka, like any application.

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
