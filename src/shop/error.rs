//! Errors of the shop, with their fixes and exit codes. Invariant: no text contains a password or a
//! payload.

use std::error::Error;
use std::net::SocketAddr;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use super::kafka::KafkaSettingError;
use postrider_patterns::dead_letter::DeadLetterError;
use postrider_patterns::idempotency::IdempotencyError;
use postrider_patterns::inbox::{InboxError, RetentionError, describe};
use postrider_patterns::migrations::MigrateError;
use postrider_patterns::outbox_writer::WriterError;
use postrider_patterns::saga::SagaError;
use postrider_postgres::control::{AddressError, LoginRefused};
use postrider_postgres::libpq::ConnectInfoError;

#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    #[error("invalid load: {0}")]
    Plan(&'static str),
    /// Does not repeat the URL, which may contain a password.
    #[error("the database URL is not valid")]
    Url(#[source] ConnectInfoError),
    #[error("the database cannot be reached as its URL asks")]
    Address(#[source] AddressError),
    #[error(transparent)]
    Kafka(#[from] KafkaSettingError),
    /// A retry would not help.
    #[error("the database refuses the login: {0}")]
    Refused(LoginRefused),
    #[error(transparent)]
    Migration(#[from] MigrateError),
    #[error("cannot connect to the database")]
    Connect(#[source] tokio_postgres::Error),
    #[error("a table or a column is missing in the database")]
    TablesMissing(#[source] tokio_postgres::Error),
    #[error("the role lacks a permission in the database")]
    Forbidden(#[source] tokio_postgres::Error),
    /// The current transaction may or may not have committed.
    #[error("a statement or the connection to the database failed")]
    Database(#[source] tokio_postgres::Error),
    #[error("cannot create the connection pool")]
    Pool(#[source] deadpool_postgres::BuildError),
    #[error("cannot get a database session")]
    Session(#[from] PoolError),
    #[error(transparent)]
    Outbox(#[from] WriterError),
    #[error(transparent)]
    Saga(#[from] SagaError),
    #[error(transparent)]
    Key(#[from] IdempotencyError),
    #[error(transparent)]
    Consumer(#[from] InboxError),
    #[error(transparent)]
    DeadLetters(#[from] DeadLetterError),
    #[error("cannot listen at {0}")]
    Bind(SocketAddr, #[source] std::io::Error),
    #[error("the HTTP server ended")]
    Http(#[source] std::io::Error),
    /// The age would delete rows that may still be needed.
    #[error("{0}")]
    TooRecent(String),
    /// A topic keeps messages longer than the markers that identify repeats.
    #[error("{0}")]
    TopicOutlives(String),
    #[error(transparent)]
    Retention(#[from] RetentionError),
    #[error("cannot clean up `{0}`")]
    NotCleaned(&'static str, #[source] Box<ShopError>),
    #[error("the database has none of the tables that are cleaned up")]
    NothingToClean,
    /// Delivered outbox rows are unknown without the slot.
    #[error("the outbox was not cleaned up: this database has no logical replication slot `{0}`")]
    NoSlot(String),
    /// Rows that the slot has not passed exist only in the table.
    #[error("the outbox was not cleaned up: replication slot `{slot}` is lost ({reason})")]
    SlotLost {
        /// Slot name.
        slot: String,
        reason: String,
    },
    /// Does not repeat the URL, which may contain a password.
    #[error("the URL of the SMTP server is not valid")]
    SmtpUrl(#[source] lettre::transport::smtp::Error),
    #[error("the sender of mails is not a mail address")]
    MailFrom(#[source] lettre::address::AddressError),
    #[error("cannot start the async runtime")]
    Runtime(#[source] std::io::Error),
    #[error("cannot write the summary")]
    Output(#[source] std::io::Error),
}

impl ShopError {
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Consumer(error) => return error.hint(),
            Self::DeadLetters(error) => return error.hint(),
            Self::Outbox(error) => return error.hint().map(str::to_owned),
            Self::Saga(SagaError::Unknown { .. }) => {
                "`shop sagas list --all` has those that are open; ended ones are deleted some time later"
            }
            Self::Saga(error) => return error.hint().map(str::to_owned),
            Self::Key(error) => return error.hint().map(str::to_owned),
            Self::Migration(error) => return error.hint().map(str::to_owned),
            Self::Bind(..) => "choose another with --bind, such as 127.0.0.1:0 for any free port",
            Self::Url(error) => return error.hint(),
            Self::Address(error) => return error.hint(),
            Self::Refused(refusal) => return refusal.hint.clone(),
            Self::Session(PoolError::Backend(error)) | Self::Connect(error)
                if is_login_refused(error) =>
            {
                "check user and password in DATABASE_URL, PGPASSWORD or ~/.pgpass, and the server's \
                 pg_hba.conf; then restart the service"
            }
            Self::Kafka(error) => return error.hint(),
            Self::Connect(_) => "check that the server runs: pg_isready -d \"$DATABASE_URL\"",
            Self::TablesMissing(_) => "create them: `shop migrate SERVICE`",
            Self::NothingToClean => {
                "check DATABASE_URL, and search_path where they are in a schema of their own"
            }
            Self::Forbidden(_) => {
                "GRANT it to the role; `shop load` needs INSERT on orders and outbox"
            }
            Self::Retention(error) => return error.hint().map(str::to_owned),
            Self::TopicOutlives(_) => {
                "raise --topic-retention, and --older-than with it; or shorten retention.ms of the topic"
            }
            Self::NotCleaned(_, error) if matches!(**error, Self::Forbidden(_)) => {
                "GRANT SELECT, UPDATE, DELETE ON <the table and its dependent tables> TO <role>: \
                 docs/patterns/cleaning-up.md"
            }
            Self::NotCleaned(_, error) if matches!(**error, Self::Database(_)) => {
                "the next run continues; if a statement timed out, use a smaller --batch"
            }
            Self::NotCleaned(_, error) => return error.hint(),
            Self::NoSlot(_) => {
                "set --slot to the relay's slot; without a relay, list the other tables with \
                 --table"
            }
            Self::SmtpUrl(_) => {
                "set --smtp-url to smtp://host:25, smtp://user:password@host:587?tls=required or smtps://host"
            }
            Self::MailFrom(_) => "set --mail-from to an address such as shop@example.com",
            Self::SlotLost { .. } => {
                "resend undelivered rows from the table, and create the slot again: \
                 docs/operations/slots-and-wal.md, \"The slot is lost\""
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// 2 usage, 69 unavailable, 70 slot lost, 77 permission, 78 configuration, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(refusal) => refusal.exit_code,
            Self::Connect(error) | Self::Session(PoolError::Backend(error))
                if is_login_refused(error) =>
            {
                77
            }
            Self::Plan(_)
            | Self::Url(_)
            | Self::Kafka(_)
            | Self::SmtpUrl(_)
            | Self::MailFrom(_)
            | Self::TooRecent(_)
            | Self::TopicOutlives(_) => 2,
            Self::Saga(SagaError::Database(error))
                if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) =>
            {
                77
            }
            Self::Retention(RetentionError::Brokers(_))
            | Self::Connect(_)
            | Self::Database(_)
            | Self::Migration(MigrateError::Busy(_) | MigrateError::Database(_))
            | Self::Session(_)
            | Self::Bind(..)
            | Self::Saga(SagaError::Database(_)) => 69,
            Self::NotCleaned(_, error) => error.exit_code(),
            Self::SlotLost { .. } => 70,
            Self::Forbidden(_)
            | Self::Migration(MigrateError::Forbidden(_))
            | Self::Outbox(WriterError::Forbidden(_))
            | Self::Saga(SagaError::Outbox(WriterError::Forbidden(_)))
            | Self::Key(IdempotencyError::Forbidden(_)) => 77,
            Self::TablesMissing(_)
            | Self::NothingToClean
            | Self::Address(_)
            | Self::NoSlot(_)
            | Self::Retention(_)
            | Self::Outbox(WriterError::Missing(_))
            | Self::Saga(SagaError::Missing(_) | SagaError::Outbox(WriterError::Missing(_)))
            | Self::Key(IdempotencyError::Missing(_)) => 78,
            _ => 1,
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let code = error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code());
            if code == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// The error with its causes, for a log. Messages of Postgres may quote rows, so only codes and
    /// names appear.
    pub fn with_causes(&self) -> String {
        describe(self)
    }
}

/// True for class 28 of SQLSTATE: role, password or pg_hba.conf.
pub(super) fn is_login_refused(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("28"))
}

impl From<tokio_postgres::Error> for ShopError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code();
        if code == Some(&SqlState::UNDEFINED_TABLE) || code == Some(&SqlState::UNDEFINED_COLUMN) {
            return Self::TablesMissing(error);
        }
        if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return Self::Forbidden(error);
        }
        Self::Database(error)
    }
}
