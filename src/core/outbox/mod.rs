//! Turns pgoutput messages into outbox rows.
//!
//! A row is read with its table's newest Relation, whatever DDL ran before; a missing column is
//! absent. Malformed rows are errors (G7).

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
