//! pgoutput bytes → [`Message`], pure.
//!
//! Enters: the payload of one XLogData frame, from the server, a recording or a simulation.
//! Leaves: borrowed values; nothing is copied and nothing is allocated. Always holds: a message is
//! consumed to its last byte or refused with a typed [`DecodeError`] (G7). The pipeline calls it
//! once per frame; [`mod@encode`] is its inverse. A message too large to be held is read in pieces,
//! as an [`Excerpt`].

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
pub use error::{ALTERED_STREAM, DecodeError};
pub use excerpt::{CONTENT_BYTES_KEPT, Cut, Digest, Excerpt, VALUE_BYTES_KEPT};
pub use message::{
    Begin, Commit, Delete, Insert, LogicalMessage, Message, OldRow, Origin, Relation,
    RelationColumn, RelationColumns, Truncate, Type, Update, decode,
};
pub use time::PgTime;
pub use tuple::{Column, Columns, Tuple};
