//! Holds the rows of tables against the records of topics, in bounded memory.
//!
//! Input: frames of rows, topics. Output: an [`Entry`] of fixed size for each row, record and dead letter, sorted by
//! id on disk, and what of each topic may be gone. Invariant: rows go through the product's own routing, only committed
//! records count, and nothing is written but temporary files. `postrider verify` judges with it what is wrong,
//! `postrider repair` what is missing.

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
