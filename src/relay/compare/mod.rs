//! Compares the rows of tables with the records of topics, in bounded memory, for `postrider
//! verify` and `postrider repair`.
//!
//! Invariant: rows pass through the relay's own routing, and only committed records count. The
//! comparison writes only temporary files.

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
