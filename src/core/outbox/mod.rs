//! Turns pgoutput messages into outbox rows.
//!
//! Input: an [`OutboxSpec`] (which tables and logical messages are outboxes, which columns are
//! read), then the Relation, Type, Insert and logical messages of one replication session. Output:
//! [`OutboxRow`]s, whose columns are found by index. Invariant: a row is read with its table's
//! newest Relation message, whatever DDL ran before. A column that the table lacks is absent from
//! the row. Malformed rows are a typed error (G7).

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
