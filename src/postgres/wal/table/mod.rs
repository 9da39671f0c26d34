//! Reads the rows of tables as a stream of frames.
//!
//! Input: [`TableScan`]s, read in turn by COPY in one snapshot. Output: [`Frame`]s in small
//! transactions. Invariant: positions count the transactions from the caller's start, and do not
//! reach its end before the last row. A row is sent once. The largest row bounds memory (G3);
//! malformed bytes are an error (G7). Nothing is acknowledged to the server.

mod columns;
mod copy_text;
mod cursor;
mod lock;
mod pace;
mod scan;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres_protocol::message::backend::Message;

use super::buffer::Head;
use super::connection::Connection;
use super::error::WalError;
use super::message_channel::parse;
use super::transport::{Transport, Wire};
use copy_text::{RowBuffer, RowWriter};
use cursor::Ends;
use pace::Pace;
use postrider_core::frame::Frame;
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;
use postrider_core::pgoutput::encode::{self, Table};
use postrider_core::pgoutput::{Begin, Commit, PgTime};
use postrider_core::progress::RowCursor;

pub use columns::RowColumn;
pub(super) use columns::all_columns_sql;
pub(crate) use columns::columns_sql;
pub use lock::{TableFile, lock_tables, table_files};
pub use scan::{
    OrderColumn, ScanRequest, TableScan, expected_rows, planned_rows, sql_after, sql_rows,
};
pub(super) use scan::{columns_of, sql_name};
pub use selection::{RowNumbers, RowNumbersWriter};

/// Few enough rows that a stop, which waits for the transaction's end, is fast.
const TRANSACTION_ROWS: u32 = 1_000;
const PACED_TRANSACTIONS_PER_S: u32 = 10;

/// A transaction that ended one byte after its commit would count as a non-transactional logical
/// message, and all its rows as one.
const POSITIONS: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    pub first: Lsn,
    /// Rows delivered by an earlier session, which are not read again.
    pub rows: u32,
    /// End above any number of transactions.
    pub end: Lsn,
}

#[derive(Debug)]
pub struct TableStream<T = Wire> {
    connection: Connection<T>,
    scans: VecDeque<TableScan>,
    scan: Option<Scan>,
    step: Step,
    shown: Option<Shown>,
    frame: RowBuffer,
    consumed: RowBuffer,
    consumed_of: Option<(String, Vec<OrderColumn>)>,
    is_first_of_table: bool,
    ends: Ends,
    rows: u64,
    number: u64,
    /// `None`: all.
    selection: Option<RowNumbers>,
    positions: Positions,
    commit_time: PgTime,
    bytes_before: u64,
    pace: Option<Pace>,
    transaction_rows: u32,
}

#[derive(Debug)]
struct Scan {
    table: TableScan,
    writer: RowWriter,
    is_described: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Between,
    Within(u32),
    Ended,
}

#[derive(Debug, Clone, Copy)]
enum Shown {
    Begin,
    Relation,
    Row(Head),
    Commit,
    End,
}

enum Arrived {
    Nothing,
    Row(Head),
    End,
}

impl<T: Transport> TableStream<T> {
    pub fn begin(connection: Connection<T>, scans: Vec<TableScan>, at: Positions) -> Self {
        let bytes_before = connection.bytes_read();
        Self {
            connection,
            scans: scans.into(),
            scan: None,
            step: Step::Between,
            shown: None,
            frame: RowBuffer::default(),
            consumed: RowBuffer::default(),
            consumed_of: None,
            is_first_of_table: true,
            ends: Ends::default(),
            rows: 0,
            number: 0,
            selection: None,
            positions: at,
            commit_time: PgTime::default(),
            bytes_before,
            pace: None,
            transaction_rows: TRANSACTION_ROWS,
        }
    }

    #[must_use]
    pub fn paced(self, rows_per_second: Option<u32>) -> Self {
        let Some(rows) = rows_per_second else { return self };
        let transaction_rows = (rows / PACED_TRANSACTIONS_PER_S).clamp(1, TRANSACTION_ROWS);
        Self { pace: Some(Pace::new(rows, Instant::now())), transaction_rows, ..self }
    }

    /// Selects rows, numbered from 1 over all tables.
    #[must_use]
    pub fn only(self, selection: Option<RowNumbers>) -> Self {
        Self { selection, ..self }
    }

    /// Returns the connection, in its transaction, after everything was read.
    ///
    /// # Panics
    ///
    /// Before that.
    pub fn into_connection(self) -> Connection<T> {
        assert!(self.is_done(), "answers are still to come");
        self.connection
    }

    /// Waits at most `wait`, or for the rate limit. Returns bytes read.
    pub fn fill(&mut self, wait: Duration) -> Result<usize, WalError> {
        self.connection.channel().push_out()?;
        let bytes = self.connection.channel().read_available()?;
        if bytes > 0 || wait.is_zero() {
            return Ok(bytes);
        }
        if let Some(pause) = self.pace.as_ref().map(|pace| pace.pause(Instant::now()))
            && !pause.is_zero()
        {
            std::thread::sleep(pause.min(wait));
            return Ok(0);
        }
        if self.step == Step::Ended {
            std::thread::sleep(wait);
            return Ok(0);
        }
        let channel = self.connection.channel();
        if channel.buffer.room()?.is_empty() {
            return Ok(0);
        }
        channel.wait(wait)?;
        channel.push_out()?;
        channel.read_available()
    }

    /// The next frame, unchanged until [`TableStream::consume`]. Returns the server's errors.
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, WalError> {
        if self.shown.is_none() {
            self.shown = self.next_frame()?;
        }
        let start = self.positions.first;
        Ok(self.shown.map(|shown| match shown {
            Shown::End => Frame::Keepalive { end: self.positions.end, reply_now: false },
            _ => Frame::Wal { start, sent_us: self.commit_time.0, data: self.frame.shown() },
        }))
    }

    /// 0 for frames other than rows, and without marks.
    pub fn marks(&self) -> Result<u8, WalError> {
        if !self.scan.as_ref().is_some_and(|scan| scan.table.is_marked) {
            return Ok(0);
        }
        let Some(marks) = self.frame.kept().last() else { return Ok(0) };
        let number = marks.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
        number.ok_or(WalError::Protocol("a malformed mark of a row"))
    }

    pub fn consume(&mut self) {
        self.step = match (self.shown.take(), self.step) {
            (Some(Shown::Begin), _) => Step::Within(std::mem::take(&mut self.positions.rows)),
            (Some(Shown::Row(head)), Step::Within(rows)) => {
                self.connection.channel().buffer.consume(head);
                std::mem::swap(&mut self.frame, &mut self.consumed);
                self.rows += 1;
                self.number += 1;
                if self.is_first_of_table {
                    self.is_first_of_table = false;
                    self.consumed_of = self.scan.as_ref().map(|scan| scan.table.named());
                }
                Step::Within(rows + 1)
            }
            (Some(Shown::Commit), _) => {
                self.positions.first = end_of(self.positions.first);
                let cursor = self.cursor();
                self.ends.push(self.positions.first, cursor);
                Step::Between
            }
            (Some(Shown::End), _) => Step::Ended,
            (Some(Shown::Relation) | None, step) => step,
            (Some(Shown::Row(_)), Step::Between | Step::Ended) => {
                unreachable!("a row is within a transaction")
            }
        };
    }

    fn next_frame(&mut self) -> Result<Option<Shown>, WalError> {
        match self.step {
            Step::Ended => Ok(None),
            Step::Between => self.first_frame(),
            Step::Within(rows) => self.further_frame(rows),
        }
    }

    fn first_frame(&mut self) -> Result<Option<Shown>, WalError> {
        loop {
            if self.scan.is_none() {
                let Some(table) = self.scans.pop_front() else {
                    let number = self.number;
                    if self.selection.as_ref().is_some_and(|wanted| !wanted.is_done(number)) {
                        return Err(WalError::Protocol(
                            "fewer rows than in the same snapshot before",
                        ));
                    }
                    return Ok(Some(Shown::End));
                };
                self.connection.send_in_own_encoding(&table.sql)?;
                let writer = RowWriter::new(table.table_oid, table.shape(), table.kept());
                self.scan = Some(Scan { table, writer, is_described: false });
                self.is_first_of_table = true;
            }
            match self.arrived()? {
                Arrived::Nothing => return Ok(None),
                Arrived::Row(_) => break,
                Arrived::End => self.scan = None,
            }
        }
        let Positions { first, end, .. } = self.positions;
        assert!(first < end, "positions up to {end} are enough for all transactions");
        self.commit_time = PgTime::from_unix_us(now_us());
        self.frame.clear();
        let begin = Begin { final_lsn: first, commit_time: self.commit_time, xid: 0 };
        encode::begin(&mut self.frame.message, &begin);
        Ok(Some(Shown::Begin))
    }

    fn further_frame(&mut self, rows: u32) -> Result<Option<Shown>, WalError> {
        if let Some(scan) = self.scan.as_mut().filter(|scan| !scan.is_described) {
            scan.is_described = true;
            self.frame.clear();
            describe(&scan.table, &self.connection, &mut self.frame.message);
            return Ok(Some(Shown::Relation));
        }
        if rows < self.transaction_rows && self.scan.is_some() {
            match self.arrived()? {
                Arrived::Nothing => return Ok(None),
                Arrived::Row(_) if self.is_paused() => return Ok(None),
                Arrived::Row(head) => {
                    let Some(scan) = &self.scan else { unreachable!("a row is of a table") };
                    let row = self.connection.channel().buffer.body(head);
                    scan.writer.write(row, &mut self.frame)?;
                    return Ok(Some(Shown::Row(head)));
                }
                Arrived::End => self.scan = None,
            }
        }
        let commit_lsn = self.positions.first;
        let end_lsn = end_of(commit_lsn);
        self.frame.clear();
        let commit = Commit { commit_lsn, end_lsn, commit_time: self.commit_time };
        encode::commit(&mut self.frame.message, &commit);
        Ok(Some(Shown::Commit))
    }

    fn is_paused(&mut self) -> bool {
        self.pace.as_mut().is_some_and(|pace| !pace.take(Instant::now()))
    }

    fn arrived(&mut self) -> Result<Arrived, WalError> {
        loop {
            let channel = self.connection.channel();
            let head = match channel.buffer.head() {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(Arrived::Nothing),
                Err(WalError::MessageTooLarge { tag: b'd', bytes, limit }) => {
                    let table = self.scan.as_ref().map(|scan| scan.table.table.to_string());
                    let Some(table) = table else { unreachable!("a row is of a table") };
                    return Err(WalError::RowTooLarge { table, bytes, limit });
                }
                Err(error) => return Err(error),
            };
            if channel.set_aside(head)? {
                continue;
            }
            match head.tag {
                b'd' => {
                    let wants = |wanted: &mut RowNumbers| wanted.wants(self.number + 1);
                    if self.selection.as_mut().map_or(Ok(true), wants)? {
                        return Ok(Arrived::Row(head));
                    }
                    channel.buffer.consume(head);
                    self.number += 1;
                }
                b'H' | b'c' | b'C' => channel.buffer.consume(head),
                b'Z' => {
                    channel.buffer.consume(head);
                    return Ok(Arrived::End);
                }
                b'E' => match parse(channel.buffer.whole(head))? {
                    Message::ErrorResponse(body) => {
                        return Err(WalError::Server(Box::new(
                            channel.server_message(body.fields()),
                        )));
                    }
                    _ => return Err(WalError::Protocol("a malformed error")),
                },
                _ => return Err(WalError::Protocol("an unexpected answer to COPY")),
            }
        }
    }

    /// Place behind the last consumed row; `None` before the first one, and without an order.
    pub fn cursor(&self) -> Option<RowCursor> {
        let (table, order) = self.consumed_of.as_ref()?;
        let values = self.consumed.kept().zip(order).map(|(value, column)| match value {
            Some(value) => self.connection.text(value),
            None => match column.null_as {
                Some(value) => value.to_owned(),
                None => unreachable!("column {} of the order is NOT NULL", column.name),
            },
        });
        let after: Vec<String> = values.collect();
        let order_by = order.iter().map(|column| column.name.clone()).collect();
        let table = table.clone();
        (!after.is_empty()).then_some(RowCursor { table, order_by, after })
    }

    /// Place behind the last row up to `end`; `None` before the first one, and without an order.
    pub fn cursor_at(&self, end: Lsn) -> Option<&RowCursor> {
        self.ends.at(end)
    }

    /// Drops places before the one at which everything up to `end` is delivered.
    pub fn settled(&mut self, end: Lsn) {
        self.ends.settled(end);
    }

    pub fn is_done(&self) -> bool {
        self.step == Step::Ended
    }

    pub const fn rows(&self) -> u64 {
        self.rows
    }

    pub fn received(&self) -> Lsn {
        if self.is_done() { self.positions.end } else { self.positions.first }
    }

    /// Including framing.
    pub fn received_bytes(&self) -> u64 {
        self.connection.bytes_read() - self.bytes_before
    }

    pub fn buffered(&self) -> usize {
        self.connection.buffered()
    }
}

fn describe<T: Transport>(scan: &TableScan, connection: &Connection<T>, out: &mut Vec<u8>) {
    let TableScan { table, table_oid, .. } = scan;
    describe_table((table, *table_oid), scan.sent(), connection, out);
}

pub(super) fn describe_table<T: Transport>(
    (table, table_oid): (&TableName, u32),
    columns: &[RowColumn],
    connection: &Connection<T>,
    out: &mut Vec<u8>,
) {
    let modifiers: Vec<i32> = columns.iter().map(|column| column.modifier).collect();
    let names: Vec<_> = columns.iter().map(|column| connection.encoded(&column.name)).collect();
    let columns: Vec<(&[u8], u32)> =
        names.iter().zip(columns).map(|(name, column)| (&**name, column.type_oid)).collect();
    let described = Table {
        id: table_oid,
        schema: &connection.encoded(&table.schema),
        name: &connection.encoded(&table.name),
        columns: &columns,
    };
    out.clear();
    encode::relation_with(out, &described, &modifiers);
}

const fn end_of(commit_lsn: Lsn) -> Lsn {
    Lsn::new(commit_lsn.get() + POSITIONS)
}

/// Saturates at 0.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
