//! Patterns for applications around a transactional outbox, one cargo feature each.
//!
//! | module | feature | |
//! |---|---|---|
//! | `outbox_writer` | `outbox-writer` | appends an event inside the transaction that changes the rows |
//! | `idempotency` | `idempotency` | answers a repeated request with the first answer: Redis and Postgres |
//! | `idempotency::tower` | `idempotency-tower` | the same as a layer in front of HTTP endpoints |
//! | `inbox` | `inbox` | a consumer in which each event has its effects once |
//! | `marker` | `marker` | the same for services with a consumer of their own |
//! | `saga` | `saga` | steps over several services, with compensation |
//! | `migrations` | | the tables of all of these |
//! | `traceparent` | either of `outbox-writer`, `inbox` | the trace of an event, from one to the other |
//! | `dead_letter` | `dead-letter` | what could not be delivered or consumed: found, and sent again |
//!
//! Invariant: nothing here knows the relay, and a service that only writes an outbox compiles
//! neither a Kafka client nor a web server.
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
