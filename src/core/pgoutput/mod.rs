//! Decodes pgoutput, the format of Postgres's logical replication.
//!
//! A [`Message`] borrows from one XLogData frame, and is read to its last byte or refused with a
//! [`DecodeError`] (G7).

mod charset;
mod cursor;
pub mod encode;
mod error;
mod excerpt;
mod message;
#[cfg(test)]
mod tests;
mod time;
mod tuple;

pub use charset::{Charset, Conversion, Converted};
pub use error::{DecodeError, UNREAD_MESSAGE};
pub use excerpt::{CONTENT_BYTES_KEPT, Cut, Digest, Excerpt, VALUE_BYTES_KEPT};
pub use message::{
    Begin, Commit, Delete, Insert, LogicalMessage, Message, OldRow, Origin, Relation,
    RelationColumn, RelationColumns, StreamAbort, Truncate, Type, Update, decode,
};
pub use time::PgTime;
pub use tuple::{Column, Columns, Tuple};
