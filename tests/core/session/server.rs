//! A model of a Postgres server with one slot and one walsender.
//!
//! Modelled, as measured on PostgreSQL 15 to 18: a session starts after the slot's confirmed
//! position and sends whole transactions in commit order; the confirmed position lives in memory
//! and is persisted now and then, so a crash rewinds it; tables are described once per session and
//! again after DDL, also inside a transaction; a keepalive carries the sent position, which inside
//! a transaction is at most the beginning of its commit record; a server that has not heard of us for half
//! of `wal_sender_timeout` asks, and after the whole of it ends the stream; it may hang, be away, be busy over
//! what it does not publish, end the stream at any time, and keep the slot for a session that is gone.

use std::collections::VecDeque;
use std::time::Duration;

use postrider::lsn::Lsn;
use postrider::pgoutput::encode::{self, Old, Table};
use postrider::pgoutput::{Begin, Column, Commit, LogicalMessage, PgTime};
use postrider::time::Instant;
use postrider::wal::Frame;

use crate::session::history::{Change, History, Row, Transaction};
use support::chance::Chance;

const OUTBOX: u32 = 16_384;
const FOREIGN: u32 = 16_400;
const TEXT: u32 = 25;

/// Column orders that ALTER TABLE switches between; the last adds a column.
const SHAPES: [&[&str]; 3] = [
    &["id", "aggregate_type", "aggregate_id", "event_type", "payload"],
    &["payload", "event_type", "id", "aggregate_id", "aggregate_type"],
    &["id", "note", "aggregate_type", "aggregate_id", "event_type", "payload"],
];

/// A frame that owns its bytes.
#[derive(Debug, Clone)]
pub(crate) enum Sent {
    Wal(Vec<u8>),
    Keepalive(u64),
    /// One that is to be answered.
    Question(u64),
    /// A message of no kind that is known, at that position.
    Unreadable(u64),
    /// The stream has ended; nothing follows.
    End,
}

impl Sent {
    pub(crate) fn as_frame(&self) -> Frame<'_> {
        match self {
            Self::Wal(data) => Frame::Wal { start: Lsn::ZERO, sent_us: 0, data },
            Self::Keepalive(end) => Frame::Keepalive { end: Lsn::new(*end), reply_now: false },
            Self::Question(end) => Frame::Keepalive { end: Lsn::new(*end), reply_now: true },
            Self::Unreadable(at) => Frame::Wal { start: Lsn::new(*at), sent_us: 0, data: b"?" },
            Self::End => unreachable!("the end of a stream is no frame"),
        }
    }
}

/// The slot, and the walsender while somebody is connected.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) history: History,
    /// What was acknowledged.
    pub(crate) confirmed: u64,
    /// What of it survives a crash.
    persisted: u64,
    walsender: Option<Walsender>,
    /// It hangs since then: nothing is sent and nothing is heard.
    pub(crate) frozen: Option<Instant>,
    /// So long each session is silent first, until one waits for it: something large is decoded of which
    /// nothing is published.
    pub(crate) work: Option<Duration>,
    /// The log has a message there that nobody can read, behind all transactions.
    pub(crate) unreadable: Option<u64>,
    /// Nobody can connect until then.
    pub(crate) away_until: Instant,
    /// What is left of an earlier session holds the slot until then.
    pub(crate) held_until: Instant,
}

/// The server's default.
const WAL_SENDER_TIMEOUT: Duration = Duration::from_mins(1);

/// One replication session.
#[derive(Debug, Default)]
struct Walsender {
    /// The transaction to send next, or that is being sent.
    transaction: usize,
    /// Frames of the open transaction that are still to be sent.
    open: VecDeque<Sent>,
    /// What every keepalive may say.
    sent: u64,
    described: bool,
    foreign_described: bool,
    shape: usize,
    /// On the wire, in order.
    socket: VecDeque<Sent>,
    /// Frames that have come since the relay read.
    arrived: usize,
    /// When the relay was heard.
    heard: Instant,
    has_asked: bool,
}

impl Server {
    /// START_REPLICATION with position 0/0: from the slot.
    pub(crate) fn connect(&mut self, now: Instant) {
        self.frozen = self.work.map(|_| now);
        let confirmed = self.confirmed;
        let unsent = |transaction: &Transaction| transaction.end_lsn > confirmed;
        let transactions = &self.history.transactions;
        let transaction = transactions.iter().position(unsent).unwrap_or(transactions.len());
        let shape = transaction % SHAPES.len();
        let heard = now;
        let session =
            Walsender { transaction, sent: confirmed, shape, heard, ..Walsender::default() };
        self.walsender = Some(session);
    }

    pub(crate) fn disconnect(&mut self) {
        self.walsender = None;
    }

    /// Time has passed: what was to be decoded may be.
    pub(crate) fn wake(&mut self, now: Instant) {
        if let (Some(work), Some(since)) = (self.work, self.frozen)
            && now - since >= work
        {
            (self.work, self.frozen) = (None, None);
            // It reads what was sent to it meanwhile.
            self.walsender.iter_mut().for_each(|session| session.heard = now);
        }
    }

    /// The walsender is terminated: what it has sent still arrives.
    pub(crate) fn end_stream(&mut self) {
        if let Some(session) = self.walsender.as_mut().filter(|session| !session.has_ended()) {
            session.push(Sent::End);
        }
    }

    /// Whether the walsender is gone, noticed or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.walsender.as_ref().is_some_and(Walsender::has_ended)
    }

    /// The walsender, if it does anything.
    fn active(&mut self) -> Option<&mut Walsender> {
        let is_frozen = self.frozen.is_some();
        self.walsender.as_mut().filter(|session| !is_frozen && !session.has_ended())
    }

    /// kill -9: the slot goes back to what was written down.
    pub(crate) fn crash(&mut self) {
        self.walsender = None;
        self.confirmed = self.persisted;
    }

    pub(crate) fn checkpoint(&mut self) {
        self.persisted = self.confirmed;
    }

    /// A status update. Like the real server, believes whatever it is told.
    pub(crate) fn hear(&mut self, now: Instant, settled: u64, ask_reply: bool) {
        if self.active().is_none() {
            return;
        }
        self.confirmed = self.confirmed.max(settled);
        let Some(session) = &mut self.walsender else { return };
        (session.heard, session.has_asked) = (now, false);
        if ask_reply {
            session.push(Sent::Keepalive(session.sent));
        }
    }

    /// Time has passed. True if the server ends the stream, for want of a sign of life.
    pub(crate) fn times_out(&mut self, now: Instant) -> bool {
        let Some(session) = self.active() else { return false };
        let silence = now - session.heard;
        if silence >= WAL_SENDER_TIMEOUT / 2 && !session.has_asked {
            session.has_asked = true;
            session.push(Sent::Question(session.sent));
        }
        silence >= WAL_SENDER_TIMEOUT
    }

    /// The walsender puts one frame on the wire; a keepalive if there is nothing else, or by
    /// chance.
    pub(crate) fn send(&mut self, chance: &mut Chance) {
        if self.active().is_none() {
            return;
        }
        let Some(session) = &mut self.walsender else { return };
        if session.open.is_empty() {
            if let Some(transaction) = self.history.transactions.get(session.transaction) {
                if chance.percent(90) {
                    session.open_transaction(transaction, &self.history.rows);
                }
            } else if let Some(at) = self.unreadable {
                session.open.push_back(Sent::Unreadable(at));
            } else {
                session.sent = session.sent.max(self.history.end);
            }
        }
        match session.open.pop_front() {
            Some(frame) => {
                session.push(frame);
                if session.open.is_empty() {
                    let done = self.history.transactions.get(session.transaction);
                    session.sent = done.map_or(session.sent, |transaction| transaction.end_lsn);
                    session.transaction += 1;
                } else if chance.percent(5) {
                    session.push(Sent::Keepalive(session.sent));
                }
            }
            None => session.push(Sent::Keepalive(session.sent)),
        }
    }

    /// The next frame that the relay has not consumed.
    pub(crate) fn peek(&self) -> Option<&Sent> {
        self.walsender.as_ref()?.socket.front()
    }

    pub(crate) fn consume(&mut self) {
        if let Some(session) = &mut self.walsender {
            session.socket.pop_front();
        }
    }

    /// How many frames have come since the last call.
    pub(crate) fn arrived(&mut self) -> usize {
        self.walsender.as_mut().map_or(0, |session| std::mem::take(&mut session.arrived))
    }

    /// How many frames are on the wire.
    pub(crate) fn backlog(&self) -> usize {
        self.walsender.as_ref().map_or(0, |session| session.socket.len())
    }

    /// Whether the session has sent everything that was ever written.
    pub(crate) fn all_sent(&self) -> bool {
        self.walsender.as_ref().is_some_and(|session| {
            session.socket.is_empty()
                && session.open.is_empty()
                && session.transaction == self.history.transactions.len()
        })
    }
}

impl Walsender {
    fn has_ended(&self) -> bool {
        matches!(self.socket.back(), Some(Sent::End))
    }

    fn push(&mut self, frame: Sent) {
        self.socket.push_back(frame);
        self.arrived += 1;
    }

    fn open_transaction(&mut self, transaction: &Transaction, rows: &[Row]) {
        let commit_lsn = Lsn::new(transaction.commit_lsn);
        let commit_time = PgTime(i64::try_from(transaction.commit_lsn).unwrap());
        if transaction.is_lone_message {
            for change in &transaction.changes {
                self.change(change, rows, Some(Lsn::new(transaction.end_lsn)));
            }
            return;
        }
        self.say(|out| encode::begin(out, &Begin { final_lsn: commit_lsn, commit_time, xid: 7 }));
        for change in &transaction.changes {
            self.change(change, rows, None);
        }
        let end_lsn = Lsn::new(transaction.end_lsn);
        self.say(|out| encode::commit(out, &Commit { commit_lsn, end_lsn, commit_time }));
        // Decoding a commit record leaves the sent position before it until all is sent.
        self.sent = self.sent.max(transaction.commit_lsn);
    }

    /// `lone` is the position of a message outside of any transaction.
    fn change(&mut self, change: &Change, rows: &[Row], lone: Option<Lsn>) {
        match change {
            Change::Row(index) if rows[*index].is_message => {
                self.say(|out| message(out, &rows[*index], lone));
            }
            Change::Row(index) => {
                self.describe();
                let columns = values(&rows[*index], SHAPES[self.shape]);
                self.say(|out| encode::insert(out, OUTBOX, &columns));
            }
            Change::Foreign => {
                if !self.foreign_described {
                    self.foreign_described = true;
                    self.say(|out| {
                        let columns: &[(&[u8], u32)] = &[(b"id", TEXT)];
                        let (schema, name) = (b"public".as_slice(), b"orders".as_slice());
                        encode::relation(out, &Table { id: FOREIGN, schema, name, columns });
                    });
                }
                self.say(|out| encode::insert(out, FOREIGN, &[Column::Text(b"foreign")]));
            }
            Change::Other(kind) => {
                self.describe();
                self.say(|out| other(out, *kind));
            }
            Change::Alter => {
                self.shape = (self.shape + 1) % SHAPES.len();
                self.described = false;
            }
        }
    }

    fn describe(&mut self) {
        if self.described {
            return;
        }
        self.described = true;
        let columns: Vec<(&[u8], u32)> =
            SHAPES[self.shape].iter().map(|name| (name.as_bytes(), TEXT)).collect();
        self.say(|out| {
            let (schema, name) = (b"public".as_slice(), b"outbox".as_slice());
            encode::relation(out, &Table { id: OUTBOX, schema, name, columns: &columns });
        });
    }

    fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut data = Vec::new();
        write(&mut data);
        self.open.push_back(Sent::Wal(data));
    }
}

fn values<'a>(row: &'a Row, shape: &[&str]) -> Vec<Column<'a>> {
    let text = |value: &'a str| Column::Text(value.as_bytes());
    let value = |name: &&str| match *name {
        "id" => text(&row.id),
        "aggregate_type" => row.aggregate_type.map_or(Column::Null, text),
        "aggregate_id" => row.key.as_deref().map_or(Column::Null, text),
        "event_type" => text("happened"),
        "payload" => text(&row.payload),
        _ => Column::Null,
    };
    shape.iter().map(value).collect()
}

fn message(out: &mut Vec<u8>, row: &Row, lone: Option<Lsn>) {
    let content = serde_json::json!({
        "id": row.id,
        "aggregate_type": row.aggregate_type,
        "aggregate_id": row.key,
        "event_type": "happened",
        "payload": row.payload,
    });
    let content = content.to_string();
    let (transactional, lsn) = (lone.is_none(), lone.unwrap_or(Lsn::ZERO));
    let (prefix, content) = (b"outbox".as_slice(), content.as_bytes());
    encode::logical(out, &LogicalMessage { transactional, lsn, prefix, content });
}

fn other(out: &mut Vec<u8>, kind: u8) {
    let row = [Column::Text(b"row-none")];
    match kind {
        0 => encode::update(out, OUTBOX, None, &row),
        1 => encode::delete(out, OUTBOX, Old::Key(&row)),
        2 => encode::truncate(out, 0, &[OUTBOX]),
        _ => encode::logical(
            out,
            &LogicalMessage { transactional: true, lsn: Lsn::ZERO, prefix: b"p", content: b"c" },
        ),
    }
}
