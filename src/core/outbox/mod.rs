//! pgoutput messages → outbox rows.
//!
//! Enters: the Relation, Type, Insert and logical messages of one replication session. Leaves:
//! [`OutboxRow`], whose columns are found by slot, not by name. Always holds: a row is read with
//! the shape last described for its table, whatever DDL ran in between, and what that shape lacks is
//! absent from it; a garbled row is a typed error (G7). The
//! pipeline feeds it, the router reads its rows.

mod error;
#[cfg(test)]
pub(crate) mod fixture;
pub mod glob;
mod logical;
mod relations;
mod row;
mod spec;
#[cfg(test)]
mod tests;
pub mod type_oid;

pub use error::OutboxError;
pub use relations::Outbox;
pub use row::{Declared, Format, OutboxRow, Position, Value};
pub use spec::{ColumnSlot, MessageSpec, OutboxSpec, TableName, Wanted};
