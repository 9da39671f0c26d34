//! Errors of the replication connection, and their remedies.
//!
//! A new session fixes an error ([`Class::Transient`], [`Class::Held`]), or a human must act.
//! Invariant: no error contains row content or a password. DETAIL may quote rows, so it is never
//! kept.

use std::fmt;

use crate::certificate::{CertificateRefusal, Fault};
use crate::libpq::{AuthMethod, ConnectInfo, Endpoint, RequireAuth};
use postrider_core::pgoutput::DecodeError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Temporary: retry with back-off; 69 after the time limit.
    Transient,
    /// Another relay holds the slot: wait for it (75 with `--no-wait`).
    Held,
    Permission,
    Configuration,
    /// The start position is lost, or belongs to another source.
    Position,
}

impl Class {
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Transient => 69,
            Self::Position => 70,
            Self::Held => 75,
            Self::Permission => 77,
            Self::Configuration => 78,
        }
    }

    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Transient | Self::Held)
    }

    /// PostgreSQL documentation, appendix A. Unknown codes count as temporary, because stopping for
    /// good would be worse.
    pub fn of_sqlstate(code: &str) -> Self {
        match code {
            "55006" => Self::Held,
            "42501" => Self::Permission,
            // The slot was invalidated, or its log removed.
            "55000" => Self::Position,
            "57P04" => Self::Configuration,
            _ => match code.get(..2) {
                Some("28") => Self::Permission,
                Some("0A" | "22" | "26" | "2B" | "3D" | "3F" | "42" | "F0") => Self::Configuration,
                _ => Self::Transient,
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerMessage {
    /// Severity, not translated.
    pub severity: String,
    pub code: String,
    pub message: String,
    pub hint: String,
    /// C function, not translated.
    pub routine: String,
}

impl ServerMessage {
    #[must_use]
    pub fn of_login(self, info: &ConnectInfo) -> Self {
        let is_refused = self.code == "28P01" && self.hint.is_empty();
        let hint = if is_refused { info.wrong_password_hint() } else { self.hint };
        Self { hint, ..self }
    }
}

impl fmt::Display for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    #[error("cannot connect to Postgres at {endpoint}: {reason}")]
    Unreachable { endpoint: String, reason: String },
    #[error("Postgres did not answer in time while {doing}")]
    TimedOut { doing: &'static str },
    #[error("Postgres at {endpoint} did not answer in time while {doing}")]
    LoginTimedOut { endpoint: String, doing: &'static str },
    #[error("{endpoint} does not offer TLS, and sslmode demands it")]
    TlsNotOffered { endpoint: String },
    #[error("cannot establish TLS with {endpoint}: {reason}")]
    TlsHandshake { endpoint: String, reason: String },
    #[error("cannot establish TLS: the certificate `{subject}` of {endpoint} {fault}")]
    CertificateInvalid { endpoint: String, subject: String, fault: Fault },
    #[error("{0}")]
    TlsFiles(#[from] super::tls::TlsFilesError),
    #[error("{endpoint} asks for a password for user `{user}` and none is given")]
    PasswordMissing { endpoint: String, user: String, hint: String },
    #[error("{0}")]
    Secret(#[from] crate::libpq::SecretError),
    #[error("cannot authenticate with {endpoint}: {reason}")]
    Authentication { endpoint: String, reason: String, hint: &'static str },
    #[error("{endpoint} is not a `{wanted}` server")]
    WrongSession { endpoint: String, wanted: &'static str },
    #[error("replication slot `{slot}` is in use: {}", .server.message)]
    SlotHeld { slot: String, server: Box<ServerMessage> },
    #[error("Postgres: {0}")]
    Server(Box<ServerMessage>),
    #[error("the server is a connection pooler such as PgBouncer: {found}")]
    Pooler { found: String, kept_out: KeptOut },
    /// PostgreSQL up to 17 ends the stream at a row written without the publication; 18 only warns
    /// and skips the row.
    #[error(
        "publication `{publication}` did not exist when the next change of slot `{slot}` was written, so rows would \
         be lost"
    )]
    PublicationMissing { publication: String, slot: String },
    #[error("Postgres closed the connection")]
    Closed,
    /// The network has failed, or the server hangs.
    #[error("Postgres has sent nothing for {seconds} s, though it was asked to")]
    Silent { seconds: u64 },
    #[error("Postgres ended the replication stream; it is shutting down")]
    Ended,
    #[error("the connection to Postgres failed: {0}")]
    Io(String),
    #[error("malformed message from Postgres: {0}")]
    Protocol(&'static str),
    #[error("message 0x{tag:02X} from Postgres has {bytes} bytes, more than the limit of {limit}")]
    MessageTooLarge { tag: u8, bytes: usize, limit: usize },
    #[error("a row of table {table} has {bytes} bytes as text, more than the limit of {limit}")]
    RowTooLarge {
        table: String,
        /// Length in COPY's text format.
        bytes: usize,
        limit: usize,
    },
    /// The query contains text that no row can contain.
    #[error("the database's encoding lacks a character of the row filter")]
    QueryUntranslatable,
    /// A table lacks a column of the reading order.
    #[error("table {table} has no column `{column}` to order its rows by")]
    OrderColumnMissing { table: String, column: String },
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error(transparent)]
    Poll(#[from] super::poll::PollError),
    #[error(transparent)]
    CatchUp(#[from] super::catch_up::CatchUpError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptOut {
    Replication,
    Parameter,
    Session,
    Login,
}

impl KeptOut {
    const fn hint(self) -> &'static str {
        match self {
            Self::Replication => {
                "set host and port in source.url to Postgres itself, since a replication \
                 connection cannot pass a pooler; or set source.mode = \"poll\", which can, in \
                 session mode"
            }
            Self::Parameter => {
                "leave `options` out of source.url and PGOPTIONS; or add the parameter to \
                 ignore_startup_parameters of the pooler; or set host and port in source.url to \
                 Postgres itself"
            }
            Self::Session => {
                "set pool_mode = session for this database or role at the pooler; or set host and \
                 port in source.url to Postgres itself"
            }
            Self::Login => {
                "add the database, the user and the password to PgBouncer ([databases], auth_file or auth_query)\n\
                 PgBouncer's log names what is missing\n\
                 or point source.url at Postgres itself"
            }
        }
    }
}

/// PgBouncer's refusals by its own configuration (`client.c`, 1.12 to 1.24). `bouncer config error`
/// is missing, because a restarting PgBouncer also returns it.
const LOGIN_BY_POOLER: [&str; 5] = [
    "no such database",
    "no such user",
    "login rejected",
    "SASL authentication failed",
    "password authentication failed",
];

impl WalError {
    /// Recognises a pooler by its wording.
    pub(crate) fn of_server(message: ServerMessage) -> Self {
        let kept_out = match message.code.as_str() {
            // PgBouncer's messages exist only in English.
            "08P01" if message.message.starts_with("unsupported startup parameter") => {
                let replicates = message.message.ends_with("replication");
                if replicates { KeptOut::Replication } else { KeptOut::Parameter }
            }
            "08P01" if LOGIN_BY_POOLER.iter().any(|said| message.message.starts_with(said)) => {
                KeptOut::Login
            }
            // A prepared statement of this session is unknown, or another session's exists.
            "26000" | "42P05" => KeptOut::Session,
            _ => return Self::Server(Box::new(message)),
        };
        Self::Pooler { found: message.to_string(), kept_out }
    }

    pub(crate) fn of_shared_process(found: String) -> Self {
        Self::Pooler { found, kept_out: KeptOut::Session }
    }

    pub(crate) fn of_handshake(
        endpoint: &str,
        error: &(dyn std::error::Error + 'static),
        reason: String,
    ) -> Self {
        let endpoint = endpoint.to_owned();
        match CertificateRefusal::in_error(error) {
            Some(CertificateRefusal { subject, fault }) => {
                Self::CertificateInvalid { endpoint, subject: subject.clone(), fault: *fault }
            }
            None => Self::TlsHandshake { endpoint, reason },
        }
    }

    pub(crate) fn authentication(endpoint: &Endpoint, reason: String) -> Self {
        let hint = "use scram-sha-256 in pg_hba.conf; channel_binding=require needs TLS as well";
        Self::Authentication { endpoint: endpoint.to_string(), reason, hint }
    }

    /// Refusal of a method that `require_auth` forbids. The client has not answered the server.
    pub(crate) fn unwanted(endpoint: &Endpoint, asked: AuthMethod, required: &RequireAuth) -> Self {
        let reason = format!("it {asked}, which require_auth={required} does not permit");
        let hint = "check that host and port belong to the right server; then let its pg_hba.conf \
             authenticate this role by a method that require_auth (or PGREQUIREAUTH) permits, or \
             permit the method that it uses";
        Self::Authentication { endpoint: endpoint.to_string(), reason, hint }
    }

    pub(crate) fn at_login(self, endpoint: &Endpoint) -> Self {
        match self {
            Self::TimedOut { doing } => {
                Self::LoginTimedOut { endpoint: endpoint.to_string(), doing }
            }
            other => other,
        }
    }

    pub fn class(&self) -> Class {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::LoginTimedOut { .. }
            | Self::WrongSession { .. }
            | Self::Closed
            | Self::Silent { .. }
            | Self::Ended
            | Self::Protocol(_)
            | Self::MessageTooLarge { .. }
            | Self::Malformed(_)
            | Self::CatchUp(_)
            | Self::Io(_) => Class::Transient,
            Self::TlsNotOffered { .. }
            | Self::TlsHandshake { .. }
            | Self::CertificateInvalid { .. }
            | Self::TlsFiles(_)
            | Self::Pooler { .. }
            | Self::RowTooLarge { .. }
            | Self::QueryUntranslatable
            | Self::OrderColumnMissing { .. } => Class::Configuration,
            Self::PasswordMissing { .. } | Self::Authentication { .. } | Self::Secret(_) => {
                Class::Permission
            }
            Self::SlotHeld { .. } => Class::Held,
            Self::PublicationMissing { .. } => Class::Position,
            Self::Poll(error) => error.class(),
            Self::Server(message) => class_of(message),
        }
    }

    /// `admin_shutdown`, `crash_shutdown`, `cannot_connect_now`.
    pub fn says_shutdown(&self) -> bool {
        let codes = ["57P01", "57P02", "57P03"];
        matches!(self, Self::Server(server) if codes.contains(&server.code.as_str()))
    }

    /// A password change looks like a refused login. 28000 is a role being created or renamed.
    pub fn is_login_refused(&self) -> bool {
        match self {
            Self::PasswordMissing { .. }
            | Self::Secret(_)
            | Self::Pooler { kept_out: KeptOut::Login, .. } => true,
            Self::Server(message) => ["28P01", "28000"].contains(&message.code.as_str()),
            _ => false,
        }
    }

    /// True for a refusal that may be temporary, so that nothing about the source was learned.
    /// After a login, no `FATAL` error needs a person.
    pub fn is_refused_at_connect(&self) -> bool {
        match self {
            Self::TlsNotOffered { .. }
            | Self::TlsHandshake { .. }
            | Self::CertificateInvalid { .. }
            | Self::TlsFiles(_)
            | Self::PasswordMissing { .. }
            | Self::Secret(_)
            | Self::Authentication { .. }
            | Self::Pooler { kept_out: KeptOut::Login, .. } => true,
            Self::Server(message) => message.severity == "FATAL" && !self.class().is_transient(),
            _ => false,
        }
    }

    /// True if every session fails at a change in the log, whatever the server's state.
    pub fn is_of_the_log(&self) -> bool {
        match self {
            Self::PublicationMissing { .. }
            | Self::Malformed(_)
            | Self::Protocol(_)
            | Self::MessageTooLarge { .. } => true,
            Self::Server(message) => {
                let is_definite = matches!(self.class(), Class::Configuration | Class::Position);
                message.severity == "ERROR" && (is_definite || is_unsendable(message))
            }
            _ => false,
        }
    }

    pub(super) const fn is_said_by_server(&self) -> bool {
        matches!(self, Self::Server(_) | Self::PublicationMissing { .. })
    }

    /// pg_hba.conf has no line for this login, or rejects it: another role might help.
    pub fn is_barred_by_hba(&self) -> bool {
        matches!(self, Self::Server(message)
            if message.code == "28000" && message.routine == LOGIN_BY_HBA)
    }

    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unreachable { .. } => {
                "check that the server runs and that host, port and firewall are right"
            }
            Self::TimedOut { .. } => {
                "check the server's load, the network between, and locks on the published tables \
                 (pg_locks): PostgreSQL waits for a VACUUM FULL or ALTER TABLE to tell what it publishes"
            }
            Self::LoginTimedOut { .. } => {
                "check host and port: the server there may not be Postgres; if it is, check the \
                 server's load and the network between"
            }
            Self::Closed | Self::Ended | Self::Io(_) => {
                "the relay tries again by itself; if it repeats, check the server's log and the \
                 network between; nothing is lost: every row stays in Postgres"
            }
            Self::Pooler { kept_out, .. } => kept_out.hint(),
            Self::SlotHeld { .. } => "nothing to do while another relay is at work",
            Self::Silent { .. } => {
                "check the network between the relay and the server, and that the server is not \
                 stopped; nothing is lost: every row stays in Postgres"
            }
            Self::TlsNotOffered { .. } => {
                "set ssl = on in postgresql.conf; sslmode=prefer would send rows, and a password that the server asks \
                 for in the clear, unencrypted"
            }
            Self::TlsHandshake { .. } => {
                "sslrootcert must hold the authority that signed the server's certificate; with \
                 verify-full the certificate must be issued for the host as written"
            }
            Self::CertificateInvalid { fault: Fault::Expired { .. }, .. } => RENEW,
            Self::CertificateInvalid { .. } => EARLY,
            Self::TlsFiles(error) => return error.hint(),
            Self::Secret(error) => return error.hint(),
            Self::Authentication { hint, .. } => hint,
            Self::PasswordMissing { hint, .. } => hint,
            Self::WrongSession { .. } => "add the right server to the host list",
            Self::PublicationMissing { publication, slot } => {
                return Some(format!(
                    "is source.publication = `{publication}` right? SELECT pubname FROM pg_publication shows which \
                     exist\n\
                     if it has another name now, and no row was written under that name, rename it back: everything is \
                     delivered\n\
                     if it was away while rows were written: slot `{slot}` cannot pass this change under any publication \
                     name. Create the publication, stop the relay, and run `postrider repair`, then `postrider repair --execute \
                     --drop-slot`. {REPAIR_UNREADABLE}"
                ));
            }
            Self::MessageTooLarge { .. } | Self::Protocol(_) => {
                "check that host and port in source.url belong to Postgres, and that no proxy \
                 changes the data in between; nothing is lost"
            }
            Self::RowTooLarge { .. } => {
                "raise source.frame_max above that size and run it again: what the brokers do not take becomes a \
                 dead letter"
            }
            Self::QueryUntranslatable => "no row has it: leave that value out",
            Self::OrderColumnMissing { .. } => {
                "name the columns that the rows of one key are to be sent in the order of in outbox.order_by"
            }
            Self::Malformed(error) => return error.hint(),
            Self::Poll(error) => return Some(error.hint()),
            Self::CatchUp(error) => return error.hint(),
            Self::Server(message) => return server_hint(message),
        };
        Some(hint.to_owned())
    }
}

/// The effect and cost of a repair for a slot that cannot decode a change.
pub const REPAIR_UNREADABLE: &str = "It sends the rows that are missing in Kafka and still in the \
    outbox, including rows written in the meantime, and replaces the slot. Rows that were \
    deleted from the outbox undelivered, and logical messages, are lost";

/// A list of hosts led to a standby, but the slot is on the primary.
pub(crate) const STANDBY_REACHED: &str = "nothing to do while the primary is restarted or another \
    server is promoted: the relay tries again, and every row stays in Postgres; to skip standbys \
    from the start: target_session_attrs=read-write in source.url";

/// True if a standby reports that it only synchronises the slot (17 and later). A translated
/// message is not recognised, but the slot was checked before.
fn is_copied_slot(message: &ServerMessage) -> bool {
    message.code == "55000"
        && message.routine == "CreateDecodingContext"
        && message.message.starts_with("cannot use replication slot ")
}

fn class_of(message: &ServerMessage) -> Class {
    match message.code.as_str() {
        _ if is_copied_slot(message) => Class::Transient,
        // The database is temporarily closed to connections.
        "55000" if message.routine == LOGIN_TO_DATABASE => Class::Transient,
        // Names of settings are not translated.
        "55000" if message.message.contains("wal_level") => Class::Configuration,
        code => Class::of_sqlstate(code),
    }
}

pub const RENEW: &str = "on the server, replace ssl_cert_file and ssl_key_file with a renewed \
                     certificate and its key; then: SELECT pg_reload_conf();";

const EARLY: &str = "compare the clocks of both machines; if they are right, replace \
                     ssl_cert_file and ssl_key_file on the server with a certificate that is \
                     valid now, and run: SELECT pg_reload_conf();";

const UNSENDABLE: &str = "a row's text has 1 GiB or more, which Postgres cannot send; nothing is \
                          lost, but nothing after it is delivered: see `A row that Postgres \
                          itself cannot send` in docs/operations/large-rows.md";

const UNTRANSLATABLE: &str = "a row has a character that UTF8 lacks, which Postgres cannot \
                              convert; if the database's encoding is multi-byte, nothing after \
                              the row is delivered (nothing is lost): see `A row that Postgres \
                              itself cannot send` in docs/operations/large-rows.md";

/// Routines that check pg_hba.conf (`libpq/auth.c`), the role (`utils/init/miscinit.c`) and the
/// database (`postinit.c`). Messages are translated, routine names are not.
const LOGIN_BY_HBA: &str = "ClientAuthentication";
const LOGIN_OF_ROLE: &str = "InitializeSessionUserId";
const LOGIN_TO_DATABASE: &str = "CheckMyDatabase";

/// True for a buffer that cannot grow beyond 1 GiB; such messages are not translated.
fn is_unsendable(message: &ServerMessage) -> bool {
    message.code == "54000"
        || message.code == "XX000" && message.message.contains("invalid memory alloc request size")
}

/// Limit in the message: `(currently 10)`, in every language.
fn wal_senders(message: &ServerMessage) -> Option<i64> {
    let (_, rest) = message.message.split_once("max_wal_senders")?;
    rest.split(|char: char| !char.is_ascii_digit()).find_map(|number| number.parse().ok())
}

/// Statement that adds four, after a restart of the server.
pub fn raise_limit(setting: &str, now: i64) -> String {
    format!("ALTER SYSTEM SET {setting} = {};", now.saturating_add(4))
}

fn server_hint(message: &ServerMessage) -> Option<String> {
    let known = match message.code.as_str() {
        _ if is_unsendable(message) => UNSENDABLE,
        "22P05" | "22021" => UNTRANSLATABLE,
        "28P01" if message.hint.is_empty() => {
            "the password is wrong, the role has none, or there is no such role"
        }
        "28000" if message.routine == LOGIN_OF_ROLE => {
            "the role does not exist (any more), or may not log in: name another one in the URL or \
             PGUSER, or ALTER ROLE <role> LOGIN;"
        }
        "28000" => {
            "the role may not log in here: pg_hba.conf needs a line for this database (not \
             `replication`), this role and this host; where it wants a certificate, set sslcert \
             and sslkey"
        }
        "42501" if message.message.contains("replication") => {
            "the role must be allowed to replicate: ALTER ROLE <role> REPLICATION;"
        }
        "42501" => {
            "grant the role what the message names (a table: GRANT SELECT ON <table> TO <role>;), or let a role \
             do it that has it; which command needs which rights: docs/operations/privileges.md"
        }
        "42704" => {
            "are source.slot and source.publication right? If this database was never set up: \
             `postrider setup`"
        }
        // The server advises another slot, which would skip rows.
        "55000" if is_copied_slot(message) => STANDBY_REACHED,
        "3F000" => {
            "create the schema, or name the table in one that exists, as schema.table, in source.tables"
        }
        "55000" if message.routine == LOGIN_TO_DATABASE => {
            "nothing is lost while the database accepts no connections, and the relay retries: \
             ALTER DATABASE <database> ALLOW_CONNECTIONS true;"
        }
        "3D000" => "check the database's name in source.url or PGDATABASE",
        "53300" if message.routine == LOGIN_OF_ROLE => {
            "the role's own limit: ALTER ROLE <role> CONNECTION LIMIT -1; the relay needs two, and one more \
             for each standby"
        }
        "53300" if message.routine == LOGIN_TO_DATABASE => {
            "the database's own limit: ALTER DATABASE <database> CONNECTION LIMIT -1;"
        }
        "53300" => {
            if let Some(limit) = wal_senders(message) {
                return Some(raise_limit("max_wal_senders", limit) + " then restart the server");
            }
            "end a session that nobody needs (SELECT pid, usename, application_name, state FROM pg_stat_activity;), or \
             raise max_connections and restart the server"
        }
        "08P01" => {
            "if a pooler such as PgBouncer answers there, read its log; or point source.url at Postgres itself"
        }
        _ => "",
    };
    let hint = if known.is_empty() { message.hint.as_str() } else { known };
    (!hint.is_empty()).then(|| hint.to_owned())
}

#[cfg(test)]
mod tests;
