//! A TCP proxy of our own between the relay and its peers, that makes what networks do to
//! connections happen on purpose.
//!
//! [`proxy::Proxy`] carries any protocol, and whatever it carries, each way of each connection can be
//! given a [`link::Fault`]. Who understands the protocol reads along with a [`proxy::Reader`] and
//! decides about whole messages: [`endtxn`] about the end of Kafka's transactions, [`limits`]
//! about what a broker offers, `status_log` and
//! `freezing_proxy` about Postgres. [`cluster`] starts Apache Kafka behind a proxy, so that every broker is
//! reached through it. Everything ends with this process.

pub mod cluster;
pub mod endtxn;
pub mod kafka_frame;
pub mod limits;
pub mod link;
pub mod proxy;
