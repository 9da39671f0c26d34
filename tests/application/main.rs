//! The application's half of the pattern against real PostgreSQL, Kafka and Redis: what writes the outbox,
//! what is done once for each request and each message, and the services that show all of it.

mod cleaning;
mod database;
mod idempotency;
mod inbox;
mod load;
mod migrations;
mod outbox_writer;
mod published;
mod saga;
mod saga_library;
mod saga_versions;
mod services;
mod sizing;
#[path = "../../examples/test_kit.rs"]
mod test_kit;
mod walk_through;
