//! Postrider delivers a `PostgreSQL` transactional outbox to Kafka, straight from the write-ahead
//! log.
//!
//! ```text
//!  Postgres walsender                                                      Kafka
//!         |  Frame                                                           ^
//!         v                                                                  |
//!    wal::Stream --Frame--> pipeline::Pipeline --Outgoing{Record,Ticket}--> kafka::Sink
//!         ^                  |  pgoutput: Frame     -> Message               |
//!         |                  |  outbox  : Message   -> OutboxRow             | librdkafka's threads
//!         |                  |  route   : OutboxRow -> Record | Rejection    v
//!         |                  |  ledger  : Ticket out, Confirmation in -> settled Lsn <--Confirmation
//!         +---- status update{settled Lsn} ------ relay (the only loop) -----+
//! ```

pub mod config;
pub mod control;
pub mod kafka;
pub mod ledger;
pub mod lsn;
pub mod outbox;
pub mod pgoutput;
pub mod pipeline;
pub mod relay;
pub mod route;
pub mod sandbox;
pub mod shop;
pub mod telemetry;
pub mod wal;

pub mod cli;
