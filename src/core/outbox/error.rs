//! Defines [`OutboxError`]: a row that does not match its table's description.

use super::spec::TableName;

/// A row that the relation cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The server never described the table.
    #[error("a row of relation {relation}, which the server has not described")]
    UnknownRelation {
        /// Table OID.
        relation: u32,
    },
    /// The number of columns differs.
    #[error("a row of {table} with {found} columns where {expected} were described")]
    ColumnCount {
        /// Table.
        table: TableName,
        /// Described columns.
        expected: usize,
        /// Columns in the row.
        found: usize,
    },
    /// An INSERT omits a value.
    #[error("an inserted row of {table} with a value left out")]
    ValueLeftOut {
        /// Table.
        table: TableName,
    },
}
