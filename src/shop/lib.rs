//! The shop, an example application whose services communicate through the outbox. The relay is
//! reached only through Postgres and Kafka.

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
