//! The Kafka side: the contract of a sink, and the producers that fulfil it.

mod sink;

pub use crate::pipeline::{Confirmation, Outcome, Refused};
pub use sink::{SendError, Sink, SinkError};
