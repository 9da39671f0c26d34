//! What can go wrong in the shop, and what to do about it.
//!
//! Enters: errors of the clients. Leaves: [`ShopError`], which names a situation, its exit
//! code and its remedy. What always holds: no password and no payload in any text.

use std::error::Error;
use std::net::SocketAddr;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use super::kafka::KafkaSettingError;
use postrider_patterns::dead_letter::DeadLetterError;
use postrider_patterns::idempotency::IdempotencyError;
use postrider_patterns::inbox::{InboxError, describe};
use postrider_patterns::outbox_writer::WriterError;
use postrider_patterns::saga::SagaError;
use postrider_postgres::control::{AddressError, LoginRefused};
use postrider_postgres::libpq::ConnectInfoError;

/// A situation in which the shop stops.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    /// The plan cannot be carried out.
    #[error("the plan is not possible: {0}")]
    Plan(&'static str),
    /// The database URL cannot be understood. Its text is not repeated: it may hold a password.
    #[error("the database URL is not understood")]
    Url(#[source] ConnectInfoError),
    /// The database URL asks for what sessions here cannot have, or for certificates that cannot be used.
    #[error("the database cannot be reached as its URL asks")]
    Address(#[source] AddressError),
    /// A Kafka setting cannot be used.
    #[error(transparent)]
    Kafka(#[from] KafkaSettingError),
    /// The database does not let the service in, and would not the next time.
    #[error("the database refuses the login: {0}")]
    Refused(LoginRefused),
    /// No session with Postgres.
    #[error("cannot connect to the database")]
    Connect(#[source] tokio_postgres::Error),
    /// The tables are not there.
    #[error("a table or a column is not in the database")]
    TablesMissing(#[source] tokio_postgres::Error),
    /// The role may not do what it has to.
    #[error("the role lacks a permission in the database")]
    Forbidden(#[source] tokio_postgres::Error),
    /// The session ended or a statement failed. The transaction under way may or may not have
    /// committed.
    #[error("the database failed, or a statement in it")]
    Database(#[source] tokio_postgres::Error),
    /// The pool of sessions cannot be made.
    #[error("the pool of database sessions cannot be made")]
    Pool(#[source] deadpool_postgres::BuildError),
    /// No session with the database, for want of one that is free or of the server.
    #[error("no session with the database")]
    Session(#[from] PoolError),
    /// An event could not be appended to the outbox.
    #[error(transparent)]
    Outbox(#[from] WriterError),
    /// An order's saga did not go on.
    #[error(transparent)]
    Saga(#[from] SagaError),
    /// The guard, or the keys in the database.
    #[error(transparent)]
    Key(#[from] IdempotencyError),
    /// The consumer ended.
    #[error(transparent)]
    Consumer(#[from] InboxError),
    /// Dead letters could not be read or sent again.
    #[error(transparent)]
    DeadLetters(#[from] DeadLetterError),
    /// The address is somebody else's.
    #[error("cannot listen at {0}")]
    Bind(SocketAddr, #[source] std::io::Error),
    /// The HTTP server ended.
    #[error("the HTTP server ended")]
    Http(#[source] std::io::Error),
    /// Rows would be deleted that somebody may still need.
    #[error("{0}")]
    TooYoung(String),
    /// A table could not be cleaned, or not all of it.
    #[error("`{0}` was not cleaned")]
    NotCleaned(&'static str, #[source] Box<ShopError>),
    /// Nobody can say which outbox rows were delivered: the slot is not there.
    #[error("the outbox was left alone: this database has no logical replication slot `{0}`")]
    NoSlot(String),
    /// The slot is there, and what it has not passed is in the table alone.
    #[error("the outbox was left alone: replication slot `{slot}` is lost ({reason})")]
    SlotLost {
        /// Its name.
        slot: String,
        /// What Postgres says of it.
        reason: String,
    },
    /// The async runtime could not start.
    #[error("the runtime does not start")]
    Runtime(#[source] std::io::Error),
    /// Standard output is closed or full.
    #[error("cannot write the summary")]
    Output(#[source] std::io::Error),
}

impl ShopError {
    /// The exact remedy, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Consumer(error) => return error.hint(),
            Self::DeadLetters(error) => return error.hint(),
            Self::Outbox(error) => return error.hint().map(str::to_owned),
            Self::Saga(error) => return error.hint().map(str::to_owned),
            Self::Key(error) => return error.hint().map(str::to_owned),
            Self::Bind(..) => "choose another with --bind, such as 127.0.0.1:0 for any free port",
            Self::Url(error) => return error.hint(),
            Self::Address(error) => return error.hint(),
            Self::Refused(refusal) => return refusal.hint.clone(),
            Self::Session(PoolError::Backend(error)) | Self::Connect(error)
                if is_login_refused(error) =>
            {
                "check user and password in DATABASE_URL, PGPASSWORD or ~/.pgpass, and the server's \
                 pg_hba.conf; what has changed there is read when the service starts again"
            }
            Self::Kafka(error) => return error.hint(),
            Self::Connect(_) => "check that the server runs: pg_isready -d \"$DATABASE_URL\"",
            Self::TablesMissing(_) => {
                "create them: psql -d \"$DATABASE_URL\" -f migrations/<file>.sql for each file there"
            }
            Self::Forbidden(_) => {
                "GRANT it to the shop's role; `shop load` needs INSERT on orders and outbox"
            }
            Self::NotCleaned(_, error) if matches!(**error, Self::Forbidden(_)) => {
                "GRANT SELECT, UPDATE, DELETE ON <the table and what goes with it> TO <the role>; payments \
                 and reservations need SELECT ON sagas too: docs/patterns/cleaning-up.md"
            }
            Self::NotCleaned(_, error) if matches!(**error, Self::Database(_)) => {
                "the next run goes on; a statement that took too long wants a smaller --batch"
            }
            Self::NotCleaned(_, error) => return error.hint(),
            Self::NoSlot(_) => {
                "name the slot of the relay with --slot; without a relay, name the other tables with \
                 --table"
            }
            Self::SlotLost { .. } => {
                "send again from the table what was not delivered, and make the slot anew: \
                 docs/operations.md, \"The slot is lost\""
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// The process's exit code: 2 usage, 69 unavailable, 70 slot lost, 77 permission, 78
    /// configuration, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(refusal) => refusal.exit_code,
            Self::Connect(error) | Self::Session(PoolError::Backend(error))
                if is_login_refused(error) =>
            {
                77
            }
            Self::Plan(_) | Self::Url(_) | Self::Kafka(_) | Self::TooYoung(_) => 2,
            Self::Connect(_) | Self::Database(_) | Self::Session(_) | Self::Bind(..) => 69,
            Self::NotCleaned(_, error) => error.exit_code(),
            Self::SlotLost { .. } => 70,
            Self::Forbidden(_)
            | Self::Outbox(WriterError::Forbidden(_))
            | Self::Key(IdempotencyError::Forbidden(_)) => 77,
            Self::TablesMissing(_)
            | Self::Address(_)
            | Self::NoSlot(_)
            | Self::Outbox(WriterError::Missing(_))
            | Self::Key(IdempotencyError::Missing(_)) => 78,
            _ => 1,
        }
    }

    /// Whether the server takes no writes: a standby, as a rule.
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

    /// With its causes, for a log; of Postgres's words codes and names only, as the rest may quote rows.
    pub fn in_full(&self) -> String {
        describe(self)
    }
}

/// Whether the server knows neither this role nor this password, or lets it in from nowhere near here
/// (class 28 of SQLSTATE).
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
