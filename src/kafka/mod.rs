//! The Kafka side: the contract of a sink, and the producers that fulfil it.

mod sink;

pub use sink::{Confirmation, Outcome, Refused, SendError, Sink, SinkError};
