//! Compares the rows of tables with the records of topics, in bounded memory.
//!
//! Input: frames of rows, and topics. Output: a fixed-size [`Entry`] per row, record and dead
//! letter, sorted by id on disk, and the retention of each topic.
//!
//! Invariant: rows pass through the relay's own routing, and only committed records count. The
//! comparison writes only temporary files. `postrider verify` uses it to find errors, `postrider
//! repair` to find missing rows.

mod content;
mod entry;
mod error;
mod expected;
mod sorter;
mod topics;

pub use content::Content;
pub use entry::{ENTRY_BYTES, Entry, IdToken, Kind, ORDERED_BYTES, Ordered, flag};
pub use error::CompareError;
pub use expected::{Columns, Expected, Seen, TimeColumn};
pub use sorter::{Sorter, SpillError, Spilled};
pub use topics::{Horizon, Kept, TopicNumbers, Topics};
