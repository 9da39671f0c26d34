//! Patterns for applications around a transactional outbox, one cargo feature per pattern.
//!
//! | module | feature | |
//! |---|---|---|
//! | `outbox_writer` | `outbox-writer` | appends an event inside the transaction that changes the rows |
//! | `idempotency` | `idempotency` | answers a repeated request with the first response: Redis and Postgres |
//! | `idempotency::tower` | `idempotency-tower` | runs the guard as a layer in front of HTTP endpoints |
//! | `inbox` | `inbox` | a consumer that applies the effects of each event once |
//! | `marker` | `marker` | marks processed messages in services with their own Kafka client |
//! | `saga` | `saga` | processes over several services, with compensation |
//! | `migrations` | | the tables of all patterns |
//! | `traceparent` | `outbox-writer` or `inbox` | carries an event's trace from the writer to the consumer |
//! | `dead_letter` | `dead-letter` | finds and redrives records that could not be delivered or consumed |
//!
//! Invariant: no module depends on the relay. A service that only writes an outbox compiles neither
//! a Kafka client nor a web server.
//!
//! ```
//! # #[cfg(feature = "outbox-writer")] {
//! use postrider_patterns::outbox_writer::Event;
//!
//! let payload = serde_json::json!({ "order": 42, "cents": 990 });
//! let event = Event::new("order", "42", "OrderPlaced", payload);
//! assert_eq!(event.id.get_version_num(), 7, "ids rise, so that the index grows at one end");
//! # }
//! ```

#![warn(missing_docs)]

#[cfg(feature = "dead-letter")]
pub mod dead_letter;
#[cfg(feature = "idempotency")]
pub mod idempotency;
#[cfg(feature = "inbox")]
pub mod inbox;
#[cfg(feature = "marker")]
pub mod marker;
pub mod migrations;
#[cfg(feature = "outbox-writer")]
pub mod outbox_writer;
#[cfg(any(feature = "idempotency", feature = "inbox"))]
mod redis_client;
#[cfg(feature = "saga")]
pub mod saga;
mod table_error;
#[cfg(any(feature = "inbox", feature = "outbox-writer"))]
pub mod traceparent;
