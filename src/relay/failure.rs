//! Classifies the error that ended a session for the supervisor in the core. No I/O.

use crate::error::RelayError;
use crate::login_retry::{barred_by, can_change};
use crate::plan::Plan;
use postrider_core::supervisor::{RefusedBatch, SessionFailure, SinkFault};
use postrider_kafka::SinkError;
use postrider_postgres::wal::{Class, WalError};

pub(super) fn failure<'a>(error: &'a RelayError, plan: &Plan) -> SessionFailure<'a> {
    match error {
        _ if error.is_final()
            && let Some(by) = barred_by(error) =>
        {
            SessionFailure::Barred { by, secret_can_change: can_change(error, plan) }
        }
        _ if error.is_final() => SessionFailure::Final,
        _ if error.class() == Class::Held => SessionFailure::Held,
        RelayError::Refused {
            cause: SinkError::BatchRefused { records, batch_bytes, .. },
            analysis,
        } => SessionFailure::Refused(RefusedBatch { analysis, records, batch_bytes: *batch_bytes }),
        RelayError::Sink(error) | RelayError::Refused { cause: error, .. } => {
            SessionFailure::Sink(sink_fault(error, plan))
        }
        RelayError::UnreadMessage { at, .. } => SessionFailure::Unreadable(*at),
        RelayError::Wal(WalError::Silent { .. }) => SessionFailure::Silent,
        _ => SessionFailure::Transient,
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
