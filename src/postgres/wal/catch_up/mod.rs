//! A backlog, read by SQL in windows of the log, as a stream of frames: it costs the server half of what streaming
//! costs, which calls the system for each message.
//!
//! Input: the [`Stream`] that holds the slot, and a connection of its own, on which `pg_logical_slot_get_binary_changes`
//! moves a temporary copy of the slot forward, window after window. Output: the frames that the stream would have
//! brought, and a keepalive at the end of each window. The server decodes one window while another is read.
//!
//! Invariant: the slot itself is moved by [`CatchUp::acknowledge`] alone, and stays ours (G1, G2): the stream stays open
//! and is told what is settled, and what it brings is thrown away; the copy ends with its connection, or soon after the
//! stream. A window shows what is
//! committed before its end, so that its end is a position up to which everything was received. Where standbys are to
//! have a row before it is sent, nothing is read in windows (G1). Memory is that of a
//! stream (G3); malformed bytes are an error (G7).

mod error;
#[cfg(test)]
mod tests;
mod tuple;
mod windows;

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres_protocol::message::backend::Message;

use super::buffer::{HEADER_BYTES, Head};
use super::connection::{Connection, TextRow};
use super::error::WalError;
use super::message_channel::{Incoming, MessageChannel, parse};
use super::quote::{self, identifier, literal};
use super::stream::{Large, Stream, is_frame, is_missing_publication};
use super::transport::{Transport, Wire};
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::pgoutput::{Excerpt, PgTime};
use windows::{WINDOW_BYTES_MIN, Windows};

pub use error::CatchUpError;
pub use windows::DECODED_BEFORE_BYTES_MAX;

/// What the name of a copy begins with. Then come the numbers of two server processes: its own, and that of the stream.
pub(crate) const COPY_PREFIX: &str = "postrider_catch_up";
/// Windows that are asked for at a time: one is read, one is decoded.
const ASKED_MAX: usize = 2;
/// A window is read within a second or so. Until it is, the server keeps rows that were deleted since it began.
const WINDOW_OPEN_MAX: Duration = Duration::from_mins(2);
/// What moving the slot's `restart_lsn` may take at the end: on PostgreSQL 15 0.8 s for 372 MiB, with all cores busy.
const ADVANCE_LIMIT: Duration = Duration::from_secs(10);
/// When the server itself gives it up. A process that went on without us would hold the slot against the next session.
const ADVANCE_SERVER_LIMIT: &str = "8s";
/// How often the stream is read. A server with `tcp_user_timeout = 5s` ended a stream of which nothing was read after 5.9 s.
const DISCARD_EVERY: Duration = Duration::from_secs(1);
/// The slot's `restart_lsn` moves at the end of a session: until then the server keeps all of its log, and another relay
/// would repeat what it brought if the server were restarted. Moving it takes the longer the more there is.
const SESSION_BYTES_MAX: u64 = 512 << 20;
/// While a session reads, others may write this many times as much before the server gives up the slot.
const SAFE_PART: u64 = 4;
/// Less log than this is not worth moving it for.
const ADVANCE_BYTES_MIN: u64 = 16 << 20;

/// `work_mem` holds what a window brings, but for a large transaction. A connection whose relay is gone ends by itself. To
/// TCP, one that does not read is gone as well: it has longer than [`WINDOW_OPEN_MAX`]. Over a Unix socket see [`guard_sql`].
const SETTINGS: [(&str, &str); 7] = [
    ("work_mem", "32MB"),
    ("jit", "off"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "180s"),
    ("client_connection_check_interval", "10s"),
];

/// The connection of the guard ends when its relay does.
const GUARD_SETTINGS: [(&str, &str); 2] =
    [("client_connection_check_interval", "1s"), ("idle_session_timeout", "10s")];

/// From PostgreSQL 17 on. A copy of the slot is not one that these are waited for by.
const AWAITED_STANDBYS: &str =
    "SELECT pg_catalog.current_setting('synchronized_standby_slots', true)";
/// Windows end where the log on disk does, whatever position they are asked for.
const FLUSHED: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";

/// What is read, and how far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether logical messages are wanted too.
    pub messages: bool,
    /// Where the slot stands.
    pub from: Lsn,
    /// Where the backlog ends: nothing later than the end of the server's log.
    pub until: Lsn,
    /// Bytes of log from the slot's `restart_lsn` to `from`.
    pub before: u64,
    /// Bytes that the server may yet write before it gives up the slot, if that is limited.
    pub safe: Option<u64>,
    /// The server process that streams.
    pub stream_pid: i32,
    /// When the server was started whose slot that is; see [`ServerProcess`](super::connection::ServerProcess).
    pub server_started_us: i64,
}

impl Backlog {
    /// As much of it as one session reads: what is on disk, and no more than may be written meanwhile.
    /// Upholds G1.
    fn up_to(self, flushed: Lsn) -> Result<Self, CatchUpError> {
        let safe = self.safe.map_or(u64::MAX, |safe| safe / SAFE_PART);
        let bytes = safe.min(SESSION_BYTES_MAX);
        let until = self.until.min(flushed).min(Lsn::new(self.from.get().saturating_add(bytes)));
        if until.bytes_since(self.from) < WINDOW_BYTES_MIN.min(self.until.bytes_since(self.from)) {
            return Err(CatchUpError::Short);
        }
        Ok(Self { until, ..self })
    }
}

/// A connection with a temporary copy of the slot.
#[derive(Debug)]
pub struct SlotCopy<T = Wire> {
    connection: Connection<T>,
    /// The server process that has it.
    pid: i32,
    name: String,
    backlog: Backlog,
    guard: Option<MessageChannel<T>>,
}

impl<T: Transport> SlotCopy<T> {
    /// Copies the slot, which this relay holds, over a connection that is good for SQL. A proxy may have led it to another
    /// server than the stream, with a slot of the same name that stands elsewhere.
    /// Upholds G1.
    pub fn make(mut connection: Connection<T>, backlog: Backlog) -> Result<Self, WalError> {
        let process = connection.server_process()?;
        if process.server_started_us != backlog.server_started_us {
            return Err(CatchUpError::OtherServer.into());
        }
        connection.set_for_session(&SETTINGS)?;
        let awaited = connection.simple_query(AWAITED_STANDBYS)?;
        if awaited.iter().flatten().flatten().any(|names| !names.is_empty()) {
            return Err(CatchUpError::StandbysAwaited.into());
        }
        let backlog = backlog.up_to(position(&connection.simple_query(FLUSHED)?))?;
        let name = format!("{COPY_PREFIX}_{}_{}", process.pid, backlog.stream_pid);
        let sql = format!(
            "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, true)",
            literal(&backlog.slot),
            literal(&name)
        );
        if position(&connection.simple_query(&sql).map_err(refused)?) != backlog.from {
            return Err(CatchUpError::OtherServer.into());
        }
        Ok(Self { connection, pid: process.pid, name, backlog, guard: None })
    }

    /// Has a server process end the copy once the stream is gone, over a connection of its own.
    pub fn guarded_by(self, mut connection: Connection<T>) -> Result<Self, WalError> {
        connection.set_for_session(&GUARD_SETTINGS)?;
        let sql = guard_sql(&self.name, self.pid, self.backlog.stream_pid);
        let mut guard = connection.into_channel();
        guard.queue(&query(&sql)?);
        guard.push_out()?;
        Ok(Self { guard: Some(guard), ..self })
    }

    /// Reads it, while the stream holds the slot.
    pub fn over(self, stream: Stream<T>) -> CatchUp<T> {
        let Self { connection, name, backlog, guard, .. } = self;
        let rows = connection.into_channel();
        CatchUp {
            bytes_before: rows.bytes_read,
            windows: Windows::new(backlog.from, backlog.until, backlog.before),
            stream,
            rows,
            name,
            backlog,
            asked: VecDeque::new(),
            read_since: Instant::now(),
            read_from: 0,
            before: 0,
            is_first: true,
            ended: None,
            large: None,
            sent_us: 0,
            received: Lsn::ZERO,
            is_slow: false,
            is_pinged: false,
            discarded: Instant::now(),
            _guard: guard,
        }
    }
}

/// What ends the copy when its stream has been gone for 10 s to 20 s. A relay that is frozen cannot, and what it does not read
/// of a window keeps its server process from being interrupted by anything but `pg_terminate_backend`: of PostgreSQL 15 a COPY
/// that could not be written over a Unix socket outlived `statement_timeout` and `idle_session_timeout`. Each look is a
/// transaction of its own, so that VACUUM waits for none of them.
fn guard_sql(name: &str, copy: i32, stream: i32) -> String {
    let name = literal(name);
    format!(
        "DO $guard$ DECLARE looks integer := 0; BEGIN \
         WHILE looks < 2 LOOP \
             COMMIT; PERFORM pg_catalog.pg_sleep(10); COMMIT; \
             IF NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots \
                 WHERE slot_name = {name} AND active_pid = {copy}) THEN RETURN; END IF; \
             looks := CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_stat_get_wal_senders() AS sender \
                 WHERE sender.pid = {stream}) THEN 0 ELSE looks + 1 END; \
         END LOOP; \
         PERFORM pg_catalog.pg_terminate_backend({copy}); \
         END $guard$"
    )
}

/// See the module's documentation.
#[derive(Debug)]
pub struct CatchUp<T = Wire> {
    stream: Stream<T>,
    rows: MessageChannel<T>,
    /// The copy of the slot.
    name: String,
    backlog: Backlog,
    windows: Windows,
    /// Where the windows end that were asked for and are not over.
    asked: VecDeque<Lsn>,
    /// Since when the first of them is read, and from which byte.
    read_since: Instant,
    read_from: u64,
    /// What the server said last of how much log it decodes in vain.
    before: u64,
    /// Whether the file's header is still to come.
    is_first: bool,
    /// The end of a window, which is shown next.
    ended: Option<Lsn>,
    /// The frame over the limit that passes, or has passed and was not consumed yet.
    large: Option<Box<Large>>,
    sent_us: i64,
    received: Lsn,
    bytes_before: u64,
    /// Whether it was said that a window is open for too long.
    is_slow: bool,
    /// Whether the server was asked if it is there.
    is_pinged: bool,
    /// When the stream was read.
    discarded: Instant,
    /// Ends with the windows.
    _guard: Option<MessageChannel<T>>,
}

impl<T: Transport> CatchUp<T> {
    /// Where the first window begins.
    pub const fn from(&self) -> Lsn {
        self.backlog.from
    }

    /// Where the last window ends.
    pub const fn until(&self) -> Lsn {
        self.backlog.until
    }

    /// As [`Stream::fill`].
    pub fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        self.ask()?;
        self.stream.push_out()?;
        let bytes = self.rows.read_available()?;
        if bytes > 0 || wait.is_zero() || self.rows.buffer.room()?.is_empty() {
            return Ok(bytes);
        }
        self.rows.buffer.shrink();
        self.rows.wait(wait)?;
        self.rows.push_out()?;
        self.rows.read_available()
    }

    /// Asks for windows, so that the server always has one to decode.
    fn ask(&mut self) -> Result<(), WalError> {
        while self.asked.len() < ASKED_MAX
            && let Some(end) = self.windows.next()
        {
            if self.asked.is_empty() {
                self.begin_window();
            }
            self.asked.push_back(end);
            self.rows.queue(&query(&self.window_sql(end))?);
        }
        self.rows.push_out()?;
        Ok(())
    }

    /// Throws away some of what the stream brings, so that neither the server nor a proxy takes us for dead.
    pub fn tend(&mut self) -> Result<(), WalError> {
        if self.discarded.elapsed() < DISCARD_EVERY {
            return Ok(());
        }
        self.discarded = Instant::now();
        self.stream.discard()
    }

    /// Bytes that were read and consumed.
    fn place(&self) -> u64 {
        self.rows.bytes_read - self.rows.buffer.len() as u64
    }

    fn begin_window(&mut self) {
        (self.read_since, self.read_from) = (Instant::now(), self.place());
        self.sent_us = PgTime::from_unix_us(now_us()).0;
    }

    /// What is committed before `end`, and how far behind that the server will begin to decode.
    fn window_sql(&self, end: Lsn) -> String {
        let Self { name, backlog: Backlog { publication, messages, .. }, .. } = self;
        let (name, publication) = (literal(name), literal(&identifier(publication)));
        let messages = if *messages { ", 'messages', 'true'" } else { "" };
        format!(
            "COPY (SELECT lsn, data FROM pg_catalog.pg_logical_slot_get_binary_changes({name}, '{end}', NULL, \
             'proto_version', '1', 'publication_names', {publication}{messages})) TO STDOUT (FORMAT binary); \
             SELECT CASE WHEN coalesce(({AWAITED_STANDBYS}), '') = '' \
             THEN pg_catalog.pg_wal_lsn_diff(confirmed_flush_lsn, restart_lsn)::bigint ELSE -1 END \
             FROM pg_catalog.pg_replication_slots WHERE slot_name = {name}"
        )
    }

    /// As [`Stream::peek`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        loop {
            if self.large.is_some() {
                return self.peek_large();
            }
            if let Some(end) = self.ended {
                return Ok(Some(Frame::Keepalive { end, reply_now: false }));
            }
            let head = match self.rows.buffer.head() {
                Ok(Some(head)) => head,
                Ok(None) if self.asked.is_empty() && self.windows.is_far() => {
                    return Err(CatchUpError::Far.into());
                }
                Ok(None) => return Ok(None),
                Err(error) if self.begin_large(&error)? => continue,
                Err(error) if is_frame(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if head.tag != b'd' {
                self.aside(head)?;
                continue;
            }
            if tuple::is_empty(self.rows.buffer.body(head), self.is_first)? {
                self.rows.buffer.consume(head);
                self.is_first = false;
                continue;
            }
            let (start, data) = tuple::parse(self.rows.buffer.body(head), self.is_first)?;
            self.received = self.received.max(start);
            return Ok(Some(Frame::Wal { start, sent_us: self.sent_us, data }));
        }
    }

    /// As for a stream.
    #[cold]
    fn begin_large(&mut self, error: &WalError) -> Result<bool, WalError> {
        let &WalError::MessageTooLarge { tag: b'd', bytes, .. } = error else { return Ok(false) };
        let before = tuple::before_message(self.is_first);
        if bytes < HEADER_BYTES + before {
            return Err(WalError::Protocol("a row without a message, over the limit"));
        }
        let Some(beginning) = self.rows.buffer.beginning(before) else { return Ok(false) };
        let start = tuple::position(beginning, self.is_first)?;
        self.rows.buffer.pass(bytes, before);
        let excerpt =
            Excerpt::begin(self.rows.buffer.passing()).in_charset(self.rows.charset.clone());
        self.large = Some(Box::new(Large { start, sent_us: self.sent_us, excerpt }));
        Ok(true)
    }

    #[cold]
    fn peek_large(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        let Some(large) = &mut self.large else { return Ok(None) };
        if !large.take_from(&mut self.rows.buffer)? {
            return Ok(None);
        }
        self.received = self.received.max(large.start);
        Ok(Some(large.frame()))
    }

    /// Lets go of the frame that `peek` showed.
    #[inline]
    pub fn consume(&mut self) {
        if self.large.take().is_some() {
            self.is_first = false;
        } else if self.ended.is_some() {
            self.ended = None;
        } else if let Ok(Some(head)) = self.rows.buffer.head()
            && head.tag == b'd'
        {
            self.rows.buffer.consume(head);
            self.is_first = false;
        }
    }

    /// Handles everything that is not a row.
    fn aside(&mut self, head: Head) -> Result<(), WalError> {
        if self.rows.set_aside(head)? {
            // The rest of the window may lack rows. Upholds G4.
            return match self.rows.last_notice().filter(|_| head.tag == b'N') {
                Some(notice) if is_missing_publication(notice) => {
                    Err(CatchUpError::Refused(Box::new(notice.clone())).into())
                }
                _ => Ok(()),
            };
        }
        match head.tag {
            // CopyOutResponse.
            b'H' => self.is_first = true,
            // The end of a copy, of a command; the columns of an answer.
            b'c' | b'C' | b'T' => {}
            // The answer of a server that was asked for nothing.
            b'I' if self.is_pinged => {}
            b'Z' if std::mem::take(&mut self.is_pinged) => {}
            b'D' => {
                let before = number(self.rows.buffer.body(head))?;
                // Less than nothing: since the session began, standbys are to have a row first.
                self.before = u64::try_from(before).map_err(|_| CatchUpError::StandbysAwaited)?;
            }
            b'Z' => {
                self.rows.buffer.consume(head);
                return self.end_window();
            }
            b'E' => {
                return match parse(self.rows.buffer.whole(head))? {
                    // Not consumed: every further call says the same.
                    Message::ErrorResponse(body) => Err(refused(WalError::Server(Box::new(
                        self.rows.server_message(body.fields()),
                    )))),
                    _ => Err(WalError::Protocol("a malformed error")),
                };
            }
            _ => return Err(WalError::Protocol("an unexpected message in a window")),
        }
        self.rows.buffer.consume(head);
        Ok(())
    }

    fn end_window(&mut self) -> Result<(), WalError> {
        let Some(end) = self.asked.pop_front() else {
            return Err(WalError::Protocol("the end of a window that nobody asked for"));
        };
        let brought = self.place() - self.read_from;
        self.windows.learn(brought, self.before);
        self.begin_window();
        self.received = self.received.max(end);
        self.ended = Some(end);
        self.ask()
    }

    /// As [`Stream::acknowledge`]. Also sees to it that the slot is ours still, and says once that a window is open for
    /// too long. While no window is asked for, it is where windows come from that answers: the stream is not read.
    /// Upholds G1.
    pub fn acknowledge(&mut self, settled: Lsn, ask_reply: bool) -> Result<Lsn, WalError> {
        self.stream.see_end()?;
        if ask_reply && self.asked.is_empty() && !self.is_pinged {
            self.is_pinged = true;
            self.rows.queue(&query("")?);
        }
        self.stream.has_received(self.received);
        let told = self.stream.acknowledge(settled, ask_reply)?;
        if !self.is_slow && !self.asked.is_empty() && self.read_since.elapsed() > WINDOW_OPEN_MAX {
            self.is_slow = true;
            return Err(CatchUpError::Slow { seconds: WINDOW_OPEN_MAX.as_secs() }.into());
        }
        Ok(told)
    }

    /// As [`Stream::finish`]. Then the slot's `restart_lsn` follows what was acknowledged, which the stream, whose
    /// server process has decoded little, did not see to: the next session begins to decode there.
    pub fn finish(self, limit: Duration) -> Result<(), WalError> {
        let Self { stream, mut rows, backlog, asked, is_pinged, .. } = self;
        let acknowledged = stream.acknowledged();
        stream.finish(limit)?;
        if asked.is_empty() && acknowledged.bytes_since(backlog.from) >= ADVANCE_BYTES_MIN {
            // If it fails, as where another relay has the slot by now, the next session decodes more than it must.
            let answers = 1 + usize::from(is_pinged);
            let _ = advance(&mut rows, &backlog.slot, acknowledged, answers);
        }
        Ok(())
    }

    /// The highest position up to which frames were read.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Bytes read in this session, framing included.
    pub fn received_bytes(&self) -> u64 {
        self.rows.bytes_read - self.bytes_before
    }

    /// The highest position the server was told is settled.
    pub fn acknowledged(&self) -> Lsn {
        self.stream.acknowledged()
    }

    /// Bytes that are read and not consumed.
    pub fn buffered(&self) -> usize {
        self.rows.buffer.len()
    }
}

/// The position that an answer consists of.
fn position(rows: &[TextRow]) -> Lsn {
    rows.iter().flatten().flatten().find_map(|text| text.parse().ok()).unwrap_or(Lsn::ZERO)
}

/// Moves the slot to where it is acknowledged already, and its `restart_lsn` after it. The last of so many `answers` says
/// that it is done.
fn advance<T: Transport>(
    rows: &mut MessageChannel<T>,
    slot: &str,
    acknowledged: Lsn,
    answers: usize,
) -> Result<(), WalError> {
    const DOING: &str = "advancing the slot";
    let deadline = Instant::now().checked_add(ADVANCE_LIMIT);
    let sql = format!(
        "SET statement_timeout = '{ADVANCE_SERVER_LIMIT}'; \
         SELECT pg_catalog.pg_replication_slot_advance({}, '{acknowledged}')",
        literal(slot)
    );
    rows.send(&query(&sql)?, deadline, DOING)?;
    let is_answered = |incoming| matches!(incoming, Incoming::Message(Message::ReadyForQuery(_)));
    for _ in 0..answers {
        while !is_answered(rows.next(deadline, DOING)?) {}
    }
    Ok(())
}

/// A simple query as a message.
fn query(sql: &str) -> Result<Vec<u8>, WalError> {
    quote::query_message(sql.as_bytes())
}

/// What the server says no to, or ends.
fn refused(error: WalError) -> WalError {
    match error {
        // Class 57: an operator has intervened, or the server stops.
        WalError::Server(server) if server.code.starts_with("57P") => {
            CatchUpError::Ended(server).into()
        }
        WalError::Server(server) => CatchUpError::Refused(server).into(),
        error => error,
    }
}

/// The number in a row of one column; a slot that is gone has none, and the next window says why.
fn number(body: &[u8]) -> Result<i64, WalError> {
    let text = body.get(6..).and_then(|text| str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok())
        .ok_or(WalError::Protocol("a malformed answer about the copy of the slot"))
}

/// Microseconds since 1970.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
