//! The replication connection: a client of Postgres's streaming replication protocol.
//!
//! Output: [`Frame`]s, borrowed from the read buffer. One position goes back, through
//! [`Stream::acknowledge`]. No published client supports replication, so this one is built on
//! postgres-protocol. The thread that owns the socket lets data accumulate before it reads, which
//! doubles throughput over TCP (measured).

mod buffer;
mod catch_up;
mod connection;
pub(crate) mod dial;
mod error;
mod history;
mod log_probe;
mod login;
mod message_channel;
mod poll;
pub(crate) mod quote;
#[cfg(test)]
mod script;
mod stream;
mod table;
pub(crate) mod tls;
mod transport;
mod verifier;

pub(crate) use catch_up::COPY_PREFIX;
pub use catch_up::{Backlog, CatchUp, CatchUpError, DECODED_BEFORE_BYTES_MAX, SlotCopy};
pub use connection::{
    Connection, FRAME_BYTES_MAX, REPLY_TIMEOUT, ServerProcess, SessionParams, StartRefused,
    StreamEncoding, SystemIdentity, TextRow,
};
pub(crate) use error::STANDBY_REACHED;
pub use error::{Class, KeptOut, RENEW, REPAIR_UNREADABLE, ServerMessage, WalError, raise_limit};
pub use history::TimelineHistory;
pub use log_probe::{LogProbe, Readability};
pub use poll::{
    BUCKETS, LockHolder, LockedRows, OwnProcesses, PollError, PollMark, PollOptions, PollPositions,
    PollRequest, PollStream, PollTable, prepare_session,
};
pub use postrider_core::frame::Frame;
pub use quote::{identifier, literal};
pub use stream::Stream;
pub(crate) use table::columns_sql;
pub use table::{
    OrderColumn, Positions, RowColumn, RowNumbers, RowNumbersWriter, ScanRequest, TableFile,
    TableScan, TableStream, expected_rows, lock_tables, planned_rows, sql_after, sql_rows,
    table_files,
};
pub use tls::TlsFilesError;
pub(crate) use transport::Socket;
pub use transport::{Transport, Wire};
