//! Why the relay, or one of its sessions, ended.
//!
//! Input: the errors of the crates below (Postgres, Kafka, core). Output: [`RelayError`], with its class,
//! which decides the exit code; whether the relay ends with it or tries again; whether everything before
//! the error is delivered first; the operator's hint; and the `reason` label of the restart counter.

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

/// Why the relay, or one of its sessions, ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The replication connection.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// SQL on the side: preflight, set-up.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// There is no position to carry on from.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// Rows cannot be read from their tables.
    #[error(transparent)]
    TableRows(#[from] TableRowsError),
    /// Tables and topics cannot be compared.
    #[error(transparent)]
    Compare(CompareError),
    /// Kafka's topics.
    #[error(transparent)]
    Topics(#[from] TopicsError),
    /// The producer.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The core met something it must not pass over.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A message of the log cannot be read. The next session meets it again.
    #[error("{cause}, at {at} of the log")]
    UnreadMessage {
        /// Where it is.
        at: Lsn,
        /// Why.
        #[source]
        cause: Box<RelayError>,
    },
    /// Several sessions have ended at the same message of the log.
    #[error(
        "{sessions} sessions ended at {at} of the log, where a message cannot be read: {cause}"
    )]
    Unreadable {
        /// Where it is.
        at: Lsn,
        /// How many.
        sessions: u32,
        /// The slot, which keeps it.
        slot: String,
        /// Why.
        #[source]
        cause: Box<RelayError>,
    },
    /// The dead-letter topic is missing or forbidden: rows that cannot be delivered can go nowhere,
    /// and nothing behind them may.
    #[error("dead letters cannot be stored: {0}")]
    DeadLetters(#[source] SinkError),
    /// The brokers refused records, and with them a batch or a Kafka transaction: the next session
    /// sends them alone, or makes dead letters of them.
    #[error("{cause}")]
    Refused {
        /// Why.
        #[source]
        cause: SinkError,
        /// What the next session knows of them.
        analysis: Box<RefusalAnalysis>,
    },
    /// The route does not compile.
    #[error(transparent)]
    Route(#[from] RouteSpecError),
    /// Another relay has the slot, and we were told not to wait.
    #[error("slot `{slot}` is held by another process")]
    SlotHeld {
        /// The slot.
        slot: String,
    },
    /// No broker has answered for the whole retry budget.
    #[error("no Kafka broker has answered for {seconds} s")]
    BrokersAway {
        /// How long.
        seconds: u64,
    },
    /// Brokers answer, and store nothing.
    #[error(
        "the Kafka brokers answer, but have stored nothing for {seconds} s; {records} records are in flight"
    )]
    NothingStored {
        /// How long the oldest transaction has made no progress.
        seconds: u64,
        /// Sent, not confirmed.
        records: u64,
    },
    /// The drain took longer than it may, or Postgres went away before its end.
    #[error("the drain ended {}", unfinished(*records))]
    GraceExpired {
        /// Sent, not confirmed.
        records: u64,
    },
    /// A second signal.
    #[error("stopped at once with {records} records unconfirmed")]
    Aborted {
        /// Sent, not confirmed.
        records: u64,
    },
    /// The retry budget is used up.
    #[error("gave up after {seconds} s without progress")]
    GaveUp {
        /// Since the last progress.
        seconds: u64,
        /// The last failure.
        #[source]
        last: Box<RelayError>,
    },
    /// The control plane did not say in time what a beginning session must know.
    #[error("the slot's position is not known: Postgres does not answer")]
    NoAnswer,
    /// Publication or tables were replaced between the first look at them and the moment when the slot
    /// was ours.
    #[error("the publication or a table changed while the session began")]
    SourceChanged,
    /// The operating system denied us a thread.
    #[error("the relay's thread could not be started or ended abnormally")]
    Thread,
}

impl RelayError {
    /// The same of a relay that has delivered everything up to there, for whom that is of use.
    pub(super) fn after(self, settled: Lsn) -> Self {
        match self {
            Self::Control(ControlError::SlotVanished { slot, .. }) if settled != Lsn::ZERO => {
                ControlError::SlotVanished { slot, delivered: Some(settled) }.into()
            }
            error => error,
        }
    }

    /// Adds the position of the message that the error is about, if it is about what the log contains.
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

    /// The end of the relay, where so many sessions have ended with this at one message.
    pub(super) fn after_sessions(self, sessions: u32, slot: &str) -> Self {
        match self {
            Self::UnreadMessage { at, cause } => {
                Self::Unreadable { at, sessions, slot: slot.to_owned(), cause }
            }
            error => error,
        }
    }

    /// What it means for the next step.
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

    /// How a session ends for it once everything before the frame at fault is confirmed and acknowledged; `None` for
    /// what ends it at once.
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

    /// Whether the brokers refused a record, and what was settled before it is so.
    pub(super) const fn is_of_a_record(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Pipeline(PipelineError::DeadLetterRefused { .. })
        )
    }

    /// Whether the relay ends with it, rather than trying again.
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

    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Wal(error) => error.hint(),
            Self::Control(error) => error.hint(),
            Self::Gate(error) => Some(error.hint()),
            Self::TableRows(error) => Some(error.hint()),
            Self::Compare(error) => error.hint(),
            Self::Topics(error) => error.hint(),
            // Like other topics' retention its own would remove the letters after a week.
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
                "see who holds it: SELECT active_pid FROM pg_replication_slots WHERE slot_name = \
                 '{slot}'; a command needs the slot for itself, and `postrider run` waits as hot standby without --no-wait"
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
                 publication is of very many tables (FOR ALL TABLES)"
                    .to_owned(),
            ),
            Self::SourceChanged => Some(
                "nothing to do: the next session checks again; if it repeats for minutes, find \
                 out what keeps changing the publication or the table"
                    .to_owned(),
            ),
            Self::Thread => Some(
                "nothing is lost: start again; look for a panic above, and check the limits on \
                 threads (ulimit -u, TasksMax=, --pids-limit)"
                    .to_owned(),
            ),
        }
    }

    /// The part of the way from Postgres to Kafka that it is about.
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

    /// A word for the `reason` label of the restart counter.
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

/// The hint names what is safe first, and what is lost before the step that loses it.
fn unreadable_hint(slot: &str) -> String {
    format!(
        "nothing is lost: slot `{slot}` keeps every row from there on, if it is neither dropped nor advanced\n\
         install the newest release of Postrider, which may read the message, and start it again\n\
         report the message with the server's version: SELECT version();\n\
         if no release reads it: `postrider repair`, then `postrider repair --execute --drop-slot`. \
         {REPAIR_UNREADABLE}"
    )
}

/// What a drain that ran out of time left behind; without records, that is the rest of a transaction
/// which Postgres has not sent to its end.
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
