//! Why rows cannot be read from their tables, with the remedy.

use postrider_core::lsn::Lsn;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableRowsError {
    /// A backfill makes the slot itself, or what committed meanwhile would be missing or come twice.
    #[error("slot `{slot}` exists already, and Kafka holds no backfill of it that has not ended")]
    SlotExists {
        /// The slot.
        slot: String,
    },
    /// There was a stream of this name, which went beyond the rows of before it.
    #[error("slot `{slot}` does not exist, and rows of it were delivered")]
    Delivered {
        /// The slot.
        slot: String,
    },
    /// The slot that a backfill has made is gone, or delivers already.
    #[error(
        "the backfill of slot `{slot}` has begun, and the slot {}, where it was {begins}",
        confirmed.map_or_else(|| "is gone".to_owned(), |at| format!("is at {at}"))
    )]
    SlotMoved {
        /// The slot.
        slot: String,
        /// Where it is.
        confirmed: Option<Lsn>,
        /// Where the backfill made it.
        begins: Lsn,
    },
    /// Rows that cannot be told apart cannot be gone on behind.
    #[error(
        "rows of table {table} are not distinct by {columns}: no unique index has just such columns"
    )]
    OrderNotUnique {
        /// The table.
        table: String,
        /// The columns of the order.
        columns: String,
    },
    /// Rows of other tables may have been delivered than those that would be read now.
    #[error(
        "the backfill of slot `{slot}` has begun with other tables than source.tables names now"
    )]
    TablesChanged {
        /// The slot.
        slot: String,
    },
    /// A place in one order says nothing in another one.
    #[error(
        "the backfill has come to a row of table {table} in the order of {before}, and the order is another one"
    )]
    OrderChanged {
        /// The table.
        table: String,
        /// The columns of the order in which it began.
        before: String,
    },
    /// Each of its rows has the number of the transaction that rewrote it.
    #[error(
        "the table or partition with OID {oid} was rewritten since the backfill of slot `{slot}` began: which of its \
         rows committed before the slot cannot be told any more"
    )]
    Rewritten {
        /// Of the table or partition.
        oid: u32,
        /// The slot.
        slot: String,
    },
    /// Rows are to be chosen by a column that their table does not have.
    #[error("table {table} has no column `{column}` to choose rows by")]
    FilterColumnMissing {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// A row without a value has no place in the order.
    #[error("column `{column}` of table {table}, by which its rows are ordered, may be NULL")]
    OrderNullable {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
}

impl TableRowsError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::SlotExists { slot } => format!(
                "its stream has every row that committed since it was made; `postrider replay` sends rows of \
                 before. If a backfill at least once was interrupted: --restart sends all rows again. To begin \
                 anew: SELECT pg_drop_replication_slot('{slot}'), which loses rows that it has not delivered \
                 and that are not in the table any more"
            ),
            Self::Delivered { .. } => {
                "the slot was lost: make a new one (`postrider setup --from-now`), send what is missing \
                 (`postrider replay`), and `postrider adopt --execute`; a slot of another name (source.slot) begins \
                 with all rows"
                    .to_owned()
            }
            Self::SlotMoved { slot, confirmed: Some(_), .. } => format!(
                "has a relay delivered from it? Then `postrider replay` sends the rows of before it, and `postrider \
                 adopt --execute` makes its position the progress. To send everything anew: SELECT \
                 pg_drop_replication_slot('{slot}'), then `postrider backfill --restart --execute`"
            ),
            Self::SlotMoved { confirmed: None, .. } => {
                "`postrider backfill --restart --execute` makes it anew, and sends all rows again".to_owned()
            }
            Self::OrderNotUnique { .. } => {
                "name columns of a unique index in outbox.order_by, such as created_at and id where id is the \
                 primary key"
                    .to_owned()
            }
            Self::TablesChanged { slot } => format!(
                "a table that was renamed, or dropped and made again, is another one. Set source.tables as it was; \
                 or begin anew: SELECT pg_drop_replication_slot('{slot}'), then `postrider backfill --restart \
                 --execute`"
            ),
            Self::OrderChanged { .. } => {
                "set outbox.order_by and source.tables as they were until the backfill has ended".to_owned()
            }
            Self::Rewritten { slot, .. } => format!(
                "begin anew: SELECT pg_drop_replication_slot('{slot}'), then `postrider backfill --restart --execute`, \
                 which sends all rows again. ALTER TABLE that rewrites, CLUSTER and VACUUM FULL are for when the \
                 backfill has ended"
            ),
            Self::FilterColumnMissing { .. } => {
                "name the columns of the table in [outbox]: the one of --since and --until is outbox.created_at"
                    .to_owned()
            }
            Self::OrderNullable { table, column } => format!(
                "ALTER TABLE {table} ALTER COLUMN \"{column}\" SET NOT NULL; or name other columns in outbox.order_by"
            ),
        }
    }
}
