//! A replication connection before it streams: logs in, runs queries, starts the stream.
//!
//! Input: a [`ConnectInfo`] and [`SessionParams`]. Output: rows of queries, the server's identity, its backend
//! process, its timeline history, and finally a [`Stream`]; if the server refuses START_REPLICATION, as for a
//! slot that is active elsewhere, the connection can be used again. It takes only a server that fits
//! `target_session_attrs`, and sets the client encoding of the session and of the stream. Invariant: whatever
//! the defaults of the role or database, the text format of all values (dates, floats, bytea) is fixed.

mod rows;
mod slot;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};

use super::error::{ServerMessage, WalError};
use super::history::{self, TimelineHistory};
use super::message_channel::{Incoming, MessageChannel};
use super::quote;
use super::stream::{Names, Stream};
use super::transport::{Transport, Wire};
use super::{dial, login::Login};
use crate::libpq::ConnectInfo;
use crate::libpq::{Endpoint, TargetSessionAttrs as Wanted};
use postrider_core::lsn::Lsn;
use postrider_core::pgoutput::Charset;

/// Largest frame accepted unless told otherwise: far above what a broker takes (1 MiB by default),
/// so that too large a row can be seen and dead-lettered, far below what would hurt.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// A command on an idle connection is answered within milliseconds; a server that needs this long
/// is as good as gone.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a session relies on: the text of every value is then independent of the server's configuration, the server's
/// warnings reach us, and no limit ends it. The stream of a transaction is a transaction to the server: a limit on its
/// time would end every session before it is over. They are set once the session stands, over `options` in the
/// connection string and the defaults of role and database: poolers refuse a login that names them, and servers one
/// that names a limit of a later version.
const CANONICAL: [(&str, &str); 11] = [
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    // PostgreSQL 18 only warns of a publication that did not exist when a row was written.
    ("client_min_messages", "notice"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("transaction_timeout", "0"),
];

/// In which encoding a stream comes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StreamEncoding {
    /// UTF-8: that of the database, or the server converts. Where it finds a character without an
    /// equivalent, the stream breaks for good.
    #[default]
    Utf8,
    /// That of an SQL_ASCII database, which is none: the server cannot convert its bytes, and the stream
    /// would break for good at the first one above 127.
    Unknown,
    /// That of the database, of one byte a character. Whoever reads the stream converts it.
    Own(Arc<Charset>),
}

impl StreamEncoding {
    /// That of a database, as Postgres calls it; of each byte from 128 on the character, `None` where UTF-8
    /// has none.
    pub fn own(name: &str, characters: [Option<char>; 128]) -> Self {
        Self::Own(Arc::new(Charset::new(name.to_owned(), characters)))
    }
}

/// What the relay decides about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionParams {
    /// Larger frames are refused before anything is allocated for them. Bytes.
    pub frame_bytes_max: usize,
    /// Limit for the answer to one command.
    pub reply_timeout: Duration,
    /// The encoding of the stream. Answers to SQL and to replication commands are in UTF-8, but for an
    /// SQL_ASCII database.
    pub encoding: StreamEncoding,
    /// Whether what `pg_logical_emit_message` wrote is sent too. Needs PostgreSQL 14.
    pub messages: bool,
    /// Whether it is to stream; one that only reads tables needs a role without `REPLICATION`.
    pub replicates: bool,
}

impl Default for SessionParams {
    fn default() -> Self {
        Self {
            frame_bytes_max: FRAME_BYTES_MAX,
            reply_timeout: REPLY_TIMEOUT,
            encoding: StreamEncoding::Utf8,
            messages: false,
            replicates: true,
        }
    }
}

/// Who the server is (IDENTIFY_SYSTEM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The cluster's identifier, which a restored backup shares with its origin.
    pub system_id: String,
    /// The timeline, which a promotion increments.
    pub timeline: u32,
    /// End of the log that is on disk.
    pub flushed: Lsn,
}

/// The process of the server that serves a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerProcess {
    /// As the server itself numbers it. What logging in told may be the number of a proxy's.
    pub pid: i32,
    /// When the server was started, in microseconds since the Unix epoch. No two servers share it,
    /// while numbers of processes and identifiers of clusters are shared by standbys and copies.
    pub server_started_us: i64,
}

/// A row of a simple query: text or NULL.
pub type TextRow = Vec<Option<String>>;

/// Streaming could not be started; unless the server has ended the connection, it comes back.
#[derive(Debug)]
pub struct StartRefused<T = Wire> {
    /// Usable for another attempt.
    pub connection: Option<Connection<T>>,
    /// Why.
    pub error: WalError,
}

/// A logged-in replication connection.
#[derive(Debug)]
pub struct Connection<T = Wire> {
    session: MessageChannel<T>,
    endpoint: String,
    backend_pid: i32,
    params: SessionParams,
}

impl Connection<Wire> {
    /// Connects to the first acceptable server and logs in, with the secrets that hold now.
    pub fn open(info: &ConnectInfo, params: &SessionParams) -> Result<Self, WalError> {
        let info = &info.renewed()?;
        if info.target_session_attrs == Wanted::PreferStandby {
            match Self::open_wanted(info, params, Wanted::Standby) {
                Err(error) if error.class().is_transient() => {}
                result => return result,
            }
        }
        Self::open_wanted(info, params, info.target_session_attrs)
    }

    fn open_wanted(
        info: &ConnectInfo,
        params: &SessionParams,
        wanted: Wanted,
    ) -> Result<Self, WalError> {
        dial::first_acceptable(info, |wire, endpoint, deadline| {
            let binding = wire.binding();
            let login = Access { info, endpoint, binding, deadline };
            let mut connection = Self::log_in(wire, login, params)?;
            connection.set_for_session(&CANONICAL)?;
            connection.check_session_attributes(wanted)?;
            Ok(connection)
        })
    }

    /// Whether it is a unix socket.
    pub fn is_local(&self) -> bool {
        self.endpoint.starts_with('/')
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.session.transport.is_encrypted()
    }
}

/// What one login needs beside the pipe.
pub(super) struct Access<'a> {
    pub(super) info: &'a ConnectInfo,
    pub(super) endpoint: &'a Endpoint,
    pub(super) binding: Option<Vec<u8>>,
    pub(super) deadline: Option<Instant>,
}

impl<T: Transport> Connection<T> {
    /// Logs in over an open pipe.
    pub(super) fn log_in(
        transport: T,
        access: Access<'_>,
        params: &SessionParams,
    ) -> Result<Self, WalError> {
        let mut session = MessageChannel::new(transport);
        let Access { info, endpoint, binding, deadline } = access;
        let mut parameters = Vec::new();
        parameters.extend(params.replicates.then_some(("replication", "database")));
        if params.encoding != StreamEncoding::Unknown {
            parameters.push(("client_encoding", "UTF8"));
        }
        let login = Login { info, endpoint, parameters: &parameters, binding, deadline };
        let backend_pid = login.run(&mut session)?;
        session.buffer.set_limit(params.frame_bytes_max);
        Ok(Self { session, endpoint: endpoint.to_string(), backend_pid, params: params.clone() })
    }

    /// One that is logged in already.
    #[cfg(test)]
    pub(super) fn over(transport: T, frame_bytes_max: usize) -> Self {
        let mut session = MessageChannel::new(transport);
        session.buffer.set_limit(frame_bytes_max);
        let (endpoint, params) = (String::new(), SessionParams::default());
        Self { session, endpoint, backend_pid: 0, params }
    }

    /// Runs one SQL or replication command and returns its rows as text.
    pub fn simple_query(&mut self, sql: &str) -> Result<Vec<TextRow>, WalError> {
        let deadline = self.send_command(sql)?;
        self.answer(deadline)
    }

    /// The same for a command that waits for other sessions, for as long as they take.
    pub fn patient_query(&mut self, sql: &str) -> Result<Vec<TextRow>, WalError> {
        self.send_command(sql)?;
        self.answer(None)
    }

    fn answer(&mut self, deadline: Option<Instant>) -> Result<Vec<TextRow>, WalError> {
        let (mut rows, mut failed) = (Vec::new(), None);
        loop {
            match self.session.next(deadline, "waiting for an answer")? {
                Incoming::Message(Message::DataRow(body)) => rows.push(text_row(&body)?),
                Incoming::Message(Message::ErrorResponse(body)) => {
                    let message = self.session.server_message(body.fields());
                    failed = Some(WalError::Server(Box::new(message)));
                    if is_fatal(failed.as_ref()) {
                        break;
                    }
                }
                Incoming::Message(Message::ReadyForQuery(_)) => break,
                Incoming::Message(
                    Message::RowDescription(_)
                    | Message::CommandComplete(_)
                    | Message::EmptyQueryResponse,
                ) => {}
                _ => return Err(WalError::Protocol("an unexpected answer to a query")),
            }
        }
        failed.map_or(Ok(rows), Err)
    }

    /// Asks the server who it is.
    pub fn identify_system(&mut self) -> Result<SystemIdentity, WalError> {
        let malformed = || WalError::Protocol("a malformed answer to IDENTIFY_SYSTEM");
        let rows = self.simple_query("IDENTIFY_SYSTEM")?;
        let [Some(system_id), Some(timeline), Some(flushed), ..] =
            rows.first().map(Vec::as_slice).unwrap_or_default()
        else {
            return Err(malformed());
        };
        Ok(SystemIdentity {
            system_id: system_id.clone(),
            timeline: timeline.parse().map_err(|_| malformed())?,
            flushed: flushed.parse().map_err(|_| malformed())?,
        })
    }

    /// Asks the server which of its processes serves us.
    pub fn server_process(&mut self) -> Result<ServerProcess, WalError> {
        const SQL: &str = "SELECT pg_catalog.pg_backend_pid(), \
            (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint";
        let malformed = || WalError::Protocol("a malformed answer about our server process");
        let rows = self.simple_query(SQL)?;
        let [Some(pid), Some(started)] = rows.first().map(Vec::as_slice).unwrap_or_default() else {
            return Err(malformed());
        };
        Ok(ServerProcess {
            pid: pid.parse().map_err(|_| malformed())?,
            server_started_us: started.parse().map_err(|_| malformed())?,
        })
    }

    /// What a timeline descends from. The first has no history, and neither has one whose history
    /// file the server does not keep: both are empty.
    pub fn timeline_history(&mut self, timeline: u32) -> Result<TimelineHistory, WalError> {
        const UNDEFINED_FILE: &str = "58P01";
        if timeline <= 1 {
            return Ok(TimelineHistory::new());
        }
        let rows = match self.simple_query(&format!("TIMELINE_HISTORY {timeline}")) {
            Err(WalError::Server(server)) if server.code == UNDEFINED_FILE => return Ok(Vec::new()),
            rows => rows?,
        };
        match rows.first().map(Vec::as_slice) {
            Some([_, Some(content)]) => history::parse(content),
            _ => Err(WalError::Protocol("a malformed answer to TIMELINE_HISTORY")),
        }
    }

    /// Starts streaming the slot's changes to the publication's tables, from `start` or, when that
    /// is lower (such as [`Lsn::ZERO`]), from where the slot was last acknowledged. `start` must
    /// come from this very cluster: the server accepts a position of the future silently, and the
    /// rows before it are then lost.
    pub fn start(
        mut self,
        slot: &str,
        publication: &str,
        start: Lsn,
    ) -> Result<Stream<T>, Box<StartRefused<T>>> {
        match self.request_stream(slot, publication, start) {
            Ok(()) => {
                let names = Names { slot: slot.to_owned(), publication: publication.to_owned() };
                Ok(Stream::new(self.session, names))
            }
            Err(error) => {
                let alive = match &error {
                    WalError::SlotHeld { .. } => true,
                    WalError::Server(_) => !is_fatal(Some(&error)),
                    _ => false,
                };
                // Whoever has it asks for text that is no stream next.
                let alive = alive && self.speak(None).is_ok();
                Err(Box::new(StartRefused { connection: alive.then_some(self), error }))
            }
        }
    }

    fn request_stream(
        &mut self,
        slot: &str,
        publication: &str,
        start: Lsn,
    ) -> Result<(), WalError> {
        let command = quote::start_replication(slot, publication, start, self.params.messages);
        let deadline = match self.params.encoding.clone() {
            StreamEncoding::Utf8 | StreamEncoding::Unknown => self.send_command(&command)?,
            StreamEncoding::Own(charset) => {
                let Some(command) = charset.encode(&command) else {
                    // Its encoding has no such name.
                    let (publication, slot) = (publication.to_owned(), slot.to_owned());
                    return Err(WalError::PublicationMissing { publication, slot });
                };
                self.speak(Some(charset))?;
                self.send_query(&command)?
            }
        };
        let mut failed = None;
        loop {
            match self.session.next(deadline, "starting to stream")? {
                Incoming::CopyBoth => return Ok(()),
                Incoming::Message(Message::ErrorResponse(body)) => {
                    let server = Box::new(self.session.server_message(body.fields()));
                    let error = if server.code == "55006" {
                        WalError::SlotHeld { slot: slot.to_owned(), server }
                    } else {
                        WalError::Server(server)
                    };
                    if is_fatal(Some(&error)) {
                        return Err(error);
                    }
                    failed = Some(error);
                }
                Incoming::Message(Message::ReadyForQuery(_)) => {
                    return Err(failed.unwrap_or(WalError::Ended));
                }
                Incoming::Message(Message::CommandComplete(_)) => {}
                Incoming::Message(_) => {
                    return Err(WalError::Protocol("an unexpected answer to START_REPLICATION"));
                }
            }
        }
    }

    /// Sets these parameters for the session, as far as the server has them.
    pub(super) fn set_for_session(&mut self, settings: &[(&str, &str)]) -> Result<(), WalError> {
        let values: Vec<String> =
            settings.iter().map(|(name, value)| format!("('{name}', '{value}')")).collect();
        let sql = format!(
            "SELECT pg_catalog.set_config(own.name, own.value, false) FROM (VALUES {}) AS own (name, value) \
             WHERE pg_catalog.current_setting(own.name, true) IS NOT NULL",
            values.join(", ")
        );
        self.simple_query(&sql).map(|_| ())
    }

    /// What is below it, for who reads answers as they come.
    pub(super) fn into_channel(self) -> MessageChannel<T> {
        self.session
    }

    /// From now on both sides speak in this encoding; `None` is UTF8, which a
    /// database in SQL_ASCII does not convert to.
    fn speak(&mut self, charset: Option<Arc<Charset>>) -> Result<(), WalError> {
        if self.session.charset == charset {
            return Ok(());
        }
        let name = charset.as_ref().map_or("UTF8", |charset| charset.name());
        self.simple_query(&format!("SET client_encoding = {}", quote::literal(name)))?;
        self.session.charset = charset;
        Ok(())
    }

    fn send_command(&mut self, text: &str) -> Result<Option<Instant>, WalError> {
        self.send_query(text.as_bytes())
    }

    /// Sends a command that is in the encoding of the session.
    fn send_query(&mut self, text: &[u8]) -> Result<Option<Instant>, WalError> {
        let deadline = Instant::now().checked_add(self.params.reply_timeout);
        let message = quote::query_message(text)?;
        self.session.send(&message, deadline, "sending a command")?;
        Ok(deadline)
    }

    fn check_session_attributes(&mut self, wanted: Wanted) -> Result<(), WalError> {
        let Some(check) = dial::session_check(wanted) else { return Ok(()) };
        let rows = self.simple_query(check.sql)?;
        match rows.first().and_then(|row| row.first()) {
            Some(Some(value)) if value == check.expected => Ok(()),
            _ => {
                let endpoint = self.endpoint.clone();
                Err(WalError::WrongSession { endpoint, wanted: check.name })
            }
        }
    }

    /// The server process that serves us, as pg_stat_activity numbers it.
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// The server we are connected to, `host:port` or the socket's path.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A setting the server reported at login, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameter(name)
    }

    /// The notices that came so far.
    pub fn take_notices(&mut self) -> Vec<ServerMessage> {
        self.session.take_notices()
    }
}

/// Whether the server ends the connection after this error.
fn is_fatal(error: Option<&WalError>) -> bool {
    let Some(WalError::Server(server) | WalError::SlotHeld { server, .. }) = error else {
        return false;
    };
    matches!(server.severity.as_str(), "FATAL" | "PANIC")
}

fn text_row(body: &DataRowBody) -> Result<TextRow, WalError> {
    let malformed = |_| WalError::Protocol("a malformed row");
    let mut ranges = body.ranges();
    let mut row = Vec::new();
    while let Some(range) = ranges.next().map_err(malformed)? {
        let Some(range) = range else {
            row.push(None);
            continue;
        };
        let bytes = body.buffer().get(range).ok_or(WalError::Protocol("a malformed row"))?;
        row.push(Some(String::from_utf8_lossy(bytes).into_owned()));
    }
    Ok(row)
}

#[cfg(test)]
mod tests;
