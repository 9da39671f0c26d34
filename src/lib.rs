//! Postrider delivers a `PostgreSQL` transactional outbox to Kafka, straight from the write-ahead
//! log.
//!
//! ```text
//!  Postgres walsender                                                             Kafka
//!         |  Frame                                                                  ^
//!         v                                                                         |
//!    wal::Stream --Frame--> core::session::Session --Outgoing{Record,Ticket}--> kafka's Sink
//!         ^                  |  pgoutput: Frame     -> Message                      |
//!         |                  |  outbox  : Message   -> OutboxRow                    | librdkafka's threads
//!         |                  |  route   : OutboxRow -> Record | Rejection           v
//!         |                  |  ledger  : Ticket out, Confirmation in -> settled Lsn <--Confirmation
//!         |                  |  session : when to read, acknowledge, drain, give up
//!         +-- StatusUpdate --+  transaction: when a Kafka transaction begins and ends
//! ```
//!
//! Data goes left to right once; confirmations come back as numbers only; exactly one line of code
//! tells Postgres a position, and the session says which.
//!
//! # Rooms
//!
//! * the core, a crate without I/O, clock or threads: [`lsn`], [`pgoutput`], [`outbox`], [`record`],
//!   [`route`], [`ledger`], [`pipeline`], [`session`], [`transaction`], [`gate`];
//! * both ends: [`wal`] (the replication connection), [`kafka`] (producer, reader, embedded broker);
//! * what acts: [`relay`] (the only loop, on a thread of its own), [`control`] (SQL sessions),
//!   [`telemetry`] (health and metrics);
//! * what people touch: [`cli`], [`config`];
//! * bounds for who connects over HTTP, and what Prometheus reads there: [`http`], `prometheus`;
//! * what finds dead letters and sends them again: [`dead_letter`];
//! * for tests alone: [`failpoint`];
//! * for whoever tries again, and for every log line that may repeat: [`backoff`], `log_throttle`;
//! * the application's half, a cargo feature each: `outbox_writer`, `idempotency`, `inbox`, `saga`,
//!   a consumer's own dead letters, and `shop`, whose services use them;
//! * beside the relay: [`sandbox`] (private servers).
//!
//! The core is a crate of its own, so that the compiler keeps its wall; who else may know whom is
//! written, and checked, in `tests/tidy/layers.rs`.
//!
//! # Guarantees
//!
//! | | |
//! |---|---|
//! | G1 | Postgres is never told an LSN while a row at or below it is unconfirmed |
//! | G2 | records of one key are produced in commit order |
//! | G3 | memory is bounded by the budget, whatever the peers do |
//! | G4 | a row that cannot be routed or produced is dead-lettered, confirmed, and only then settled |
//! | G5 | an idle outbox still lets the slot advance |
//! | G6 | exactly-once mode: every committed row once to read_committed consumers |
//! | G7 | malformed bytes give a typed error, never a panic or an over-allocation |
//! | G8 | a clean shutdown leaves nothing unconfirmed, or exits non-zero saying what |
//!
//! Their conditions and limits, and the tests that show them: `docs/guarantees.md`.

pub use postrider_core::{frame, gate, ledger, lsn, mutants, outbox, pgoutput, pipeline, route};
pub use postrider_core::{progress, record, session, sink, time, transaction};

pub use postrider_config as config;
pub use postrider_debezium as debezium;
pub use postrider_kafka::{self as kafka, failpoint};
pub use postrider_postgres::{control, libpq, wal};
pub use postrider_relay::{self as relay, telemetry};
pub use postrider_sandbox as sandbox;
pub use postrider_secrets as secrets;
pub use postrider_service::{backoff, http, log_throttle, prometheus};

pub mod dead_letter;
#[cfg(feature = "idempotency")]
pub mod idempotency;
#[cfg(feature = "inbox")]
pub mod inbox;
#[cfg(feature = "outbox-writer")]
pub mod outbox_writer;
#[cfg(feature = "saga")]
pub mod saga;
#[cfg(feature = "shop")]
pub mod shop;

pub mod cli;
