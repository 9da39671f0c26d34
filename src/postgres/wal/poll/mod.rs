//! Takes waiting rows from their tables in batches, as a stream of frames.
//!
//! Input: [`PollTable`]s, polled in turn without replication rights. Output: [`Frame`]s: each row
//! is its own transaction; keepalives report the marked rows. Positions are not the log's, but
//! count rows from the caller's start.
//!
//! A batch is one database transaction that locks rows and parts of the keys. It stays open until
//! every row is settled, then marks them. Invariant: only settled rows are marked (G1). No two open
//! batches of any process contain rows of one key (G2). Memory: the largest row and about twelve
//! bytes per row of a batch (G3). Malformed bytes are an error (G7).

mod batch;
mod error;
mod large;
mod locks;
mod marking;
mod past_locked;
mod request;
mod schedule;
mod session;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres_protocol::message::backend::Message;

use super::buffer::Head;
use super::connection::Connection;
use super::error::WalError;
use super::message_channel::parse;
use super::table::describe_table;
use super::transport::{Transport, Wire};
use batch::Place;
use large::LargeRow;
use locks::{LockWatch, OtherRelay};
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::pgoutput::encode;
use postrider_core::pgoutput::{Begin, Commit, PgTime};
use schedule::{Polled, Round, Schedule};

pub use error::PollError;
pub use locks::{LockHolder, LockedRows, OwnProcesses};
pub use request::{BUCKETS, PollMark, PollRequest, PollTable};
pub use schedule::{PollOptions, PollPositions};
pub use session::prepare_session;

/// Positions per row, as in a [`TableStream`](super::TableStream).
const POSITIONS: u64 = 2;
/// Limit for a batch of a large table without an index.
const ANSWER_LIMIT: Duration = Duration::from_mins(5);
/// A caller that paused this long was not waiting.
const AWAY: Duration = Duration::from_secs(1);
/// Interval of keepalives while a batch is open; see [`session`].
const ALIVE_EVERY: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Number of answered statements, of three.
    Asked(u8),
    Open,
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Between,
    Begun,
    Inserted,
}

#[derive(Debug, Clone, Copy)]
enum Shown {
    Keepalive(Lsn),
    Begin,
    Relation,
    Row(Head, Place),
    Large,
    Commit,
}

#[derive(Debug)]
pub struct PollStream<T = Wire> {
    connection: Connection<T>,
    tables: Vec<PollTable>,
    is_described: Vec<bool>,
    columns: Vec<Option<Vec<u8>>>,
    schedule: Schedule,
    state: State,
    /// Table of the batch, its counts, its start.
    table: usize,
    polled: Polled,
    polled_at: Instant,
    locks: LockWatch,
    own_processes: OwnProcesses,
    other_relay: OtherRelay,
    /// Another worker holds parts of the keys at the end of the run.
    is_kept_from_parts: bool,
    is_caught_up: bool,
    process: Option<u64>,
    places: Vec<Place>,
    large: Option<Box<LargeRow>>,
    step: Step,
    shown: Option<Shown>,
    frame: Vec<u8>,
    commit_time: PgTime,
    sent: PgTime,
    first: Lsn,
    next: Lsn,
    settled: Lsn,
    keepalive: Option<Lsn>,
    /// End of an earlier session's unconfirmed records.
    owed: Lsn,
    end: Option<Lsn>,
    unanswered: u32,
    spoke: Instant,
    /// Last input (or idle wait), and last check.
    heard: Instant,
    filled: Instant,
    bytes_before: u64,
}

impl<T: Transport> PollStream<T> {
    /// Starts over a connection that [`prepare_session`] has prepared.
    ///
    /// # Panics
    ///
    /// Without a table.
    pub fn begin(
        connection: Connection<T>,
        tables: Vec<PollTable>,
        options: PollOptions,
        at: PollPositions,
    ) -> Self {
        assert!(!tables.is_empty(), "there is a table to poll");
        let (now, bytes) = (Instant::now(), connection.bytes_read());
        Self {
            is_described: vec![false; tables.len()],
            columns: vec![None; tables.len()],
            end: options.once.then_some(at.end),
            schedule: Schedule::new(options, tables.len(), now),
            locks: LockWatch::of(tables.len()),
            own_processes: OwnProcesses::default(),
            other_relay: OtherRelay::Unseen,
            is_kept_from_parts: false,
            tables,
            connection,
            state: State::Idle,
            table: 0,
            polled: Polled::default(),
            polled_at: now,
            is_caught_up: false,
            process: None,
            places: Vec::new(),
            large: None,
            step: Step::Between,
            shown: None,
            frame: Vec::new(),
            commit_time: PgTime::default(),
            sent: PgTime::default(),
            first: at.first,
            next: at.first,
            settled: at.first,
            keepalive: Some(at.first),
            owed: at.owed,
            unanswered: 0,
            spoke: now,
            heard: now,
            filled: now,
            bytes_before: bytes,
        }
    }

    #[must_use]
    pub fn beside(self, own_processes: OwnProcesses) -> Self {
        Self { own_processes, ..self }
    }

    pub fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        self.connection.channel().push_out()?;
        let bytes = self.connection.channel().read_available()?;
        if bytes > 0 || !self.waits_for_answer() {
            self.heard = Instant::now();
        }
        if bytes > 0 {
            return Ok(bytes);
        }
        self.take_messages()?;
        let mut wait = wait;
        if self.state == State::Idle && self.keepalive.is_none() {
            let now = Instant::now();
            if std::mem::take(&mut self.connection.channel().is_notified) {
                self.schedule.notified(now);
            }
            if self.locks.is_due(now) {
                self.look_for_locks(now)?;
            }
            if std::mem::take(&mut self.is_kept_from_parts) {
                self.look_for_relay()?;
            }
            let pause = self.schedule.pause(now);
            if pause.is_zero() {
                self.poll()?;
            }
            wait = wait.min(pause.max(Duration::from_millis(1)));
        }
        if self.heard.elapsed() >= ANSWER_LIMIT {
            return Err(WalError::TimedOut { doing: "taking a batch of rows" });
        }
        let channel = self.connection.channel();
        if wait.is_zero() || channel.buffer.room()?.is_empty() {
            return Ok(0);
        }
        channel.wait(wait)?;
        channel.push_out()?;
        channel.read_available()
    }

    fn waits_for_answer(&mut self) -> bool {
        let now = Instant::now();
        // Nothing could arrive while nobody read.
        let was_away = now.duration_since(std::mem::replace(&mut self.filled, now)) > AWAY;
        matches!(self.state, State::Asked(_) | State::Closing) && !was_away
    }

    fn poll(&mut self) -> Result<(), WalError> {
        let (table, parts, reach) = self.schedule.next();
        let Some(polled) = self.tables.get(table) else { unreachable!("table {table} is polled") };
        let sql = polled.take(parts, reach);
        let (asked, has_keys) = (polled.parts(parts.1), polled.has_keys());
        self.polled = Polled { asked, reach, has_keys, ..Polled::default() };
        self.polled_at = Instant::now();
        self.ask(&sql)?;
        (self.table, self.state, self.first) = (table, State::Asked(0), self.next);
        Ok(())
    }

    fn ask(&mut self, sql: &str) -> Result<(), WalError> {
        self.connection.send_in_own_encoding(sql)?;
        self.unanswered += 1;
        self.spoke = Instant::now();
        Ok(())
    }

    /// The next frame, unchanged until [`PollStream::consume`]. Returns the server's errors.
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        if self.shown.is_none() {
            self.shown = self.next_frame()?;
        }
        let (start, sent_us) = (self.next, self.sent.0);
        Ok(match (self.shown, &self.large) {
            (None, _) => None,
            (Some(Shown::Keepalive(end)), _) => Some(Frame::Keepalive { end, reply_now: false }),
            (Some(Shown::Large), Some(large)) => {
                Some(Frame::Excerpt { start, sent_us, excerpt: large.excerpt()? })
            }
            (Some(_), _) => Some(Frame::Wal { start, sent_us, data: &self.frame }),
        })
    }

    pub fn consume(&mut self) {
        match self.shown.take() {
            Some(Shown::Keepalive(end)) => {
                self.keepalive = None;
                self.next = self.next.max(end);
                self.first = self.next;
            }
            Some(Shown::Begin) => self.step = Step::Begun,
            Some(Shown::Row(head, place)) => {
                self.connection.channel().buffer.consume(head);
                self.places.push(place);
                self.step = Step::Inserted;
            }
            Some(Shown::Large) => {
                self.places.extend(self.large.take().map(|large| large.place));
                self.step = Step::Inserted;
            }
            Some(Shown::Commit) => {
                self.next = end_of(self.next);
                self.step = Step::Between;
            }
            Some(Shown::Relation) | None => {}
        }
    }

    fn next_frame(&mut self) -> Result<Option<Shown>, WalError> {
        match self.step {
            Step::Between => {
                if let Some(end) = self.keepalive {
                    return Ok(Some(Shown::Keepalive(end)));
                }
                match self.take_messages()? {
                    Some(head) => self.begin_frame(head).map(Some),
                    None if self.large.is_some() && self.pass_large()? => {
                        Ok(Some(self.begin_large_frame()))
                    }
                    None => Ok(None),
                }
            }
            Step::Begun => self.row_frame().map(Some),
            Step::Inserted => {
                let (commit_lsn, commit_time) = (self.next, self.commit_time);
                let commit = Commit { commit_lsn, end_lsn: end_of(commit_lsn), commit_time };
                self.frame.clear();
                encode::commit(&mut self.frame, &commit);
                Ok(Some(Shown::Commit))
            }
        }
    }

    fn begin_frame(&mut self, head: Head) -> Result<Shown, WalError> {
        let Some(table) = self.tables.get(self.table) else { unreachable!("a row is of a table") };
        let body = self.connection.channel().buffer.body(head);
        let xid = batch::identity(table.table_oid, table.id, body)?;
        let made_us = batch::about(body)?.made_us;
        Ok(self.begin_transaction(xid, made_us))
    }

    fn begin_large_frame(&mut self) -> Shown {
        let Some(large) = &self.large else { unreachable!("a row has passed") };
        let (xid, made_us) = (large.identity, large.made_us);
        self.begin_transaction(xid, made_us)
    }

    fn begin_transaction(&mut self, xid: u32, made_us: Option<i64>) -> Shown {
        let sent_us = now_us();
        self.sent = PgTime::from_unix_us(sent_us);
        self.commit_time = PgTime::from_unix_us(made_us.unwrap_or(sent_us));
        let begin = Begin { final_lsn: self.next, commit_time: self.commit_time, xid };
        self.frame.clear();
        encode::begin(&mut self.frame, &begin);
        Shown::Begin
    }

    fn row_frame(&mut self) -> Result<Shown, WalError> {
        let Some(table) = self.tables.get(self.table) else { unreachable!("a row is of a table") };
        let Some(is_described) = self.is_described.get_mut(self.table) else {
            unreachable!("each table is described or not")
        };
        if !std::mem::replace(is_described, true) {
            let named = (&table.table, table.table_oid);
            describe_table(named, &table.columns, &self.connection, &mut self.frame);
            return Ok(Shown::Relation);
        }
        if self.large.is_some() {
            return Ok(Shown::Large);
        }
        let shape = (table.table_oid, table.columns.len());
        let buffer = &self.connection.channel().buffer;
        let Some(head) = buffer.head()? else { unreachable!("the row's beginning was shown") };
        let body = buffer.body(head);
        let Some(place) = batch::about(body)?.place else {
            unreachable!("a row that is held back is not shown")
        };
        batch::insert(shape, body, &mut self.frame)?;
        Ok(Shown::Row(head, place))
    }

    fn take_messages(&mut self) -> Result<Option<Head>, WalError> {
        while self.step == Step::Between && self.large.is_none() && self.pass_large()? {
            let channel = self.connection.channel();
            let head = match channel.buffer.head() {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(WalError::MessageTooLarge { tag: b'D', bytes, .. })
                    if self.state == State::Asked(2) =>
                {
                    if self.begin_large(bytes)? {
                        continue;
                    }
                    break;
                }
                Err(error) => return Err(error),
            };
            if channel.set_aside(head)? {
                continue;
            }
            match (head.tag, self.state) {
                (b'D', State::Asked(1)) => {
                    let body = channel.buffer.body(head);
                    self.polled.locked = batch::parts(body)?;
                    let process = batch::count(body, 1)?;
                    if self.process.is_none() {
                        let own = self.own_processes.lock();
                        own.unwrap_or_else(PoisonError::into_inner).insert(process);
                    }
                    if *self.process.get_or_insert(process) != process {
                        let found = "two transactions of one session had two server processes";
                        return Err(WalError::of_shared_process(found.to_owned()));
                    }
                }
                (b'D', State::Asked(2)) => {
                    let about = batch::about(channel.buffer.body(head))?;
                    if about.place.is_some() {
                        return Ok(Some(head));
                    }
                    self.polled.hold_back(about);
                }
                (b'T', State::Asked(2)) => {
                    let said = batch::types(channel.buffer.body(head));
                    let known = self.columns.get_mut(self.table);
                    let Some(known) = known else { unreachable!("a batch is of a table") };
                    if *known.get_or_insert_with(|| said.clone()) != said {
                        // The next session describes the table again.
                        return Err(WalError::Protocol(
                            "a table that was altered between two batches",
                        ));
                    }
                }
                (b'C', State::Asked(answered)) => self.state = State::Asked(answered + 1),
                (b'Z', _) => {
                    channel.buffer.consume(head);
                    self.answered()?;
                    continue;
                }
                (b'E', _) => return Err(self.refused(head)?),
                (b'T' | b'C' | b'D' | b'I', _) if self.unanswered > 0 => {}
                _ => return Err(WalError::Protocol("an unexpected answer to a poll")),
            }
            self.connection.channel().buffer.consume(head);
        }
        Ok(None)
    }

    fn table_name(&self) -> String {
        self.tables.get(self.table).map(|table| table.table.to_string()).unwrap_or_default()
    }

    fn answered(&mut self) -> Result<(), WalError> {
        self.unanswered = self.unanswered.saturating_sub(1);
        match self.state {
            State::Asked(3) => {
                self.polled.taken = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
                self.polled.took = self.polled_at.elapsed();
                self.state = State::Open;
                self.is_caught_up &= self.places.is_empty();
                if self.places.is_empty() {
                    self.state = State::Closing;
                    self.ask("COMMIT")?;
                }
            }
            State::Asked(_) => return Err(WalError::Protocol("a poll with fewer answers")),
            // Answers to queries from before the closing.
            State::Closing if self.unanswered > 0 => {}
            State::Closing => {
                self.state = State::Idle;
                let now = Instant::now();
                self.locks.found(self.table, self.polled.held(), now);
                let round = self.schedule.found_nothing(self.table, self.polled, now);
                self.is_caught_up = round == Round::Over { waits: false }
                    || self.is_caught_up && round == Round::Open;
                self.is_kept_from_parts = round == (Round::Over { waits: true })
                    && self.end.is_some()
                    && self.polled.held_back == 0
                    && !matches!(self.other_relay, OtherRelay::Named);
                let reached = match round {
                    Round::Open => Lsn::ZERO,
                    // Another worker has marked or holds the owed rows.
                    Round::Over { waits: true } => self.owed,
                    Round::Over { waits: false } => self.end.take().unwrap_or(self.owed),
                };
                self.keepalive = Some(reached).filter(|end| *end > self.next);
            }
            State::Idle | State::Open => {}
        }
        Ok(())
    }

    fn refused(&mut self, head: Head) -> Result<WalError, WalError> {
        let channel = self.connection.channel();
        let Message::ErrorResponse(body) = parse(channel.buffer.whole(head))? else {
            return Err(WalError::Protocol("a malformed error"));
        };
        let server = channel.server_message(body.fields());
        let doing = if self.state == State::Open { "mark" } else { "take" };
        let Some(table) = self.tables.get(self.table) else {
            unreachable!("a batch is of a table")
        };
        let (name, needs) = (table.table.to_string(), table.needs());
        Ok(match PollError::of((doing, &name, &needs), server) {
            Ok(error) => error.into(),
            Err(server) => WalError::Server(Box::new(server)),
        })
    }

    pub fn locked_rows(&self) -> Option<Arc<LockedRows>> {
        self.locks.worst()
    }

    /// True if no row waits, not even for another worker or a lock.
    pub const fn is_caught_up(&self) -> bool {
        self.is_caught_up
    }

    pub const fn committed(&self) -> Lsn {
        self.first
    }

    pub const fn received(&self) -> Lsn {
        self.next
    }

    /// Including framing.
    pub fn received_bytes(&self) -> u64 {
        self.connection.bytes_read() - self.bytes_before
    }

    pub fn buffered(&self) -> usize {
        self.connection.buffered()
    }
}

const fn end_of(commit_lsn: Lsn) -> Lsn {
    Lsn::new(commit_lsn.get() + POSITIONS)
}

/// Saturates at 0.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
