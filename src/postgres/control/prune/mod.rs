//! `postrider prune`: finds and removes old rows of an outbox.
//!
//! Input: a [`PruneTable`], an age, and the slots' [`Passed`] transactions. Output: counts per page
//! or partition. Invariant: a row stays if a slot has not passed it, or if it is older than the
//! slot's stream. Each page and each partition is one transaction.

mod days;
mod error;
mod partitions;
mod passed;
mod rows;
mod table;

pub use days::{Added, Day, add_day, missing_days};
pub use error::PruneError;
pub use partitions::{Dropped, Partition, PartitionState, drop_partition, partitions};
pub use passed::{
    Held, Passed, PassedSlot, SlotPosition, not_passed, publication_name, slot_position,
};
pub use rows::{Page, Rows, prepare_session};
pub use table::{PruneColumns, PruneTable, cutoff, leaves};
