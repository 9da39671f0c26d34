//! Declares every stable error code, such as `PR-P009`, and maps errors to codes.
//!
//! Invariant: a code means one situation, for every connection and command, and has a line in
//! docs/codes.md. A number is never reused. Exit codes are decided in `failures`.

use crate::dead_letters::DeadLettersError;
use crate::verify::VerifyError;
use postrider_config::MistakeKind;
use postrider_core::pipeline::PipelineError;
use postrider_kafka::{ReaderError, SinkError, TopicsError};
use postrider_patterns::dead_letter::DeadLetterError;
use postrider_postgres::control::prune::PruneError;
use postrider_postgres::control::{ControlError, StandbyError};
use postrider_postgres::wal::{Class, PollError, WalError};
use postrider_relay::{GateError, TableRowsError};

macro_rules! codes {
    ($($code:ident)*) => {
        /// The stable code of a situation; docs/codes.md says which.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ErrorCode {
            $(#[doc = concat!("`PR-", stringify!($code), "`")] $code,)*
        }

        impl ErrorCode {
            /// As it is printed: `PR-P009`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => concat!("PR-", stringify!($code)),)*
                }
            }

            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$code),*];
        }
    };
}

// Configuration, Postgres, Kafka, rows, commands on dead letters, verify, HTTP, the rest.
codes! {
    C001 C002 C003 C004 C005 C006 C007 C008 C009 C010 C011 C012
    P001 P002 P003 P004 P005 P006 P007 P008 P009 P010 P011 P012 P013 P014 P015 P016
    P018 P020 P021 P022 P023 P024 P030 P031 P032 P033 P034 P035 P036 P037 P038 P039 P040
    P041 P042 P043 P044 P045 P046 P047 P048 P049 P050 P051 P052 P053 P054 P055 P056
    P057 P058 P059 P060 P061 P062 P063 P064 P065 P066 P067 P068 P070 P071 P072 P073
    P074 P075 P076 P077 P078 P079 P080 P081 P082 P083 P084 P085 P086 P087 P088 P089
    P090 P091 P092 P096 P097 P098 P099 P100 P101 P102 P103 P104 P105
    P106 P107 P108
    P110 P111 P112 P113 P114 P115 P116 P117 P118 P119
    P120 P121 P130
    K001 K002 K003 K004 K005 K006 K007 K008 K009 K010 K011 K012 K013 K014 K016 K017
    K020 K021 K022 K023 K024 K025 K030 K031 K032 K033 K034 K035 K036 K040 K041 K042 K043 K044
    K045
    R001 R002 R003 R004 R005 R006 R007 R008 R010
    D001 D002 D003 D004 D005 D006 D007 D008 D009 D010 D011 D012
    V001 V002 V003 V004
    H001 H002 H010 H011 H012 H013 H014 H015
    X001 X002 X003 X004 X005 X006 X007 X008 X010 X011 X012 X014 X015 X020 X021 X022
}

/// Each number is used in one place. A situation with several places has a name.
impl ErrorCode {
    pub(super) const FILE_UNREADABLE: Self = Self::C001;
    /// Before the login, the address is reported too.
    pub(super) const SERVER_TIMED_OUT: Self = Self::P002;
    pub(super) const POSTGRES_TLS: Self = Self::P004;
    pub(super) const SLOT_HELD: Self = Self::P009;
    pub(super) const PUBLICATION_MISSING: Self = Self::P010;
    pub(super) const MAY_NOT_REPLICATE: Self = Self::P031;
    pub(super) const TABLE_MISSING: Self = Self::P032;
    pub(super) const SLOT_MISSING: Self = Self::P039;
    pub(super) const SLOT_UNFINISHED: Self = Self::P042;
    pub(super) const SLOT_UNDELIVERED: Self = Self::P107;
    pub(super) const NO_FREE_SLOT: Self = Self::P043;
    pub(super) const PUBLICATION_REPLACED: Self = Self::P048;
    pub(super) const TABLE_REPLACED: Self = Self::P049;
    pub(super) const TABLE_FORBIDDEN: Self = Self::P051;
    pub(super) const SERVER_IS_A_COPY: Self = Self::P061;
    pub(super) const MEMBER_REPLACED: Self = Self::P067;
    pub(super) const KAFKA_SETTINGS: Self = Self::K001;
    pub(super) const KAFKA_TLS: Self = Self::K004;
    pub(super) const TOPIC_MISSING: Self = Self::K005;
    /// Shared by the sink's error and the session's, which also has the records.
    pub(super) const BATCH_REFUSED: Self = Self::K007;
    pub(super) const NOT_PGOUTPUT: Self = Self::R001;
    pub(super) const DEAD_LETTER_MISSING: Self = Self::D001;
    pub(super) const ALL_REJECTED: Self = Self::D012;
    pub(super) const CONTROL_TOKEN: Self = Self::H011;
    pub(super) const RELAY_SILENT: Self = Self::H013;
    pub(super) const CONTROL_FORBIDDEN: Self = Self::H014;
    pub(super) const CONTROL_REFUSED: Self = Self::H015;
    pub(super) const STDOUT: Self = Self::X001;
    pub(super) const USAGE: Self = Self::X004;
}

pub(super) const fn mistake(kind: &MistakeKind) -> ErrorCode {
    match kind {
        MistakeKind::Syntax(_) => ErrorCode::C002,
        MistakeKind::UnknownKey { .. } => ErrorCode::C003,
        MistakeKind::WrongType { .. } => ErrorCode::C004,
        MistakeKind::Invalid { .. } => ErrorCode::C005,
        MistakeKind::Unsupported { .. } => ErrorCode::C006,
        MistakeKind::RefusedProperty { .. } => ErrorCode::C007,
        MistakeKind::UnreadableFile { .. } => ErrorCode::C008,
    }
}

pub(super) fn wal(error: &WalError) -> ErrorCode {
    match error {
        WalError::Unreachable { .. } => ErrorCode::P001,
        WalError::TimedOut { .. } | WalError::LoginTimedOut { .. } => ErrorCode::SERVER_TIMED_OUT,
        WalError::TlsNotOffered { .. } => ErrorCode::P003,
        WalError::TlsHandshake { .. } | WalError::CertificateInvalid { .. } => {
            ErrorCode::POSTGRES_TLS
        }
        WalError::TlsFiles(_) => ErrorCode::P005,
        WalError::PasswordMissing { .. } => ErrorCode::P006,
        WalError::Authentication { .. } => ErrorCode::P007,
        WalError::WrongSession { .. } => ErrorCode::P008,
        WalError::SlotHeld { .. } => ErrorCode::SLOT_HELD,
        WalError::PublicationMissing { .. } => ErrorCode::PUBLICATION_MISSING,
        WalError::Closed => ErrorCode::P011,
        WalError::Ended => ErrorCode::P012,
        WalError::Io(_) => ErrorCode::P013,
        WalError::Protocol(_) => ErrorCode::P014,
        WalError::MessageTooLarge { .. } => ErrorCode::P015,
        WalError::Silent { .. } => ErrorCode::P016,
        WalError::Secret(_) => ErrorCode::P018,
        WalError::RowTooLarge { .. } => ErrorCode::P081,
        WalError::OrderColumnMissing { .. } => ErrorCode::P082,
        WalError::QueryUntranslatable => ErrorCode::P090,
        WalError::Malformed(_) => ErrorCode::NOT_PGOUTPUT,
        WalError::Poll(error) => poll(error),
        WalError::CatchUp(_) => ErrorCode::P130,
        WalError::Pooler { .. } => ErrorCode::P024,
        WalError::Server(_) => match error.class() {
            Class::Transient => ErrorCode::P020,
            Class::Held => ErrorCode::SLOT_HELD,
            Class::Permission => ErrorCode::P021,
            Class::Configuration => ErrorCode::P022,
            Class::Position => ErrorCode::P023,
        },
    }
}

const fn poll(error: &PollError) -> ErrorCode {
    match error {
        PollError::Forbidden { .. } => ErrorCode::P111,
        PollError::Refused { .. } => ErrorCode::P112,
        PollError::NotMarked { .. } => ErrorCode::P113,
        PollError::ColumnMissing { .. } => ErrorCode::P114,
        PollError::NeverPending { .. } => ErrorCode::P115,
        PollError::NoTime { .. } => ErrorCode::P116,
    }
}

pub(super) fn control(error: &ControlError) -> ErrorCode {
    match error {
        ControlError::Connection { source, .. } => wal(source),
        ControlError::WalLevel { .. } => ErrorCode::P030,
        ControlError::MessagesUnknown { .. } => ErrorCode::P050,
        ControlError::RoleMayNotReplicate { .. } => ErrorCode::MAY_NOT_REPLICATE,
        ControlError::TableMissing { .. } => ErrorCode::TABLE_MISSING,
        ControlError::TableUnsuitable { .. } => ErrorCode::P033,
        ControlError::ColumnsMissing { .. } => ErrorCode::P034,
        ControlError::PublicationMissing { .. } => ErrorCode::PUBLICATION_MISSING,
        ControlError::PublicationWithoutInserts { .. } => ErrorCode::P035,
        ControlError::PublicationLacksTable { .. } => ErrorCode::P036,
        ControlError::PublicationFiltersRows { .. } => ErrorCode::P037,
        ControlError::PublicationHidesColumns { .. } => ErrorCode::P038,
        ControlError::SlotMissing { .. } => ErrorCode::SLOT_MISSING,
        ControlError::SlotForeign { .. } => ErrorCode::P040,
        ControlError::SlotLost { .. } => ErrorCode::P041,
        ControlError::SlotTwoPhase { .. } => ErrorCode::P071,
        ControlError::SlotHeld { .. } => ErrorCode::SLOT_HELD,
        ControlError::SlotTaken { .. } => ErrorCode::P059,
        ControlError::SlotBlocked { .. } | ControlError::SlotUnfinished { .. } => {
            ErrorCode::SLOT_UNFINISHED
        }
        ControlError::NoFreeSlot { .. } => ErrorCode::NO_FREE_SLOT,
        ControlError::CreationForbidden { .. } => ErrorCode::P044,
        ControlError::Standby(StandbyError::ReadOnly { .. }) => ErrorCode::P045,
        ControlError::Standby(StandbyError::NoStandby { .. }) => ErrorCode::P118,
        ControlError::Standby(StandbyError::AwaitsSnapshot { .. }) => ErrorCode::P119,
        ControlError::SlotVanished { .. } => ErrorCode::P046,
        ControlError::OtherCluster { .. } => ErrorCode::P047,
        ControlError::PublicationReplaced { .. } => ErrorCode::PUBLICATION_REPLACED,
        ControlError::TableReplaced { .. } => ErrorCode::TABLE_REPLACED,
        ControlError::MemberReplaced { .. } => ErrorCode::MEMBER_REPLACED,
        ControlError::TableForbidden { .. } => ErrorCode::TABLE_FORBIDDEN,
        ControlError::RowsBefore { .. } => ErrorCode::P052,
        ControlError::OtherServer => ErrorCode::P053,
        ControlError::PartUnsuitable { .. } => ErrorCode::P055,
        ControlError::Promoted => ErrorCode::P056,
        ControlError::TablesLeftOut { .. } => ErrorCode::P058,
        ControlError::StandbyReached { .. } => ErrorCode::P070,
    }
}

pub(super) const fn table_rows(error: &TableRowsError) -> ErrorCode {
    match error {
        TableRowsError::SlotExists { .. } => ErrorCode::P083,
        TableRowsError::SlotMoved { .. } => ErrorCode::P084,
        TableRowsError::OrderNotUnique { .. } => ErrorCode::P085,
        TableRowsError::OrderNullable { .. } => ErrorCode::P086,
        TableRowsError::FilterColumnMissing { .. } => ErrorCode::P087,
        TableRowsError::OrderChanged { .. } => ErrorCode::P088,
        TableRowsError::TablesChanged { .. } => ErrorCode::P091,
        TableRowsError::Rewritten { .. } => ErrorCode::P097,
        TableRowsError::Delivered { .. } => ErrorCode::P089,
        TableRowsError::NothingMissing { .. } => ErrorCode::P101,
        TableRowsError::RowsUnknown { .. } => ErrorCode::P102,
        TableRowsError::ScopeChanged { .. } => ErrorCode::P103,
        TableRowsError::ProgressChanged { .. } => ErrorCode::P104,
        TableRowsError::Ended { .. } => ErrorCode::P105,
        TableRowsError::Undecided { .. } => ErrorCode::P106,
        TableRowsError::Undrained { .. } | TableRowsError::Undecodable { .. } => {
            ErrorCode::SLOT_UNDELIVERED
        }
        TableRowsError::TimeWithoutZone { .. } => ErrorCode::P108,
    }
}

pub(super) fn prune(error: &PruneError) -> ErrorCode {
    match error {
        PruneError::Control(error) => control(error),
        PruneError::SlotMissing { .. } => ErrorCode::P072,
        PruneError::BeginningUnknown { .. } => ErrorCode::P073,
        PruneError::SystemUnknown { .. } => ErrorCode::P074,
        PruneError::Standby => ErrorCode::P075,
        PruneError::Forbidden { .. } => ErrorCode::P076,
        PruneError::RowsHidden { .. } => ErrorCode::P077,
        PruneError::AgeUnsuitable { .. } => ErrorCode::P078,
        PruneError::Needed { .. } => ErrorCode::P096,
        PruneError::NotByAge { .. } => ErrorCode::P098,
        PruneError::DayOccupied { .. } => ErrorCode::P099,
        PruneError::DayTaken { .. } => ErrorCode::P117,
        PruneError::IndexMissing { .. } => ErrorCode::P079,
        PruneError::Locked { .. } => ErrorCode::P092,
    }
}

pub(super) const fn gate(error: &GateError) -> ErrorCode {
    match error {
        GateError::OtherSource { .. } => ErrorCode::P060,
        GateError::Restored { .. } | GateError::OtherLog { .. } => ErrorCode::SERVER_IS_A_COPY,
        GateError::StandbyBehind { .. } => ErrorCode::P121,
        GateError::OtherTimeline { .. } => ErrorCode::P062,
        GateError::Gap { .. } => ErrorCode::P063,
        GateError::NoProgress { .. } => ErrorCode::P064,
        GateError::SlotGone { .. } => ErrorCode::P066,
        GateError::BackfillUnfinished { .. } => ErrorCode::P080,
        GateError::RepairUnfinished { .. } => ErrorCode::P100,
        GateError::TablesChanged { .. } => ErrorCode::P065,
        GateError::PrefixesChanged { .. } => ErrorCode::P068,
        GateError::PublicationReplaced { .. } => ErrorCode::PUBLICATION_REPLACED,
        GateError::MemberReplaced { .. } => ErrorCode::MEMBER_REPLACED,
        GateError::TableReplaced { .. } => ErrorCode::TABLE_REPLACED,
    }
}

pub(super) const fn sink(error: &SinkError) -> ErrorCode {
    match error {
        SinkError::Settings(_) => ErrorCode::KAFKA_SETTINGS,
        SinkError::Fatal(_) => ErrorCode::K002,
        SinkError::Authentication(_) => ErrorCode::K003,
        SinkError::LoginRevoked(_) => ErrorCode::K022,
        SinkError::Tls(_) | SinkError::CertificateInvalid { .. } => ErrorCode::KAFKA_TLS,
        SinkError::UnknownTopic { .. } => ErrorCode::TOPIC_MISSING,
        SinkError::Unauthorised { .. } => ErrorCode::K006,
        SinkError::Forbidden(_) => ErrorCode::K023,
        SinkError::IdForbidden { .. } => ErrorCode::K036,
        SinkError::BatchRefused { .. } => ErrorCode::BATCH_REFUSED,
        SinkError::CodecRefused { .. } => ErrorCode::K024,
        SinkError::NoIdempotence(_) => ErrorCode::K025,
        SinkError::Delivery { .. } => ErrorCode::K008,
        SinkError::NoLogin(_) => ErrorCode::K009,
        SinkError::Ambiguous(_) => ErrorCode::K030,
        SinkError::Fenced(_) => ErrorCode::K031,
        SinkError::NotReady(_) => ErrorCode::K032,
        SinkError::NoTransactions { .. } => ErrorCode::K033,
        SinkError::ProgressUnread { .. } => ErrorCode::K034,
        SinkError::Progress(_) => ErrorCode::K035,
    }
}

pub(super) const fn reader(error: &ReaderError) -> ErrorCode {
    match error {
        ReaderError::Settings(_) => ErrorCode::KAFKA_SETTINGS,
        ReaderError::NoEntry(error) => sink(error),
        ReaderError::Unreachable { .. } => ErrorCode::K010,
        ReaderError::UnknownTopic(_) => ErrorCode::TOPIC_MISSING,
        ReaderError::UnknownPartition { .. } => ErrorCode::K011,
        ReaderError::Unauthorised(_) => ErrorCode::K017,
        ReaderError::OffsetGone(_) => ErrorCode::K012,
        ReaderError::Late { .. } => ErrorCode::K013,
        ReaderError::Client(_) => ErrorCode::K014,
    }
}

pub(super) const fn topics(error: &TopicsError) -> ErrorCode {
    match error {
        TopicsError::Settings(_) => ErrorCode::KAFKA_SETTINGS,
        TopicsError::NoEntry(error) => sink(error),
        TopicsError::Client(_) => ErrorCode::K040,
        TopicsError::Unsupported => ErrorCode::K041,
        TopicsError::Unauthorised { .. } => ErrorCode::K045,
        TopicsError::Uncreated { .. } => ErrorCode::K042,
        TopicsError::Refused { .. } => ErrorCode::K043,
        TopicsError::Unfit(_) => ErrorCode::K044,
    }
}

pub(super) const fn pipeline(error: &PipelineError) -> ErrorCode {
    match error {
        PipelineError::Decode(_) => ErrorCode::NOT_PGOUTPUT,
        PipelineError::Outbox(_) => ErrorCode::R002,
        PipelineError::Ledger(_) => ErrorCode::R003,
        PipelineError::Rejected { .. } => ErrorCode::R004,
        PipelineError::DeadLetterRefused { .. } => ErrorCode::R005,
        PipelineError::Updated { .. } => ErrorCode::R006,
        // The gate would report this if the log had been read then.
        PipelineError::OtherLog { .. } => ErrorCode::SERVER_IS_A_COPY,
        PipelineError::NotSent => ErrorCode::R007,
    }
}

pub(super) fn verify(error: &VerifyError) -> ErrorCode {
    match error {
        VerifyError::Wal(error) => wal(error),
        VerifyError::Reader(error) => reader(error),
        VerifyError::Topics(error) => topics(error),
        VerifyError::Pipeline(error) => pipeline(error),
        VerifyError::Spill(_) => ErrorCode::V001,
        VerifyError::ColumnMissing { .. } => ErrorCode::V002,
        VerifyError::NoTime { .. } => ErrorCode::V003,
        VerifyError::Stopped => ErrorCode::V004,
    }
}

pub(super) const fn dead_letters(error: &DeadLettersError) -> ErrorCode {
    match error {
        DeadLettersError::Topic(DeadLetterError::Reader(error)) => reader(error),
        DeadLettersError::Topic(
            DeadLetterError::Sink(error) | DeadLetterError::Unconfirmed { source: error, .. },
        ) => sink(error),
        // A consumer without a topic has no dead letters.
        DeadLettersError::Topic(
            DeadLetterError::Missing(_) | DeadLetterError::NoDeadLetters { .. },
        ) => ErrorCode::DEAD_LETTER_MISSING,
        DeadLettersError::Several { .. } => ErrorCode::D002,
        DeadLettersError::Hindered { .. } => ErrorCode::D003,
        DeadLettersError::Circular(_) => ErrorCode::D004,
        DeadLettersError::Topic(DeadLetterError::Gone(_)) => ErrorCode::D005,
        DeadLettersError::Topic(DeadLetterError::Refused { .. }) => ErrorCode::D006,
        DeadLettersError::Topic(DeadLetterError::ReceiptRefused { .. }) => ErrorCode::D007,
        DeadLettersError::Topic(DeadLetterError::Unread { .. }) => ErrorCode::D008,
        DeadLettersError::Topic(DeadLetterError::Silent { .. }) => ErrorCode::D009,
        DeadLettersError::Topic(DeadLetterError::Aborted { .. }) => ErrorCode::D010,
        DeadLettersError::Reserved { .. } => ErrorCode::D011,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::read_to_string;
    use std::path::Path;

    const HERE: &str = env!("CARGO_MANIFEST_DIR");

    fn sources(folder: &Path) -> String {
        let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.extension() {
            None if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" => {
                let text = read_to_string(&path).unwrap();
                text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()
            }
            Some(_) | None => String::new(),
        };
        entries.map(text).collect()
    }

    /// Codes used in several places or patterns, and names that are only compared.
    fn misused(sources: &str) -> Vec<String> {
        // For a match arm with several patterns, rustfmt puts the arrow on such a line.
        let is_several = |line: &&str| line.contains(" | ") || line.trim().starts_with(')');
        let is_one_place = |code: &ErrorCode| {
            let wanted = format!("::{code:?}");
            let line = sources.lines().find(|line| line.contains(&wanted));
            sources.matches(&wanted).count() == 1 && !line.is_some_and(|line| is_several(&line))
        };
        let wrong = ErrorCode::ALL.iter().filter(|code| !is_one_place(code));
        let lines =
            sources.lines().filter_map(|line| line.trim().strip_prefix("pub(super) const "));
        let names = lines.filter_map(|rest| rest.split_once(": Self = ").map(|(name, _)| name));
        let unused = names.filter(|name| {
            let count =
                |before: &str| sources.matches(&format!("{before}ErrorCode::{name}")).count();
            count("") == count(".is(")
        });
        wrong.map(|code| format!("{code:?}")).chain(unused.map(str::to_owned)).collect()
    }

    #[test]
    fn a_code_stands_for_one_situation() {
        let sources = sources(Path::new(HERE));
        assert_eq!(
            misused(&sources),
            [""; 0],
            "one place each, or a name for what all of them are"
        );
        let planted = [
            ("ErrorCode::P003", "ErrorCode::P001", vec!["P001", "P003"]),
            ("WalError::Closed =>", "WalError::Closed | WalError::Ended =>", vec!["P011"]),
            ("SlotMissing { .. } => ErrorCode::SLOT_MISSING", "", vec!["SLOT_MISSING"]),
        ];
        for (right, wrong, found) in planted {
            assert_eq!(misused(&sources.replacen(right, wrong, 1)), found, "{wrong}");
        }
    }

    #[test]
    fn every_code_has_its_line_in_the_document() {
        let document = read_to_string(Path::new(HERE).join("../../docs/codes.md")).unwrap();
        let lines = document.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let listed: Vec<&str> =
            lines.map(|(code, _)| code).filter(|code| code.starts_with("PR-")).collect();
        assert_eq!(listed, ErrorCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>());
    }
}
