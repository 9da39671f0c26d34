//! A replication connection before it streams: logs in, runs queries, starts the stream.
//!
//! Output: rows of queries, facts about the server, and finally a [`Stream`]. Invariant: the server
//! fits `target_session_attrs`. The text format of all values (dates, floats, bytea) does not
//! depend on role or database.

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

/// Far above a broker's limit (1 MiB by default), so that a row that is too large becomes a dead
/// letter.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings that fix the text of values, send warnings and remove limits, which would end a stream.
/// The settings follow the login, because poolers refuse a login that names them, and old servers
/// one with a later version's limit.
const CANONICAL: [(&str, &str); 11] = [
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    // PostgreSQL 18 only warns about a missing publication.
    ("client_min_messages", "notice"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("transaction_timeout", "0"),
];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StreamEncoding {
    /// A character without an equivalent breaks the stream for good.
    #[default]
    Utf8,
    /// Encoding of an SQL_ASCII database. The server cannot convert bytes above 127, which would
    /// break the stream for good.
    Unknown,
    /// The reader converts the database's single-byte encoding.
    Own(Arc<Charset>),
}

impl StreamEncoding {
    /// `characters`: of the bytes from 128 on; `None` without an equivalent in UTF-8.
    pub fn own(name: &str, characters: [Option<char>; 128]) -> Self {
        Self::Own(Arc::new(Charset::new(name.to_owned(), characters)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionParams {
    /// Larger frames are refused before anything is allocated for them.
    pub frame_bytes_max: usize,
    pub reply_timeout: Duration,
    /// Encoding of the stream. Other answers are in UTF-8, except from an SQL_ASCII database.
    pub encoding: StreamEncoding,
    /// `pg_logical_emit_message`; requires PostgreSQL 14.
    pub messages: bool,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// A restored backup shares the identifier with its origin.
    pub system_id: String,
    pub timeline: u32,
    pub flushed: Lsn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerProcess {
    /// The login may have reported a proxy's process.
    pub pid: i32,
    /// Microseconds since the Unix epoch. Unique, while standbys and copies share process ids and
    /// system identifiers.
    pub server_started_us: i64,
}

pub type TextRow = Vec<Option<String>>;

/// The connection is returned unless the server has ended it.
#[derive(Debug)]
pub struct StartRefused<T = Wire> {
    pub connection: Option<Connection<T>>,
    pub error: WalError,
}

#[derive(Debug)]
pub struct Connection<T = Wire> {
    session: MessageChannel<T>,
    endpoint: String,
    backend_pid: i32,
    params: SessionParams,
}

impl Connection<Wire> {
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

    pub fn is_local(&self) -> bool {
        self.endpoint.starts_with('/')
    }

    pub fn is_encrypted(&self) -> bool {
        self.session.transport.is_encrypted()
    }
}

pub(super) struct Access<'a> {
    pub(super) info: &'a ConnectInfo,
    pub(super) endpoint: &'a Endpoint,
    pub(super) binding: Option<Vec<u8>>,
    pub(super) deadline: Option<Instant>,
}

impl<T: Transport> Connection<T> {
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

    #[cfg(test)]
    pub(super) fn over(transport: T, frame_bytes_max: usize) -> Self {
        let mut session = MessageChannel::new(transport);
        session.buffer.set_limit(frame_bytes_max);
        let (endpoint, params) = (String::new(), SessionParams::default());
        Self { session, endpoint, backend_pid: 0, params }
    }

    pub fn simple_query(&mut self, sql: &str) -> Result<Vec<TextRow>, WalError> {
        let deadline = self.send_command(sql)?;
        self.answer(deadline)
    }

    /// No time limit, because the command waits for other sessions.
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

    /// Empty for the first timeline, or without a history file.
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

    /// Streams from `start` or, if lower, the slot's acknowledged position. `start` must come from
    /// this cluster: the server silently accepts a future position, and earlier rows are then lost.
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

    pub(super) fn into_channel(self) -> MessageChannel<T> {
        self.session
    }

    /// `None` is UTF8, to which an SQL_ASCII database does not convert.
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

    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameter(name)
    }

    pub fn take_notices(&mut self) -> Vec<ServerMessage> {
        self.session.take_notices()
    }
}

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
