//! Outbox row → Kafka record, or a rejection.

mod record;
mod rejection;

pub use record::{Headers, OwnedRecord, Record};
pub use rejection::{Rejection, RejectionCode};
