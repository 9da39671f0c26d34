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
//!         |                  |  session : when to read, acknowledge, stop, give up
//!         +-- StatusUpdate --+  transaction: when a Kafka transaction begins and ends
//! ```
//!
//! Data goes left to right once; confirmations come back as numbers only; exactly one line of code
//! tells Postgres a position, and the session says which.
//!
//! # Crates
//!
//! This crate holds both programs and the tests, and re-exports the others for them.
//!
//! * all decisions, without I/O, clock or threads: `postrider-core`;
//! * the connections at both ends: `postrider-postgres` (connection strings, replication, SQL),
//!   `postrider-kafka` (producer, reader, embedded broker);
//! * the running relay: `postrider-relay` (its loop on its own thread, supervisor, health,
//!   metrics);
//! * what users see: `postrider-config`, `postrider-debezium` (import), `postrider-cli`;
//! * for applications: `postrider-patterns` (writer, saga, inbox) and `postrider-shop`, which uses
//!   them;
//! * utilities: `postrider-service` (back-off, metrics, HTTP), `postrider-secrets`,
//!   `postrider-sandbox` (temporary servers).
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
//! Their conditions and limits: `docs/guarantees.md`. The tests that show them: `docs/evidence.md`.

#[cfg(feature = "mutants")]
pub use postrider_core::mutants;
pub use postrider_core::{frame, gate, ledger, lsn, outbox, pgoutput, pipeline, route};
pub use postrider_core::{progress, session, sink, supervisor, time, transaction};

pub use postrider_cli as cli;
pub use postrider_config as config;
pub use postrider_debezium as debezium;
pub use postrider_kafka::{self as kafka, failpoint};
#[cfg(feature = "shop")]
pub use postrider_patterns::{
    dead_letter, idempotency, inbox, marker, outbox_writer, saga, traceparent,
};
pub use postrider_postgres::{control, libpq, wal};
pub use postrider_relay as relay;
pub use postrider_sandbox as sandbox;
pub use postrider_service::backoff;
#[cfg(feature = "shop")]
pub use postrider_shop as shop;
