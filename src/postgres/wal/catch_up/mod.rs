//! Reads a backlog by SQL in windows of the log, as a stream of frames. Streaming costs the server
//! twice as much: a system call per message.
//!
//! Input: the [`Stream`] that holds the slot, and a connection on which
//! `pg_logical_slot_get_binary_changes` advances a temporary copy of the slot. Output: the stream's
//! frames, and a keepalive per window.
//!
//! Invariant: only [`CatchUp::acknowledge`] moves the slot, which stays held (G1, G2). A window
//! contains everything committed before its end. If standbys must receive a row first, nothing is
//! read in windows (G1). Memory is a stream's (G3); malformed bytes are an error (G7).

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

/// Prefix of a copy's name; the process ids of copy and stream follow.
pub(crate) const COPY_PREFIX: &str = "postrider_catch_up";
const ASKED_MAX: usize = 2;
/// Limit for reading a window, usually about a second. Meanwhile the server keeps rows deleted
/// since the window's start.
const WINDOW_OPEN_MAX: Duration = Duration::from_mins(2);
/// Limit for moving the slot. Measured: 0.8 s for 372 MiB on PostgreSQL 15 with all cores busy.
const ADVANCE_LIMIT: Duration = Duration::from_secs(10);
/// A process that continues alone would hold the slot against the next session.
const ADVANCE_SERVER_LIMIT: &str = "8s";
/// A server with `tcp_user_timeout = 5s` ended an unread stream after 5.9 s.
const DISCARD_EVERY: Duration = Duration::from_secs(1);
/// `restart_lsn` moves only at the session's end: until then the server keeps the log, and another
/// relay would repeat rows after a server restart.
const SESSION_BYTES_MAX: u64 = 512 << 20;
/// Divisor of the bytes until invalidation, because others write while a session reads.
const SAFE_PART: u64 = 4;
const ADVANCE_BYTES_MIN: u64 = 16 << 20;

/// `work_mem` holds a window's rows, unless a transaction is large. Over TCP the server ends a
/// connection whose relay is gone, or does not read for longer than [`WINDOW_OPEN_MAX`]. A Unix
/// socket needs [`guard_sql`].
const SETTINGS: [(&str, &str); 7] = [
    ("work_mem", "32MB"),
    ("jit", "off"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "180s"),
    ("client_connection_check_interval", "10s"),
];

const GUARD_SETTINGS: [(&str, &str); 2] =
    [("client_connection_check_interval", "1s"), ("idle_session_timeout", "10s")];

/// Since PostgreSQL 17. The server does not make a copy of the slot wait for these standbys.
const AWAITED_STANDBYS: &str =
    "SELECT pg_catalog.current_setting('synchronized_standby_slots', true)";
const FLUSHED: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    pub slot: String,
    pub publication: String,
    pub messages: bool,
    pub from: Lsn,
    /// End of the backlog, at most of the server's log.
    pub until: Lsn,
    /// Bytes of log from the slot's `restart_lsn` to `from`.
    pub before: u64,
    /// Bytes until the server invalidates the slot; `None` without a limit.
    pub safe: Option<u64>,
    pub stream_pid: i32,
    pub server_started_us: i64,
}

impl Backlog {
    /// Part for one session: log on disk, safe from invalidation. Upholds G1.
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

#[derive(Debug)]
pub struct SlotCopy<T = Wire> {
    connection: Connection<T>,
    pid: i32,
    name: String,
    backlog: Backlog,
    guard: Option<MessageChannel<T>>,
}

impl<T: Transport> SlotCopy<T> {
    /// Copies the slot that this relay holds. A proxy may have led to another server with an
    /// equally named slot. Upholds G1.
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

    /// Makes a server process end the copy once the stream is gone, over another connection.
    pub fn guarded_by(self, mut connection: Connection<T>) -> Result<Self, WalError> {
        connection.set_for_session(&GUARD_SETTINGS)?;
        let sql = guard_sql(&self.name, self.pid, self.backlog.stream_pid);
        let mut guard = connection.into_channel();
        guard.queue(&query(&sql)?);
        guard.push_out()?;
        Ok(Self { guard: Some(guard), ..self })
    }

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

/// Ends the copy 10 s to 20 s after its stream has gone. Only `pg_terminate_backend` interrupts an
/// unread window: on PostgreSQL 15 a COPY blocked on a Unix socket outlived `statement_timeout` and
/// `idle_session_timeout`. Each check is its own transaction, so VACUUM does not wait.
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

#[derive(Debug)]
pub struct CatchUp<T = Wire> {
    stream: Stream<T>,
    rows: MessageChannel<T>,
    name: String,
    backlog: Backlog,
    windows: Windows,
    /// Ends of the requested windows that are not complete.
    asked: VecDeque<Lsn>,
    /// Start of reading the first of them: time and byte.
    read_since: Instant,
    read_from: u64,
    /// Log that the server decodes in vain, as last reported.
    before: u64,
    is_first: bool,
    ended: Option<Lsn>,
    large: Option<Box<Large>>,
    sent_us: i64,
    received: Lsn,
    bytes_before: u64,
    is_slow: bool,
    is_pinged: bool,
    discarded: Instant,
    _guard: Option<MessageChannel<T>>,
}

impl<T: Transport> CatchUp<T> {
    pub const fn from(&self) -> Lsn {
        self.backlog.from
    }

    pub const fn until(&self) -> Lsn {
        self.backlog.until
    }

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

    /// Discards input, so that neither server nor proxy considers this client dead.
    pub fn tend(&mut self) -> Result<(), WalError> {
        if self.discarded.elapsed() < DISCARD_EVERY {
            return Ok(());
        }
        self.discarded = Instant::now();
        self.stream.discard()
    }

    fn place(&self) -> u64 {
        self.rows.bytes_read - self.rows.buffer.len() as u64
    }

    fn begin_window(&mut self) {
        (self.read_since, self.read_from) = (Instant::now(), self.place());
        self.sent_us = PgTime::from_unix_us(now_us()).0;
    }

    /// Query for everything committed before `end`, and for the log decoded in vain after it.
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
            b'H' => self.is_first = true,
            b'c' | b'C' | b'T' => {}
            b'I' if self.is_pinged => {}
            b'Z' if std::mem::take(&mut self.is_pinged) => {}
            b'D' => {
                let before = number(self.rows.buffer.body(head))?;
                // Negative: since the session began, standbys must receive rows first.
                self.before = u64::try_from(before).map_err(|_| CatchUpError::StandbysAwaited)?;
            }
            b'Z' => {
                self.rows.buffer.consume(head);
                return self.end_window();
            }
            b'E' => {
                return match parse(self.rows.buffer.whole(head))? {
                    // Not consumed, so every further call returns this.
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

    /// As [`Stream::acknowledge`]. Without a requested window, the windows' server answers pings,
    /// because the stream is not read. Upholds G1.
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

    /// As [`Stream::finish`]. Then moves `restart_lsn`, because the stream's process decoded too
    /// little to move it.
    pub fn finish(self, limit: Duration) -> Result<(), WalError> {
        let Self { stream, mut rows, backlog, asked, is_pinged, .. } = self;
        let acknowledged = stream.acknowledged();
        stream.finish(limit)?;
        if asked.is_empty() && acknowledged.bytes_since(backlog.from) >= ADVANCE_BYTES_MIN {
            // After a failure the next session only decodes more.
            let answers = 1 + usize::from(is_pinged);
            let _ = advance(&mut rows, &backlog.slot, acknowledged, answers);
        }
        Ok(())
    }

    pub fn received(&self) -> Lsn {
        self.received
    }

    pub fn received_bytes(&self) -> u64 {
        self.rows.bytes_read - self.bytes_before
    }

    pub fn acknowledged(&self) -> Lsn {
        self.stream.acknowledged()
    }

    pub fn buffered(&self) -> usize {
        self.rows.buffer.len()
    }
}

fn position(rows: &[TextRow]) -> Lsn {
    rows.iter().flatten().flatten().find_map(|text| text.parse().ok()).unwrap_or(Lsn::ZERO)
}

/// Moves the slot and `restart_lsn`. The last of `answers` confirms it.
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

fn query(sql: &str) -> Result<Vec<u8>, WalError> {
    quote::query_message(sql.as_bytes())
}

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

/// A missing slot has no number; the next window reports why.
fn number(body: &[u8]) -> Result<i64, WalError> {
    let text = body.get(6..).and_then(|text| str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok())
        .ok_or(WalError::Protocol("a malformed answer about the copy of the slot"))
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
