//! Why rows may not be pruned. [`ControlError`] has the errors that a relay reports as well.

use crate::control::error::ControlError;
use crate::control::hint_text::{is_right, qualified};
use crate::wal::Class;
use crate::wal::quote::identifier;
use postrider_core::outbox::TableName;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The slot does not exist, so it has passed nothing.
    #[error("replication slot `{slot}` does not exist, so nothing shows which rows were delivered")]
    SlotMissing {
        slot: String,
        /// Slots of this database that a relay could read.
        others: Vec<String>,
    },
    /// Rows that an earlier slot of this name lost look like rows that this slot has passed.
    #[error("nothing shows since when slot `{slot}` has delivered every row: {why}")]
    BeginningUnknown {
        slot: String,
        /// Reason, for example `no progress is kept`.
        why: &'static str,
    },
    #[error(
        "role `{role}` may not read the cluster's system identifier, which is needed to find progress in Kafka"
    )]
    SystemUnknown { role: String },
    #[error("the server is a standby, which deletes nothing")]
    Standby,
    #[error("role `{role}` may not prune table {table}: it lacks {lacks}")]
    Forbidden { table: TableName, role: String, lacks: String, grant: String },
    /// A hidden row cannot be known to have been passed.
    #[error("row-level security may hide rows of table {table} from role `{role}`")]
    RowsHidden { table: TableName, role: String },
    #[error("column {column} of table {table} is of type {kind}, which is not a time")]
    AgeUnsuitable { table: TableName, column: String, kind: String },
    /// Each page would read the whole table.
    #[error("table {table} is large, and has no index that begins with {column}")]
    IndexMissing { table: TableName, column: String, columns: String },
    #[error(
        "table {table} is not partitioned by ranges of column `{column}`: it has no partition of a day"
    )]
    NotByAge { table: TableName, column: String },
    /// Rows in the default partition prevent a new partition.
    #[error(
        "partition {partition} of table {table} cannot be made: rows of that day lie in the default partition, or it is so large that Postgres cannot tell in time"
    )]
    DayOccupied {
        table: TableName,
        /// The first partition that was not created.
        partition: TableName,
    },
    /// A day has no partition, and another object has its name.
    #[error("partition {partition} of table {table} cannot be made: something else has that name")]
    DayTaken {
        table: TableName,
        /// The first partition that was not created.
        partition: TableName,
    },
    #[error("other objects depend on partition {partition} of table {table}, which is old")]
    Needed { table: TableName, partition: TableName },
    #[error("{object} was locked by others for longer than --lock-timeout, {attempts} times")]
    Locked {
        /// Object, for example `table public.outbox`.
        object: String,
        attempts: u32,
    },
}

impl PruneError {
    pub fn class(&self) -> Class {
        match self {
            Self::Control(error) => error.class(),
            Self::BeginningUnknown { .. } => Class::Position,
            Self::SystemUnknown { .. } | Self::Forbidden { .. } | Self::RowsHidden { .. } => {
                Class::Permission
            }
            Self::Locked { .. } => Class::Transient,
            Self::SlotMissing { .. }
            | Self::Standby
            | Self::AgeUnsuitable { .. }
            | Self::NotByAge { .. }
            | Self::DayOccupied { .. }
            | Self::DayTaken { .. }
            | Self::Needed { .. }
            | Self::IndexMissing { .. } => Class::Configuration,
        }
    }

    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Control(error) => return error.hint(),
            Self::SlotMissing { slot, others } => format!(
                "{}; if it was dropped or lost, see that its missing rows are sent first: nothing is \
                 deleted until a slot has passed them",
                is_right("source.slot (or --slot)", slot, "slots", others)
            ),
            Self::BeginningUnknown { .. } => {
                "set progress.at_least_once = true (or kafka.delivery = \"exactly_once\") and \
                 start the relay again: it stores the position of the slot, and rows written \
                 from then on are pruned once the slot has passed them. If the slot was never \
                 created again while there were rows that it had not delivered, or those were \
                 sent since: --from-before-slot"
                    .to_owned()
            }
            Self::SystemUnknown { role } => format!(
                "GRANT EXECUTE ON FUNCTION pg_control_system() TO {};",
                identifier(role)
            ),
            Self::Standby => {
                "connect to the primary (target_session_attrs=primary), which must have the slot"
                    .to_owned()
            }
            Self::Forbidden { grant, .. } => grant.clone(),
            Self::RowsHidden { table, role } => format!(
                "ALTER ROLE {} BYPASSRLS; or run it as the owner of {}, without FORCE ROW LEVEL SECURITY",
                identifier(role),
                qualified(table)
            ),
            Self::AgeUnsuitable { .. } => {
                "set outbox.created_at to a column of type timestamptz, timestamp or date".to_owned()
            }
            Self::IndexMissing { table, columns, .. } => {
                format!("CREATE INDEX CONCURRENTLY ON {} ({columns});", qualified(table))
            }
            Self::NotByAge { .. } => {
                "leave --ahead out; `postrider setup --partition day` makes a table with daily partitions"
                    .to_owned()
            }
            Self::DayOccupied { .. } => {
                "move those rows away from the default partition, in one transaction with the partition's \
                 creation; or leave them: they are pruned there row by row, and run it with --ahead each day, \
                 so that the days to come have partitions in time"
                    .to_owned()
            }
            Self::DayTaken { table, partition } => format!(
                "if it is a partition that was detached, attach or drop it; otherwise ALTER TABLE {} RENAME TO another name. \
                 Until then rows of that day lie in the default partition of {}, if it has one",
                qualified(partition),
                qualified(table)
            ),
            Self::Needed { partition, .. } => format!(
                "drop them, or have them read the table instead: SELECT \
                 pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE refobjid = \
                 '{}'::regclass AND deptype = 'n'; the other old rows were pruned",
                qualified(partition).replace('\'', "''")
            ),
            Self::Locked { .. } => {
                "run it again when the transactions that use the table have ended (SELECT pid, \
                 query FROM pg_stat_activity WHERE state <> 'idle' ORDER BY xact_start); pruned \
                 rows stay deleted"
                    .to_owned()
            }
        })
    }
}
