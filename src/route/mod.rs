//! Outbox row → Kafka record, or a rejection.
//!
//! Enters: rows lent by `outbox`. Leaves: a [`Record`] that borrows the frame and the router's
//! scratch, or a [`Rejection`], of which a dead letter is made. Always holds: every row is one or
//! the other (G4), whatever bytes it has (G7), and in steady state nothing is allocated for a
//! record: topics are remembered by routing value, and up to eight headers fit inline. The pipeline
//! calls it once per row; `postrider route` shows what it answers.

mod datetime;
mod dead_letter;
mod record;
mod rejection;
mod render;
mod router;
mod spec;
mod template;
#[cfg(test)]
mod tests;
mod topics;

pub use record::{Headers, OwnedRecord, Record};
pub use rejection::{Rejection, RejectionCode};
pub use router::{LSN_HEADER, Routed, Router, TRACEPARENT_HEADER, position_text};
pub use spec::{EmptyPayload, EpochUnit, HeaderSpec, RouteSpec, RouteSpecError, TimestampSource};
pub use template::TopicTemplate;
pub use topics::check_topic;
