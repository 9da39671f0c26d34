//! Errors in the relation cache: the stream is not valid pgoutput. A new session reads it again from the
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
