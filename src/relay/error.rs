//! Errors that end the relay or one of its sessions.
//!
//! The class of an error decides retries and the exit code. `reason` is a label of the restart
//! counter.

use crate::compare::{CompareError, SpillError};
use crate::tables::TableRowsError;
use crate::telemetry::FailedPart;
use postrider_core::gate::GateError;
use postrider_core::ledger::LedgerError;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::{PipelineError, RefusalAnalysis};
use postrider_core::route::RouteSpecError;
use postrider_core::session::{End, SessionError, Stalled};
use postrider_kafka::{SinkError, TopicsError};
use postrider_postgres::control::ControlError;
use postrider_postgres::wal::{Class, REPAIR_UNREADABLE, WalError};

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    TableRows(#[from] TableRowsError),
    #[error(transparent)]
    Compare(CompareError),
    #[error(transparent)]
    Topics(#[from] TopicsError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The core found a fault that it must not skip.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A message of the log cannot be read. The next session receives the message again.
    #[error("{cause}, at {at} of the log")]
    UnreadMessage {
        at: Lsn,
        #[source]
        cause: Box<RelayError>,
    },
    #[error(
        "{sessions} sessions ended at {at} of the log, where a message cannot be read: {cause}"
    )]
    Unreadable {
        at: Lsn,
        sessions: u32,
        slot: String,
        #[source]
        cause: Box<RelayError>,
    },
    /// A row that cannot be delivered blocks all later rows if the dead-letter topic is unusable.
    #[error("dead letters cannot be stored: {0}")]
    DeadLetters(#[source] SinkError),
    /// The next session sends the refused records alone, or turns them into dead letters.
    #[error("{cause}")]
    Refused {
        #[source]
        cause: SinkError,
        analysis: Box<RefusalAnalysis>,
    },
    #[error(transparent)]
    Route(#[from] RouteSpecError),
    /// Another relay holds the slot, and the options do not allow waiting.
    #[error("slot `{slot}` is held by another process")]
    SlotHeld {
        /// Replication slot.
        slot: String,
    },
    /// No broker has answered during the whole retry budget.
    #[error("no Kafka broker has answered for {seconds} s")]
    BrokersAway {
        /// Without an answer.
        seconds: u64,
    },
    /// The brokers answer but do not store records.
    #[error(
        "the Kafka brokers answer, but have stored nothing for {seconds} s; {records} records are in flight"
    )]
    NothingStored {
        /// Without progress of the oldest transaction.
        seconds: u64,
        records: u64,
    },
    /// The drain exceeded its time limit, or Postgres disconnected before its end.
    #[error("the drain ended {}", unfinished(*records))]
    GraceExpired {
        /// Sent and not confirmed.
        records: u64,
    },
    /// A second signal stopped the relay.
    #[error("stopped at once with {records} records unconfirmed")]
    Aborted {
        /// Sent and not confirmed.
        records: u64,
    },
    #[error("gave up after {seconds} s without progress")]
    GaveUp {
        seconds: u64,
        #[source]
        last: Box<RelayError>,
    },
    /// The control plane did not report the slot's position in time.
    #[error("the slot's position is not known: Postgres does not answer")]
    NoAnswer,
    /// The publication or a table was replaced between the first check and the take-over of the
    /// slot.
    #[error("the publication or a table changed while the session began")]
    SourceChanged,
    #[error("the relay's thread could not be started or ended abnormally")]
    Thread,
}

impl RelayError {
    /// Adds the position up to which the relay has delivered.
    pub(super) fn after(self, settled: Lsn) -> Self {
        match self {
            Self::Control(ControlError::SlotVanished { slot, .. }) if settled != Lsn::ZERO => {
                ControlError::SlotVanished { slot, delivered: Some(settled) }.into()
            }
            error => error,
        }
    }

    /// Adds the position if the error concerns the content of the log.
    pub(super) fn of_message(self, at: Lsn) -> Self {
        let is_of_a_message = match &self {
            Self::Pipeline(error) => error.is_of_a_message(),
            Self::Wal(error) => matches!(
                error,
                WalError::Malformed(_) | WalError::Protocol(_) | WalError::MessageTooLarge { .. }
            ),
            _ => false,
        };
        if is_of_a_message && at != Lsn::ZERO {
            Self::UnreadMessage { at, cause: Box::new(self) }
        } else {
            self
        }
    }

    pub(super) fn after_sessions(self, sessions: u32, slot: &str) -> Self {
        match self {
            Self::UnreadMessage { at, cause } => {
                Self::Unreadable { at, sessions, slot: slot.to_owned(), cause }
            }
            error => error,
        }
    }

    pub fn class(&self) -> Class {
        match self {
            Self::Wal(error) => error.class(),
            Self::Control(error) => error.class(),
            Self::Gate(GateError::StandbyBehind { .. }) => Class::Transient,
            Self::Gate(_)
            | Self::Unreadable { .. }
            | Self::Pipeline(PipelineError::Ledger(LedgerError::AbortedWithin { .. }))
            | Self::TableRows(
                TableRowsError::SlotMoved { .. }
                | TableRowsError::Delivered { .. }
                | TableRowsError::ProgressChanged { .. }
                | TableRowsError::Undecided { .. }
                | TableRowsError::Undrained { .. }
                | TableRowsError::Undecodable { .. }
                | TableRowsError::Rewritten { .. },
            ) => Class::Position,
            Self::Compare(error) => error.class(),
            Self::Topics(error) if error.is_transient() => Class::Transient,
            Self::Topics(error) if error.is_permission() => Class::Permission,
            Self::Sink(error) => class_of_sink(error),
            Self::Pipeline(error) if error.is_definite() => Class::Configuration,
            Self::Topics(_) | Self::Route(_) | Self::TableRows(_) => Class::Configuration,
            Self::SlotHeld { .. } => Class::Held,
            Self::Pipeline(_)
            | Self::UnreadMessage { .. }
            | Self::Refused { .. }
            | Self::DeadLetters(_)
            | Self::BrokersAway { .. }
            | Self::NothingStored { .. }
            | Self::GraceExpired { .. }
            | Self::Aborted { .. }
            | Self::GaveUp { .. }
            | Self::NoAnswer
            | Self::SourceChanged
            | Self::Thread => Class::Transient,
        }
    }

    /// How the session ends after everything before the faulty frame is confirmed and acknowledged.
    /// `None`: the session ends at once.
    pub(super) const fn put_off_until(&self) -> Option<End> {
        match self {
            Self::Pipeline(inner) if inner.is_definite() => Some(End::Drained),
            Self::UnreadMessage { .. }
            | Self::DeadLetters(_)
            | Self::Wal(WalError::PublicationMissing { .. }) => Some(End::Drained),
            Self::Wal(WalError::CatchUp(_)) => Some(End::ModeOver),
            _ => None,
        }
    }

    /// Whether the brokers refused a record. Positions settled before the record stay settled.
    pub(super) const fn is_of_a_record(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Pipeline(PipelineError::DeadLetterRefused { .. })
        )
    }

    pub fn is_final(&self) -> bool {
        match self {
            Self::DeadLetters(_)
            | Self::BrokersAway { .. }
            | Self::NothingStored { .. }
            | Self::GraceExpired { .. }
            | Self::Aborted { .. }
            | Self::GaveUp { .. }
            | Self::Thread => true,
            other => !other.class().is_transient(),
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Wal(error) => error.hint(),
            Self::Control(error) => error.hint(),
            Self::Gate(error) => Some(error.hint()),
            Self::TableRows(error) => Some(error.hint()),
            Self::Compare(error) => error.hint(),
            Self::Topics(error) => error.hint(),
            // The default retention would remove the dead letters after a week.
            Self::DeadLetters(SinkError::UnknownTopic { topic }) => Some(format!(
                "`postrider setup --topics` creates it with retention.ms=-1, which keeps what is in it; or: \
                 kafka-topics.sh --bootstrap-server BROKER --create --topic '{topic}' --partitions 3 \
                 --config retention.ms=-1"
            )),
            Self::Sink(error) | Self::DeadLetters(error) | Self::Refused { cause: error, .. } => {
                error.hint()
            }
            Self::Pipeline(error) => error.hint(),
            Self::UnreadMessage { .. } => Some(
                "nothing is lost: every row stays in Postgres; the relay tries again, and ends after several sessions \
                 that end at this position"
                    .to_owned(),
            ),
            Self::Unreadable { slot, .. } => Some(unreadable_hint(slot)),
            Self::Route(error) => error.hint(),
            Self::SlotHeld { slot } => Some(format!(
                "find the session that uses the slot: SELECT active_pid FROM pg_replication_slots \
                 WHERE slot_name = '{slot}'; a command needs the slot for itself, and `postrider \
                 run` waits as hot standby without --no-wait"
            )),
            Self::BrokersAway { .. } => Some(
                "check kafka.brokers and the network; nothing is lost: every row stays in Postgres"
                    .to_owned(),
            ),
            Self::NothingStored { .. } => Some(
                "look for partitions below min.insync.replicas (kafka-topics.sh --describe \
                 --under-min-isr-partitions) and in the brokers' logs; nothing is lost: every row \
                 stays in Postgres"
                    .to_owned(),
            ),
            Self::GraceExpired { .. } | Self::Aborted { .. } => Some(
                "nothing is lost: the next run delivers them again; raise shutdown.grace if the \
                 brokers are only slow"
                    .to_owned(),
            ),
            Self::GaveUp { last, .. } => last.hint(),
            Self::NoAnswer => Some(
                "nothing to do: the relay tries again; if it repeats for minutes, look at the \
                 server's load, for locks on its catalogs (pg_stat_activity), and whether the \
                 publication has very many tables (FOR ALL TABLES)"
                    .to_owned(),
            ),
            Self::SourceChanged => Some(
                "nothing to do: the next session checks again; if it repeats for minutes, find \
                 the session that keeps changing the publication or the table"
                    .to_owned(),
            ),
            Self::Thread => Some(
                "nothing is lost: start again; look for a panic above, and check the limits on \
                 threads (ulimit -u, TasksMax=, --pids-limit)"
                    .to_owned(),
            ),
        }
    }

    pub(crate) fn part(&self) -> FailedPart {
        match self {
            Self::GaveUp { last, .. } => last.part(),
            Self::Gate(_) | Self::SlotHeld { .. } => FailedPart::Slot,
            Self::Control(error) if error.is_of_slot() => FailedPart::Slot,
            _ => match self.reason() {
                "postgres" => FailedPart::Postgres,
                "pipeline" | "other" => FailedPart::Relay,
                _ => FailedPart::Kafka,
            },
        }
    }

    /// Value of the `reason` label of the restart counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Wal(_)
            | Self::Control(_)
            | Self::Gate(_)
            | Self::TableRows(_)
            | Self::NoAnswer
            | Self::SourceChanged => "postgres",
            Self::Sink(SinkError::BatchRefused { .. }) | Self::Refused { .. } => "batch_refused",
            Self::Sink(SinkError::CodecRefused { .. }) => "codec_refused",
            Self::Sink(SinkError::Ambiguous(_)) => "ambiguous_commit",
            Self::Sink(SinkError::Fenced(_)) => "fenced",
            Self::Sink(_)
            | Self::Compare(_)
            | Self::DeadLetters(_)
            | Self::BrokersAway { .. }
            | Self::NothingStored { .. } => "kafka",
            Self::Pipeline(_) | Self::Route(_) => "pipeline",
            Self::UnreadMessage { cause, .. } | Self::Unreadable { cause, .. } => cause.reason(),
            Self::SlotHeld { .. } => "slot_held",
            _ => "other",
        }
    }
}

impl From<SessionError<SinkError>> for RelayError {
    fn from(error: SessionError<SinkError>) -> Self {
        match error {
            SessionError::Pipeline(error) => error.into(),
            SessionError::Sink(error) => error.into(),
            SessionError::Silent { seconds } => WalError::Silent { seconds }.into(),
            SessionError::Aborted { records } => Self::Aborted { records },
            SessionError::GraceExpired { records } => Self::GraceExpired { records },
        }
    }
}

impl From<CompareError> for RelayError {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Wal(error) => error.into(),
            CompareError::Topics(error) => error.into(),
            CompareError::Pipeline(error) => error.into(),
            error => Self::Compare(error),
        }
    }
}

impl From<SpillError> for RelayError {
    fn from(error: SpillError) -> Self {
        Self::Compare(error.into())
    }
}

impl From<Stalled> for RelayError {
    fn from(stalled: Stalled) -> Self {
        match stalled {
            Stalled::BrokersAway { seconds } => Self::BrokersAway { seconds },
            Stalled::NothingStored { seconds, records } => Self::NothingStored { seconds, records },
        }
    }
}

/// Safe steps come first. The loss is named before the step that causes it.
fn unreadable_hint(slot: &str) -> String {
    format!(
        "nothing is lost: slot `{slot}` keeps every row from there on, if it is neither dropped nor advanced\n\
         install the newest release of Postrider, which may read the message, and start it again\n\
         report the message with the server's version: SELECT version();\n\
         if no release reads it: `postrider repair`, then `postrider repair --execute --drop-slot`. \
         {REPAIR_UNREADABLE}"
    )
}

/// Without unconfirmed records, Postgres has not sent the end of a transaction.
fn unfinished(records: u64) -> String {
    match records {
        0 => "before it was complete; the next start may repeat rows".to_owned(),
        records => format!("with {records} records unconfirmed"),
    }
}

const fn class_of_sink(error: &SinkError) -> Class {
    match error {
        SinkError::Authentication(_) => Class::Permission,
        SinkError::Settings(_)
        | SinkError::Tls(_)
        | SinkError::CertificateInvalid { .. }
        | SinkError::NoLogin(_)
        | SinkError::NoIdempotence(_)
        | SinkError::NoTransactions { .. } => Class::Configuration,
        SinkError::Progress(_) => Class::Position,
        _ => Class::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_without_unconfirmed_records_says_what_is_missing() {
        let text = |records| RelayError::GraceExpired { records }.to_string();
        assert_eq!(text(7), "the drain ended with 7 records unconfirmed");
        assert_eq!(
            text(0),
            "the drain ended before it was complete; the next start may repeat rows"
        );
    }
}
