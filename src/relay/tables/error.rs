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
    /// Nothing is left to do.
    #[error("slot `{slot}` is there and delivers: no row of before it is left to a backfill")]
    Ended {
        /// The slot.
        slot: String,
    },
    /// Rows of which nobody can tell are to be sent beside a slot that has left out none.
    #[error("{}", nothing_missing(slot, *unknown, *is_of_window))]
    NothingMissing {
        /// The slot.
        slot: String,
        /// Rows of which nobody can tell.
        unknown: u64,
        /// Only rows of some time were compared.
        is_of_window: bool,
    },
    /// Postgres tells late how far a slot has come.
    #[error("whether slot `{slot}` has passed {rows} rows that are in no topic cannot be told yet")]
    Undecided {
        /// The slot.
        slot: String,
        /// How many.
        rows: u64,
    },
    /// A slot that would be dropped has what comes by no other way.
    #[error("slot `{slot}` has messages that were not delivered, which would be dropped with it")]
    Undrained {
        /// The slot.
        slot: String,
    },
    /// A slot keeps a change that no session gets past, and may be dropped only if somebody asks for it.
    #[error(
        "slot `{slot}` cannot be decoded past this change, and is kept without --drop-slot: {cause}"
    )]
    Undecodable {
        /// The slot.
        slot: String,
        /// The error of every session.
        cause: String,
    },
    /// Which moment such a value is depends on who wrote it.
    #[error(
        "column `{column}` of table {table} has no time zone: which of its rows are of that time cannot be told"
    )]
    TimeWithoutZone {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// A row that may have been delivered is neither sent nor left out by surprise.
    #[error("whether {unknown} rows were delivered cannot be known: {reasons}")]
    RowsUnknown {
        /// How many.
        unknown: u64,
        /// Why, and how many each.
        reasons: String,
    },
    /// What was sent under one rule cannot be completed under another.
    #[error("the repair of slot `{slot}` was begun with {begun}, which has not ended")]
    ScopeChanged {
        /// The slot.
        slot: String,
        /// The options that it was begun with.
        begun: String,
    },
    /// Somebody else delivers rows of before the same slot.
    #[error(
        "slot `{slot}`, or its progress in Kafka, is not what it was a moment ago: another command is at work"
    )]
    ProgressChanged {
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
        "the {command} of slot `{slot}` has begun with another publication, or other tables, than those of now"
    )]
    TablesChanged {
        /// The slot.
        slot: String,
        /// What has begun.
        command: &'static str,
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
        "the table or partition with OID {oid} was rewritten since the {command} of slot `{slot}` began: which of its \
         rows committed before the slot cannot be told any more"
    )]
    Rewritten {
        /// What has begun.
        command: &'static str,
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

/// That a slot is left alone; `unknown`: rows of which nobody can tell.
pub(super) fn nothing_missing(slot: &str, unknown: u64, is_of_window: bool) -> String {
    let of = if is_of_window { " of that time (no others were compared)" } else { "" };
    let but_for = match unknown {
        0 => String::new(),
        unknown => format!(", but for {unknown} rows of which that cannot be known"),
    };
    format!(
        "nothing is to be repaired: slot `{slot}` is there and has left out no row{of}{but_for}"
    )
}

/// How a command begins anew once the slot is dropped.
fn anew(command: &str) -> &'static str {
    match command {
        "repair" => {
            "`postrider repair --execute`, which compares again and sends only what is missing"
        }
        _ => {
            "`postrider repair --execute`, which sends only what is missing, or `postrider backfill --restart \
             --execute`, which sends all rows again"
        }
    }
}

impl TableRowsError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::SlotExists { slot } => format!(
                "its stream has every row that committed since it was made; `postrider replay` sends rows of \
                 before. If a backfill at least once was interrupted: `postrider repair --execute` sends what is \
                 missing in Kafka, --restart all rows once more. To begin anew: SELECT pg_drop_replication_slot('{slot}'), which loses rows that it has not delivered \
                 and that are not in the table any more; then `postrider repair --execute`"
            ),
            Self::Delivered { .. } => {
                "the slot was lost: `postrider repair` finds out which rows are missing in Kafka, and with --execute \
                 sends them and makes the slot; a slot of another name (source.slot) begins with all rows"
                    .to_owned()
            }
            Self::SlotMoved { slot, confirmed: Some(_), .. } => format!(
                "`postrider repair` finds out which rows are missing in Kafka, and with --execute sends them and makes \
                 the slot anew. To send everything once more, but for rows that were deleted from the table: SELECT \
                 pg_drop_replication_slot('{slot}'), then `postrider backfill --restart --execute`"
            ),
            Self::SlotMoved { confirmed: None, .. } => {
                "`postrider repair` finds out which rows are missing in Kafka, and with --execute sends them and makes \
                 it anew; `postrider backfill --restart --execute` sends all rows again"
                    .to_owned()
            }
            Self::OrderNotUnique { .. } => {
                "name columns of a unique index in outbox.order_by, such as created_at and id where id is the \
                 primary key"
                    .to_owned()
            }
            Self::TablesChanged { slot, command } => format!(
                "what was renamed, or dropped and made again, is another one. Set source.tables as it was; or begin \
                 anew, but for rows that were deleted from the table: SELECT pg_drop_replication_slot('{slot}'), then \
                 {}",
                anew(command)
            ),
            Self::OrderChanged { .. } => {
                "set outbox.order_by and source.tables as they were until the backfill has ended".to_owned()
            }
            Self::Rewritten { slot, command, .. } => format!(
                "begin anew, but for rows that were deleted from the table: SELECT \
                 pg_drop_replication_slot('{slot}'), then {}. ALTER TABLE that rewrites, CLUSTER \
                 and VACUUM FULL are for when the {command} has ended",
                anew(command)
            ),
            Self::FilterColumnMissing { .. } => {
                "name the columns of the table in [outbox]: the one of --since and --until is outbox.created_at"
                    .to_owned()
            }
            Self::OrderNullable { table, column } => format!(
                "ALTER TABLE {table} ALTER COLUMN \"{column}\" SET NOT NULL; or name other columns in outbox.order_by"
            ),
            error => error.hint_of_an_end(),
        }
    }

    /// The same of what has ended, or not, under other terms.
    fn hint_of_an_end(&self) -> String {
        match self {
            Self::Ended { .. } => {
                "start the relay (`postrider run`). `postrider verify` says whether rows are missing in Kafka, and \
                 `postrider replay` sends some once more"
                    .to_owned()
            }
            Self::NothingMissing { .. } => {
                "start the relay (`postrider run`), which delivers what has committed since. Rows that are missing all \
                 the same are not of the slot's doing (a topic was deleted, or the route was another one): \
                 `postrider verify` names them, and `postrider replay` sends them once more"
                    .to_owned()
            }
            Self::Undecided { .. } => {
                "Postgres tells within half a minute while the slot is read: let the relay run for that long \
                 (`postrider run`; where it is refused for its position, `postrider adopt --execute` first), which delivers \
                 those that the slot has not passed; stop it, and run `postrider repair` again. Where a repair was interrupted, --drop-slot sends them now, in order, and drops the slot \
                 with what is in it alone: rows that were deleted again, and logical messages"
                    .to_owned()
            }
            Self::Undrained { .. } => {
                "deliver them first: `postrider run --once` (where it is refused for its position, `postrider adopt \
                 --execute` before it), then run `postrider repair` again. Rows that were deleted again and logical \
                 messages are in no table, and come from the slot alone; if there are none of either, --drop-slot drops it"
                    .to_owned()
            }
            Self::Undecodable { .. } => {
                "if source.publication is not the slot's publication, set the right one\n\
                 if the publication was renamed, and no row was written under the new name, rename it back\n\
                 if a message cannot be read, install the newest release of Postrider\n\
                 otherwise: `postrider repair --execute --drop-slot`. It sends the rows that are missing in Kafka and \
                 still in the outbox. Rows that were deleted from the outbox undelivered, and logical messages, are \
                 lost with the slot"
                    .to_owned()
            }
            Self::TimeWithoutZone { column, .. } => format!(
                "leave out --since and --until; or give it the zone of its writers: ALTER TABLE .. ALTER COLUMN \
                 \"{column}\" TYPE timestamptz USING \"{column}\" AT TIME ZONE 'Europe/London'"
            ),
            Self::RowsUnknown { .. } => {
                "--unknown send sends them, and some may come twice; --unknown skip leaves them out, and some may be \
                 missing; or leave them out by time, with --since and --until. Rows of before the stream began are \
                 those that `postrider setup --existing skip` leaves out. None of them was sent; a slot that was made \
                 keeps what commits meanwhile"
                    .to_owned()
            }
            Self::ScopeChanged { begun, .. } => {
                format!("go on with {begun}, and repair the rest when that has ended")
            }
            Self::ProgressChanged { .. } => {
                "let only one of them run: `postrider repair`, or `postrider backfill`, goes on where it was".to_owned()
            }
            other => unreachable!("{other:?} has a hint of its own"),
        }
    }
}
