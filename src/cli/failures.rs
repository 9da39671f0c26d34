//! Converts the errors of all crates to a `CommandFailure`: exit code, stable error code, text and
//! hint. One place ensures that a situation ends every command alike.

mod dead_letters;
mod relay;
mod verify;

use super::broker::BrokerCommandError;
use super::codes::{self, ErrorCode};
use super::exit::ExitCode;
use super::failure::{CommandFailure, Diagnostic};
use super::tail::TailError;
use postrider_config::{ConfigError, Mistake, SourcePosition};
use postrider_core::ledger::LedgerError;
use postrider_core::pipeline::PipelineError;
use postrider_core::route::RouteSpecError;
use postrider_debezium::{ImportError, ImportOutcome};
use postrider_kafka::{ReaderError, SettingsError, SinkError, TopicsError};
use postrider_postgres::control::ControlError;
use postrider_postgres::control::prune::PruneError;
use postrider_postgres::wal::WalError;
use postrider_relay::certificates::name_invalid;
use postrider_relay::telemetry::HttpError;

impl From<ConfigError> for CommandFailure {
    fn from(error: ConfigError) -> Self {
        let hint = error.hint();
        match error {
            ConfigError::Mistakes(mistakes) => Self {
                exit: ExitCode::Config,
                findings: mistakes.into_iter().map(Diagnostic::from).collect(),
            },
            error @ ConfigError::Unreadable { .. } => {
                Self::of(ExitCode::Config, ErrorCode::FILE_UNREADABLE, &error, hint)
            }
            error @ (ConfigError::SeveralStreams { .. } | ConfigError::UnknownStream { .. }) => {
                Self::of(ExitCode::Config, ErrorCode::C012, &error, hint)
            }
        }
    }
}

impl From<Mistake> for Diagnostic {
    fn from(mistake: Mistake) -> Self {
        let Mistake { kind, place, help } = mistake;
        let code = codes::mistake(&kind);
        let (what, excerpt) = match place {
            SourcePosition::File(excerpt) => (kind.to_string(), Some(excerpt)),
            SourcePosition::Named(name) => (format!("{name}: {kind}"), None),
            SourcePosition::Nowhere => (kind.to_string(), None),
        };
        Self { code, what, why: None, excerpt, help }
    }
}

impl From<ImportError> for CommandFailure {
    fn from(error: ImportError) -> Self {
        let hint = error.hint();
        let ImportError::Refused { report } = error else {
            return Self::of(ExitCode::Config, ErrorCode::C010, &error, hint);
        };
        let refused =
            report.into_iter().filter(|finding| finding.outcome == ImportOutcome::Refused);
        let findings = refused.map(|finding| Diagnostic {
            code: ErrorCode::C009,
            what: format!("`{}`: {}", finding.option, finding.note),
            why: None,
            excerpt: None,
            help: finding.help,
        });
        Self { exit: ExitCode::Config, findings: findings.collect() }
    }
}

impl From<HttpError> for CommandFailure {
    fn from(error: HttpError) -> Self {
        let code = match error {
            HttpError::Bind { .. } => ErrorCode::H001,
            HttpError::Serve(_) => ErrorCode::H002,
        };
        let hint = error.hint();
        Self::of(ExitCode::Config, code, &error, hint)
    }
}

impl From<SettingsError> for CommandFailure {
    fn from(error: SettingsError) -> Self {
        let hint = error.hint();
        Self::of(ExitCode::Config, ErrorCode::KAFKA_SETTINGS, &error, hint)
    }
}

impl From<SinkError> for CommandFailure {
    fn from(error: SinkError) -> Self {
        let error = name_invalid(error);
        let exit = match error {
            SinkError::Settings(error) => return error.into(),
            SinkError::Tls(_)
            | SinkError::CertificateInvalid { .. }
            | SinkError::NoLogin(_)
            | SinkError::NoIdempotence(_)
            | SinkError::NoTransactions { .. } => ExitCode::Config,
            SinkError::Authentication(_)
            | SinkError::Unauthorised { .. }
            | SinkError::Forbidden(_)
            | SinkError::IdForbidden { .. } => ExitCode::Permission,
            _ => ExitCode::Unavailable,
        };
        let hint = error.hint();
        Self::of(exit, codes::sink(&error), &error, hint)
    }
}

impl From<TopicsError> for CommandFailure {
    fn from(error: TopicsError) -> Self {
        let exit = match error {
            TopicsError::Settings(error) => return error.into(),
            TopicsError::NoEntry(error) => return error.into(),
            _ if error.is_transient() => ExitCode::Unavailable,
            _ if error.is_permission() => ExitCode::Permission,
            _ => ExitCode::Config,
        };
        let hint = error.hint();
        Self::of(exit, codes::topics(&error), &error, hint)
    }
}

impl From<ReaderError> for CommandFailure {
    fn from(error: ReaderError) -> Self {
        let exit = match error {
            ReaderError::Settings(error) => return error.into(),
            ReaderError::NoEntry(error) => return error.into(),
            ReaderError::Unreachable { .. } | ReaderError::Client(_) => ExitCode::Unavailable,
            ReaderError::Unauthorised(_) => ExitCode::Permission,
            _ => ExitCode::CheckFailed,
        };
        let hint = error.hint();
        Self::of(exit, codes::reader(&error), &error, hint)
    }
}

impl From<TailError> for CommandFailure {
    fn from(error: TailError) -> Self {
        let hint = error.hint();
        match error {
            TailError::Reader(error) => error.into(),
            TailError::Output(_) => {
                Self::of(ExitCode::CheckFailed, ErrorCode::STDOUT, &error, hint)
            }
        }
    }
}

impl From<BrokerCommandError> for CommandFailure {
    fn from(error: BrokerCommandError) -> Self {
        let hint = error.hint();
        Self::of(ExitCode::CheckFailed, ErrorCode::K016, &error, hint)
    }
}

impl From<WalError> for CommandFailure {
    fn from(error: WalError) -> Self {
        let exit = ExitCode::of_number(error.class().exit_code());
        let hint = error.hint();
        Self::of(exit, codes::wal(&error), &error, hint)
    }
}

impl From<ControlError> for CommandFailure {
    fn from(error: ControlError) -> Self {
        let exit = ExitCode::of_number(error.exit_code());
        let hint = error.hint();
        Self::of(exit, codes::control(&error), &error, hint)
    }
}

impl From<PruneError> for CommandFailure {
    fn from(error: PruneError) -> Self {
        let exit = ExitCode::of_number(error.class().exit_code());
        let hint = error.hint();
        Self::of(exit, codes::prune(&error), &error, hint)
    }
}

impl From<PipelineError> for CommandFailure {
    fn from(error: PipelineError) -> Self {
        let exit = match error {
            PipelineError::Rejected { .. } | PipelineError::Updated { .. } => ExitCode::Poison,
            PipelineError::NotSent => ExitCode::CheckFailed,
            PipelineError::Ledger(LedgerError::AbortedWithin { .. }) => ExitCode::Position,
            _ if error.is_definite() => ExitCode::Config,
            _ => ExitCode::Unavailable,
        };
        let hint = error.hint();
        Self::of(exit, codes::pipeline(&error), &error, hint)
    }
}

impl From<RouteSpecError> for CommandFailure {
    fn from(error: RouteSpecError) -> Self {
        let hint = error.hint();
        Self::of(ExitCode::Config, ErrorCode::R010, &error, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::route::{Rejection, RejectionCode};
    use postrider_postgres::wal::ServerMessage;

    fn server(sqlstate: &str, message: &str) -> CommandFailure {
        let message = ServerMessage {
            code: sqlstate.into(),
            message: message.into(),
            ..ServerMessage::default()
        };
        WalError::Server(Box::new(message)).into()
    }

    #[test]
    fn situations_have_the_exit_code_of_the_contract() {
        let rejection = Rejection { code: RejectionCode::NoRoute, reason: "no route".into() };
        let rejected = PipelineError::Rejected { row: "row 1".into(), rejection };
        let topic = || "t".to_owned();
        let cases: [(CommandFailure, u8, &str); 10] = [
            (server("55006", "slot is active"), 75, "PR-P009"),
            (server("28P01", "password authentication failed"), 77, "PR-P021"),
            (server("42704", "slot does not exist"), 78, "PR-P022"),
            (server("55000", "can no longer get changes from slot"), 70, "PR-P023"),
            (server("55000", "logical decoding requires wal_level"), 78, "PR-P022"),
            (server("57P01", "terminating connection"), 69, "PR-P020"),
            (rejected.into(), 65, "PR-R004"),
            (SinkError::Authentication("no".into()).into(), 77, "PR-K003"),
            (SinkError::UnknownTopic { topic: topic() }.into(), 69, "PR-K005"),
            (SettingsError::NoBrokers.into(), 78, "PR-K001"),
        ];
        for (failure, exit, code) in cases {
            assert_eq!((failure.exit.number(), failure.findings[0].code.as_str()), (exit, code));
        }
    }

    #[test]
    fn hints_are_passed_on() {
        let failure = server("42501", "permission denied");
        assert!(failure.findings[0].help.as_deref().unwrap().contains("operations/privileges.md"));
    }
}
