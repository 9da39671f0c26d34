//! Defines [`OutboxError`]: an inserted row that does not match the description of its table in the stream.
//!
//! Then the stream is not valid pgoutput: the session ends, and a new one reads the stream again from the
//! slot.

use super::spec::TableName;

/// What the relation cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// A row of a table that was never described in this session.
    #[error("a row of relation {relation}, which the server has not described")]
    UnknownRelation {
        /// The OID.
        relation: u32,
    },
    /// A row whose number of columns is not that of its table.
    #[error("a row of {table} with {found} columns where {expected} were described")]
    ColumnCount {
        /// The table.
        table: TableName,
        /// Columns in the Relation.
        expected: usize,
        /// Columns in the row.
        found: usize,
    },
    /// An inserted row that leaves out a value, which only an UPDATE may do.
    #[error("an inserted row of {table} with a value left out")]
    ValueLeftOut {
        /// The table.
        table: TableName,
    },
}
