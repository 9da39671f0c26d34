//! What an error that ended a session means for the next one.
//!
//! Enters: the error, and the plan. Leaves: a [`Failure`], which the supervisor decides by. Pure.

use crate::error::RelayError;
use crate::plan::Plan;
use crate::relogin::can_change;
use postrider_core::supervisor::{Failure, RefusedBatch, SinkFault};
use postrider_kafka::SinkError;
use postrider_postgres::wal::{Class, WalError};

/// See the module.
pub(super) fn failure<'a>(error: &'a RelayError, plan: &Plan) -> Failure<'a> {
    match error {
        _ if error.is_final() && can_change(error, plan) => Failure::Login,
        _ if error.is_final() => Failure::Final,
        _ if error.class() == Class::Held => Failure::Held,
        RelayError::Refused {
            cause: SinkError::BatchRefused { records, batch_bytes, .. },
            lesson,
        } => Failure::Refused(RefusedBatch { lesson, records, batch_bytes: *batch_bytes }),
        RelayError::Sink(error) | RelayError::Refused { cause: error, .. } => {
            Failure::Sink(sink_fault(error, plan))
        }
        RelayError::Wal(WalError::Silent { .. }) => Failure::Silent,
        _ => Failure::Transient,
    }
}

fn sink_fault(error: &SinkError, plan: &Plan) -> SinkFault {
    match error {
        SinkError::BatchRefused { .. } => SinkFault::Refused,
        SinkError::Delivery { .. } => SinkFault::Late,
        SinkError::Fatal(_) => SinkFault::Fatal,
        SinkError::Unauthorised { .. } if !plan.kafka.topics.waits() => SinkFault::Forbidden,
        _ => SinkFault::Outage,
    }
}
