//! Defines [`OutboxError`]: an inserted row that does not match its table's description in the
//! stream.
//!
//! The stream is then not valid pgoutput. The session ends, and a new one reads the stream again
//! from the slot.

use super::spec::TableName;

/// A row that the relation cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The row's table was never described in this session.
    #[error("a row of relation {relation}, which the server has not described")]
    UnknownRelation {
        /// OID of the table.
        relation: u32,
    },
    /// The row's number of columns differs from its table's.
    #[error("a row of {table} with {found} columns where {expected} were described")]
    ColumnCount {
        /// The table.
        table: TableName,
        /// Columns in the Relation.
        expected: usize,
        /// Columns in the row.
        found: usize,
    },
    /// An inserted row omits a value, which only an UPDATE may do.
    #[error("an inserted row of {table} with a value left out")]
    ValueLeftOut {
        /// The table.
        table: TableName,
    },
}
