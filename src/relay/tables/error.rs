//! Reasons why rows cannot be read from their tables, with remedies.

use postrider_core::lsn::Lsn;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableRowsError {
    /// A backfill creates its slot itself. With an existing slot, rows committed in between could
    /// be missing or duplicated.
    #[error("slot `{slot}` exists already, and Kafka holds no backfill of it that has not ended")]
    SlotExists {
        /// Replication slot.
        slot: String,
    },
    /// The stream already delivers.
    #[error(
        "slot `{slot}` exists and delivers: no row from before the slot is left for a backfill"
    )]
    Ended {
        /// Replication slot.
        slot: String,
    },
    #[error("{}", nothing_missing(slot, *unknown, *is_of_window))]
    NothingMissing {
        slot: String,
        unknown: u64,
        /// Only rows from a time window were compared.
        is_of_window: bool,
    },
    /// Postgres has not published the slot's progress yet.
    #[error("whether slot `{slot}` has passed {rows} rows that are in no topic cannot be told yet")]
    Undecided {
        slot: String,
        /// Rows that are in no topic.
        rows: u64,
    },
    /// The slot to drop holds messages that cannot be delivered in any other way.
    #[error("slot `{slot}` has messages that were not delivered, which would be dropped with it")]
    Undrained {
        /// Replication slot.
        slot: String,
    },
    /// No session can decode a change in the slot. The slot is dropped only on request.
    #[error(
        "slot `{slot}` cannot be decoded past this change, and is kept without --drop-slot: {cause}"
    )]
    Undecodable {
        slot: String,
        /// Error that ends every session.
        cause: String,
    },
    /// The moment of a value without a time zone depends on its writer.
    #[error(
        "column `{column}` of table {table} has no time zone: the rows of that time cannot be \
         determined"
    )]
    TimeWithoutZone {
        table: String,
        /// Time column.
        column: String,
    },
    /// An operator must decide about rows that may have been delivered.
    #[error("whether {unknown} rows were delivered cannot be known: {reasons}")]
    RowsUnknown {
        unknown: u64,
        /// With the number of rows per reason.
        reasons: String,
    },
    /// A repair that began with one rule cannot be completed under another rule.
    #[error("the repair of slot `{slot}` was begun with {begun}, which has not ended")]
    ScopeChanged {
        slot: String,
        /// Options of the first repair.
        begun: String,
    },
    #[error(
        "slot `{slot}`, or its progress in Kafka, is not what it was a moment ago: another command is at work"
    )]
    ProgressChanged {
        /// Replication slot.
        slot: String,
    },
    /// A stream of this name delivered rows beyond those committed before it.
    #[error("slot `{slot}` does not exist, and rows of it were delivered")]
    Delivered {
        /// Replication slot.
        slot: String,
    },
    #[error(
        "the backfill of slot `{slot}` has begun, and the slot {}, where it was {begins}",
        confirmed.map_or_else(|| "is gone".to_owned(), |at| format!("is at {at}"))
    )]
    SlotMoved {
        slot: String,
        /// `None`: the slot does not exist.
        confirmed: Option<Lsn>,
        begins: Lsn,
    },
    /// A backfill could not resume after a row.
    #[error(
        "rows of table {table} are not distinct by {columns}: no unique index has just such columns"
    )]
    OrderNotUnique {
        table: String,
        /// Columns of the order.
        columns: String,
    },
    /// Rows of other tables may have been delivered before.
    #[error("the {command} of slot `{slot}` began with another publication or other tables")]
    TablesChanged {
        slot: String,
        /// `backfill` or `repair`.
        command: &'static str,
    },
    /// A position in one order has no meaning in another order.
    #[error(
        "the backfill has come to a row of table {table} in the order of {before}, and the order is another one"
    )]
    OrderChanged {
        table: String,
        /// Columns of the earlier order.
        before: String,
    },
    /// A rewrite gives each row the number of the rewriting transaction.
    #[error(
        "the table or partition with OID {oid} was rewritten since the {command} of slot `{slot}` began: which of its \
         rows committed before the slot cannot be told any more"
    )]
    Rewritten {
        /// `backfill` or `repair`.
        command: &'static str,
        oid: u32,
        slot: String,
    },
    #[error("table {table} has no column `{column}` to choose rows by")]
    FilterColumnMissing {
        table: String,
        /// Column that selects the rows.
        column: String,
    },
    /// A row with a NULL value has no position in the order.
    #[error("column `{column}` of table {table}, which orders its rows, may be NULL")]
    OrderNullable {
        table: String,
        /// Column of the order.
        column: String,
    },
}

/// `unknown`: number of rows whose delivery cannot be determined.
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
    pub fn hint(&self) -> String {
        match self {
            Self::SlotExists { slot } => format!(
                "its stream has every row committed since the slot was created; `postrider \
                 replay` sends earlier rows. If an at_least_once backfill was interrupted: \
                 `postrider repair --execute` sends the rows that are missing in Kafka, \
                 --restart sends all rows again. To begin anew: SELECT \
                 pg_drop_replication_slot('{slot}'), which loses rows that it has not delivered \
                 and that are not in the table any more; then `postrider repair --execute`"
            ),
            Self::Delivered { .. } => {
                "the slot was lost: `postrider repair` finds the rows that are missing in Kafka; \
                 with --execute it sends them and creates the slot; a slot of another name \
                 (source.slot) begins with all rows"
                    .to_owned()
            }
            Self::SlotMoved { slot, confirmed: Some(_), .. } => format!(
                "`postrider repair` finds the rows that are missing in Kafka; with --execute it \
                 sends them and creates the slot again. To send everything again, except deleted \
                 rows: SELECT pg_drop_replication_slot('{slot}'), then `postrider backfill \
                 --restart --execute`"
            ),
            Self::SlotMoved { confirmed: None, .. } => {
                "`postrider repair` finds the rows that are missing in Kafka; with --execute it \
                 sends them and creates the slot again; `postrider backfill --restart --execute` \
                 sends all rows again"
                    .to_owned()
            }
            Self::OrderNotUnique { .. } => {
                "name columns of a unique index in outbox.order_by, such as created_at and id where id is the \
                 primary key"
                    .to_owned()
            }
            Self::TablesChanged { slot, command } => format!(
                "a publication or table that was renamed or recreated counts as another one. \
                 Restore source.tables; or start again, without deleted rows: SELECT \
                 pg_drop_replication_slot('{slot}'), then {}",
                anew(command)
            ),
            Self::OrderChanged { .. } => {
                "restore outbox.order_by and source.tables until the backfill has ended".to_owned()
            }
            Self::Rewritten { slot, command, .. } => format!(
                "start again, without deleted rows: SELECT pg_drop_replication_slot('{slot}'), \
                 then {}. Run ALTER TABLE that rewrites, CLUSTER and VACUUM FULL only after the \
                 {command} has ended",
                anew(command)
            ),
            Self::FilterColumnMissing { .. } => {
                "name the columns of the table in [outbox]: --since and --until use \
                 outbox.created_at"
                    .to_owned()
            }
            Self::OrderNullable { table, column } => format!(
                "ALTER TABLE {table} ALTER COLUMN \"{column}\" SET NOT NULL; or name other columns in outbox.order_by"
            ),
            error => error.hint_of_an_end(),
        }
    }

    fn hint_of_an_end(&self) -> String {
        match self {
            Self::Ended { .. } => {
                "start the relay (`postrider run`). `postrider verify` says whether rows are \
                 missing in Kafka, and `postrider replay` sends rows again"
                    .to_owned()
            }
            Self::NothingMissing { .. } => {
                "start the relay (`postrider run`), which delivers the rows committed since. The \
                 slot is not the cause of rows that are still missing (a topic was deleted, or \
                 the route was another one): `postrider verify` names them, and `postrider \
                 replay` sends them again"
                    .to_owned()
            }
            Self::Undecided { .. } => {
                "Postgres reports it within 30 s while the slot is in use. Run the relay for that \
                 long (`postrider run`; if its position is refused, `postrider adopt --execute` \
                 first): it delivers the rows that the slot has not passed; stop it, and run \
                 `postrider repair` again. Where a repair was interrupted, --drop-slot sends \
                 them now, in order, and drops the slot with what is in it alone: rows that were \
                 deleted again, and logical messages"
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
                "--unknown send sends them, and some may come twice; --unknown skip leaves them \
                 out, and some may be missing; or leave them out by time, with --since and \
                 --until. Rows of before the stream began are those that `postrider setup \
                 --existing skip` leaves out. None of them was sent; a slot that was made keeps \
                 rows committed in the meantime"
                    .to_owned()
            }
            Self::ScopeChanged { begun, .. } => {
                format!("continue with {begun}, and repair the rest after it has ended")
            }
            Self::ProgressChanged { .. } => {
                "run only one of them: `postrider repair` or `postrider backfill` resumes where \
                 it stopped".to_owned()
            }
            other => unreachable!("{other:?} has a hint of its own"),
        }
    }
}
