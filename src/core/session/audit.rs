//! Defines [`Audit`]: what became of a record that the brokers refused, for a line in the relay's log.
//!
//! Its dead letter was sent, or the operator's policy left the record out.

use crate::pipeline::{Refused, SentDeadLetter};

/// What became of a record that the brokers refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// Its dead letter was sent; here without its body.
    DeadLetter(SentDeadLetter),
    /// The policy leaves it out.
    Skipped(Refused),
}
