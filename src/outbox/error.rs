//! Why a table cannot serve as an outbox, or a stream cannot be understood.

use super::spec::TableName;

/// What the relation cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The table's shape, as this publication sends it, lacks a column that is needed.
    #[error("outbox table {table} has no column `{column}` (it has {})", present.join(", "))]
    MissingColumn {
        /// The table.
        table: TableName,
        /// The column's configured name.
        column: String,
        /// The columns that are sent.
        present: Vec<String>,
    },
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

impl OutboxError {
    /// Whether only a human can mend it. The others are a garbled stream, which a new session
    /// gets afresh.
    pub fn is_definite(&self) -> bool {
        matches!(self, Self::MissingColumn { .. })
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::MissingColumn { table, column, .. } => Some(format!(
                "name the right column in [outbox] or [route], or add it: \
                 ALTER TABLE {table} ADD COLUMN {}; a column that exists but is not sent is \
                 generated, or outside the publication's column list",
                super::spec::quoted(column)
            )),
            _ => None,
        }
    }
}
