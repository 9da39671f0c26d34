//! Why rows may not be pruned: errors with the class that decides the exit code, and the fix.
//!
//! Output: [`PruneError`]. What a relay would refuse as well is [`ControlError`]'s.

use crate::control::error::ControlError;
use crate::control::hint_text::{is_right, qualified};
use crate::wal::Class;
use crate::wal::quote::identifier;
use postrider_core::outbox::TableName;

/// Why nothing is pruned, or no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    /// A check of the source, or a statement.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// There is no such slot, so it has passed nothing.
    #[error("replication slot `{slot}` does not exist, so nothing shows which rows were delivered")]
    SlotMissing {
        /// The slot.
        slot: String,
        /// The slots of this database that a relay could read.
        others: Vec<String>,
    },
    /// Rows that an earlier slot of this name has lost look like rows that this one has passed.
    #[error("nothing shows since when slot `{slot}` has delivered every row: {why}")]
    BeginningUnknown {
        /// The slot.
        slot: String,
        /// Such as `no progress is kept`.
        why: &'static str,
    },
    /// The progress cannot be looked up.
    #[error(
        "role `{role}` may not read the cluster's identifier, by which progress is found in Kafka"
    )]
    SystemUnknown {
        /// The role.
        role: String,
    },
    /// Nothing can be deleted there.
    #[error("the server is a standby, which deletes nothing")]
    Standby,
    /// The role may not delete.
    #[error("role `{role}` may not prune table {table}: it lacks {lacks}")]
    Forbidden {
        /// The table or partition.
        table: TableName,
        /// The role.
        role: String,
        /// Such as `DELETE`.
        lacks: String,
        /// The statement that gives it.
        grant: String,
    },
    /// A row that is not seen cannot be known to have been passed.
    #[error("row-level security may hide rows of table {table} from role `{role}`")]
    RowsHidden {
        /// The table or partition.
        table: TableName,
        /// The role.
        role: String,
    },
    /// The age of a row is not a time.
    #[error("column {column} of table {table} is of type {kind}, which is no time")]
    AgeUnsuitable {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// Its type.
        kind: String,
    },
    /// Each page would read the whole table.
    #[error("table {table} is large, and has no index that begins with {column}")]
    IndexMissing {
        /// The table or partition.
        table: TableName,
        /// The column.
        column: String,
        /// The columns of the index that is missing.
        columns: String,
    },
    /// There are no days to have partitions.
    #[error(
        "table {table} is not partitioned by ranges of column `{column}`: it has no partition of a day"
    )]
    NotByAge {
        /// The table.
        table: TableName,
        /// The column with the age.
        column: String,
    },
    /// Rows that lie in the default partition cannot lie in another one.
    #[error(
        "partition {partition} of table {table} cannot be made: rows of that day lie in the default partition, or it is so large that Postgres cannot tell in time"
    )]
    DayOccupied {
        /// The table.
        table: TableName,
        /// The first partition that was not made.
        partition: TableName,
    },
    /// A day has no partition, and something else has its name.
    #[error("partition {partition} of table {table} cannot be made: something else has that name")]
    DayTaken {
        /// The table.
        table: TableName,
        /// The first partition that was not made.
        partition: TableName,
    },
    /// Whoever dropped the partition would drop them, too.
    #[error("other objects depend on partition {partition} of table {table}, which is old")]
    Needed {
        /// The table.
        table: TableName,
        /// The first such partition.
        partition: TableName,
    },
    /// A lock was not to be had in time.
    #[error("{object} was locked by others for longer than --lock-timeout, {attempts} times")]
    Locked {
        /// Such as `table public.outbox`.
        object: String,
        /// How often it was tried.
        attempts: u32,
    },
}

impl PruneError {
    /// What it means for whoever runs the command.
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

    /// The command or SQL that fixes it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Control(error) => return error.hint(),
            Self::SlotMissing { slot, others } => format!(
                "{}; if it was dropped or lost, see that its missing rows are sent first: nothing is \
                 deleted until a slot has passed them",
                is_right("source.slot (or --slot)", slot, "slots", others)
            ),
            Self::BeginningUnknown { .. } => {
                "set progress.at_least_once = true (or kafka.delivery = \"exactly_once\") and start the \
                 relay again: it notes where the slot is, and what was written from then on is \
                 pruned once it is passed. If the slot was never created again while there were \
                 rows that it had not delivered, or those were sent since: --from-before-slot"
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
                "drop them, or have them read the table instead: SELECT pg_describe_object(classid, objid, objsubid) \
                 FROM pg_depend WHERE refobjid = '{}'::regclass AND deptype = 'n'; what else was old was pruned",
                qualified(partition).replace('\'', "''")
            ),
            Self::Locked { .. } => {
                "run it again when the transactions that use it have ended (SELECT pid, query FROM \
                 pg_stat_activity WHERE state <> 'idle' ORDER BY xact_start); what was pruned stays so"
                    .to_owned()
            }
        })
    }
}
