//! `postrider prune`: which old rows of an outbox may go, and their removal.
//!
//! Input: a table ([`PruneTable`]), an age, and what every slot has passed ([`Passed`]). Output: counts, by page
//! or by partition, of what is old, what is held back and by which slot; on request the rows are deleted or the
//! partition is dropped, and partitions of days to come are made ([`missing_days`]). Invariant: no row goes that a slot has not passed, or that was written before the slot's
//! stream began; each page and each partition is one transaction, so that an interrupted run leaves a whole
//! table; locks are waited for as long as `lock_timeout` says, and no longer.

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
