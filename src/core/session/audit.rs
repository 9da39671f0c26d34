//! What the operator is told of records that the brokers refused.

use crate::pipeline::{Refused, SentDeadLetter};

/// What became of a record that the brokers refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// Its dead letter was sent; here without its body.
    DeadLetter(SentDeadLetter),
    /// The policy leaves it out.
    Skipped(Refused),
}
