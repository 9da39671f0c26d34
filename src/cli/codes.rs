//! The stable error code of every situation (`PR-..`).
//!
//! Numbers are never reused. `PR-C` codes are in `config`, beside its mistakes. Invariant: one code stands
//! for one situation, whichever crate reports it, and has a line in docs/codes.md (`tests/tidy/codes.rs`).

use crate::dead_letters::DeadLettersError;
use postrider_core::pipeline::PipelineError;
use postrider_kafka::{ReaderError, SinkError, TopicsError};
use postrider_patterns::dead_letter::DeadLetterError;
use postrider_postgres::control::ControlError;
use postrider_postgres::wal::{Class, WalError};
use postrider_relay::GateError;

/// `PR-P001` to `PR-P029`.
pub(super) fn wal(error: &WalError) -> &'static str {
    match error {
        WalError::Unreachable { .. } => "PR-P001",
        WalError::TimedOut { .. } | WalError::LoginTimedOut { .. } => "PR-P002",
        WalError::TlsNotOffered { .. } => "PR-P003",
        WalError::TlsHandshake { .. } => "PR-P004",
        WalError::TlsFiles(_) => "PR-P005",
        WalError::PasswordMissing { .. } => "PR-P006",
        WalError::Authentication { .. } => "PR-P007",
        WalError::WrongSession { .. } => "PR-P008",
        WalError::SlotHeld { .. } => "PR-P009",
        WalError::PublicationMissing { .. } => "PR-P010",
        WalError::Closed => "PR-P011",
        WalError::Ended => "PR-P012",
        WalError::Io(_) => "PR-P013",
        WalError::Protocol(_) => "PR-P014",
        WalError::MessageTooLarge { .. } => "PR-P015",
        WalError::Silent { .. } => "PR-P016",
        WalError::Secret(_) => "PR-P018",
        WalError::Malformed(_) => "PR-R001",
        WalError::Server(_) => match error.class() {
            Class::Transient => "PR-P020",
            Class::Held => "PR-P009",
            Class::Permission => "PR-P021",
            Class::Configuration => "PR-P022",
            Class::Position => "PR-P023",
        },
    }
}

/// `PR-P030` to `PR-P059`, `PR-P070` and `PR-P071`; one situation has one code, whichever connection met it.
pub(super) fn control(error: &ControlError) -> &'static str {
    match error {
        ControlError::Connection { source, .. } => wal(source),
        ControlError::WalLevel { .. } => "PR-P030",
        ControlError::MessagesUnknown { .. } => "PR-P050",
        ControlError::RoleMayNotReplicate { .. } => "PR-P031",
        ControlError::TableMissing { .. } => "PR-P032",
        ControlError::TableUnsuitable { .. } => "PR-P033",
        ControlError::ColumnsMissing { .. } => "PR-P034",
        ControlError::PublicationMissing { .. } => "PR-P010",
        ControlError::PublicationWithoutInserts { .. } => "PR-P035",
        ControlError::PublicationLacksTable { .. } => "PR-P036",
        ControlError::PublicationFiltersRows { .. } => "PR-P037",
        ControlError::PublicationHidesColumns { .. } => "PR-P038",
        ControlError::SlotMissing { .. } => "PR-P039",
        ControlError::SlotForeign { .. } => "PR-P040",
        ControlError::SlotLost { .. } => "PR-P041",
        ControlError::SlotTwoPhase { .. } => "PR-P071",
        ControlError::SlotHeld { .. } => "PR-P009",
        ControlError::SlotTaken { .. } => "PR-P059",
        ControlError::SlotBlocked { .. } => "PR-P042",
        ControlError::NoFreeSlot { .. } => "PR-P043",
        ControlError::CreationForbidden { .. } => "PR-P044",
        ControlError::ReadOnly { .. } => "PR-P045",
        ControlError::SlotVanished { .. } => "PR-P046",
        ControlError::OtherCluster { .. } => "PR-P047",
        ControlError::PublicationReplaced { .. } => "PR-P048",
        ControlError::TableReplaced { .. } => "PR-P049",
        ControlError::MemberReplaced { .. } => "PR-P067",
        ControlError::TableForbidden { .. } => "PR-P051",
        ControlError::RowsBefore { .. } => "PR-P052",
        ControlError::OtherServer => "PR-P053",
        ControlError::PartUnsuitable { .. } => "PR-P055",
        ControlError::Promoted => "PR-P056",
        ControlError::TablesLeftOut { .. } => "PR-P058",
        ControlError::StandbyReached { .. } => "PR-P070",
    }
}

/// `PR-P060` to `PR-P069`; one situation has one code, whoever met it.
pub(super) const fn gate(error: &GateError) -> &'static str {
    match error {
        GateError::OtherSource { .. } => "PR-P060",
        GateError::Restored { .. } | GateError::OtherLog { .. } => "PR-P061",
        GateError::OtherTimeline { .. } => "PR-P062",
        GateError::Gap { .. } => "PR-P063",
        GateError::NoProgress { .. } => "PR-P064",
        GateError::SlotGone { .. } => "PR-P066",
        GateError::TablesChanged { .. } => "PR-P065",
        GateError::PrefixesChanged { .. } => "PR-P068",
        GateError::PublicationReplaced { .. } => "PR-P048",
        GateError::MemberReplaced { .. } => "PR-P067",
        GateError::TableReplaced { .. } => "PR-P049",
    }
}

/// `PR-K001` to `PR-K009`, `PR-K022` to `PR-K029`, and `PR-K030` to `PR-K039` for transactions and
/// progress.
pub(super) const fn sink(error: &SinkError) -> &'static str {
    match error {
        SinkError::Settings(_) => "PR-K001",
        SinkError::Fatal(_) => "PR-K002",
        SinkError::Authentication(_) => "PR-K003",
        SinkError::LoginRevoked(_) => "PR-K022",
        SinkError::Tls(_) => "PR-K004",
        SinkError::UnknownTopic { .. } => "PR-K005",
        SinkError::Unauthorised { .. } => "PR-K006",
        SinkError::Forbidden(_) => "PR-K023",
        SinkError::IdForbidden { .. } => "PR-K036",
        SinkError::BatchRefused { .. } => "PR-K007",
        SinkError::Delivery { .. } => "PR-K008",
        SinkError::NoLogin(_) => "PR-K009",
        SinkError::Ambiguous(_) => "PR-K030",
        SinkError::Fenced(_) => "PR-K031",
        SinkError::NotReady(_) => "PR-K032",
        SinkError::NoTransactions { .. } => "PR-K033",
        SinkError::ProgressUnread { .. } => "PR-K034",
        SinkError::Progress(_) => "PR-K035",
    }
}

/// `PR-K010` to `PR-K019`.
pub(super) const fn reader(error: &ReaderError) -> &'static str {
    match error {
        ReaderError::Settings(_) => "PR-K001",
        ReaderError::NoEntry(error) => sink(error),
        ReaderError::Unreachable { .. } => "PR-K010",
        ReaderError::UnknownTopic(_) => "PR-K005",
        ReaderError::UnknownPartition { .. } => "PR-K011",
        ReaderError::Unauthorised(_) => "PR-K017",
        ReaderError::OffsetGone(_) => "PR-K012",
        ReaderError::Late { .. } => "PR-K013",
        ReaderError::Client(_) => "PR-K014",
    }
}

/// `PR-K040` to `PR-K049`.
pub(super) const fn topics(error: &TopicsError) -> &'static str {
    match error {
        TopicsError::Settings(_) => "PR-K001",
        TopicsError::NoEntry(error) => sink(error),
        TopicsError::Client(_) => "PR-K040",
        TopicsError::Unsupported => "PR-K041",
        TopicsError::Unauthorised { .. } => "PR-K045",
        TopicsError::Uncreated { .. } => "PR-K042",
        TopicsError::Refused { .. } => "PR-K043",
        TopicsError::Unfit(_) => "PR-K044",
    }
}

/// `PR-R001` to `PR-R009`.
pub(super) const fn pipeline(error: &PipelineError) -> &'static str {
    match error {
        PipelineError::Decode(_) => "PR-R001",
        PipelineError::Outbox(_) => "PR-R002",
        PipelineError::Ledger(_) => "PR-R003",
        PipelineError::Rejected { .. } => "PR-R004",
        PipelineError::DeadLetterRefused { .. } => "PR-R005",
        PipelineError::Updated { .. } => "PR-R006",
        // What the gate would have said, had the log been read by then.
        PipelineError::OtherLog { .. } => "PR-P061",
        PipelineError::NotSent => "PR-R007",
    }
}

/// `PR-D001` to `PR-D019`; what the brokers do has their code.
pub(super) const fn dead_letters(error: &DeadLettersError) -> &'static str {
    match error {
        DeadLettersError::Topic(DeadLetterError::Reader(error)) => reader(error),
        DeadLettersError::Topic(
            DeadLetterError::Sink(error) | DeadLetterError::Unconfirmed { source: error, .. },
        ) => sink(error),
        // What a consumer without a topic has none of.
        DeadLettersError::Topic(
            DeadLetterError::Missing(_) | DeadLetterError::NoDeadLetters { .. },
        ) => "PR-D001",
        DeadLettersError::Several { .. } => "PR-D002",
        DeadLettersError::Hindered { .. } => "PR-D003",
        DeadLettersError::Circular(_) => "PR-D004",
        DeadLettersError::Topic(DeadLetterError::Gone(_)) => "PR-D005",
        DeadLettersError::Topic(DeadLetterError::Refused { .. }) => "PR-D006",
        DeadLettersError::Topic(DeadLetterError::ReceiptRefused { .. }) => "PR-D007",
        DeadLettersError::Topic(DeadLetterError::Unread { .. }) => "PR-D008",
        DeadLettersError::Topic(DeadLetterError::Silent { .. }) => "PR-D009",
        DeadLettersError::Topic(DeadLetterError::Aborted { .. }) => "PR-D010",
        DeadLettersError::Reserved { .. } => "PR-D011",
    }
}
