//! Why the relay may not start, each with the command that mends it.
//!
//! Always holds: every refusal names the object, has a hint and a class, and the class decides the
//! exit code. Errors of the connection itself are [`WalError`], the same as on the replication
//! connection, so that one mistake reads the same wherever it is met.

use crate::outbox::TableName;
use crate::wal::quote::{identifier, literal};
use crate::wal::{Class, WalError};

/// A check that failed, or a statement that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Connecting, logging in, or a statement of ours failed.
    #[error("{doing}: {source}")]
    Connection {
        /// What we were doing.
        doing: &'static str,
        /// What happened.
        source: WalError,
    },
    /// The server does not send logical messages.
    #[error("logical messages are to be read, and PostgreSQL {version} does not send them")]
    MessagesUnknown {
        /// The major version.
        version: i32,
    },
    /// The server writes too little into its log.
    #[error("wal_level is `{current}`, logical decoding needs `logical`")]
    WalLevel {
        /// The setting.
        current: String,
    },
    /// The role cannot replicate.
    #[error("role `{role}` may not replicate")]
    RoleMayNotReplicate {
        /// The role.
        role: String,
    },
    /// The outbox table does not exist here.
    #[error("table {table} does not exist in database `{database}`")]
    TableMissing {
        /// The table.
        table: TableName,
        /// The database we are connected to.
        database: String,
    },
    /// The relation cannot be published.
    #[error("{table} is {kind}, which cannot be an outbox")]
    TableUnsuitable {
        /// The table.
        table: TableName,
        /// Such as `a view`.
        kind: &'static str,
    },
    /// The role cannot read the table, which only a dry run does.
    #[error("role `{role}` may not read table {table}")]
    TableForbidden {
        /// The table.
        table: TableName,
        /// The role.
        role: String,
    },
    /// Columns that the configuration needs are not there.
    #[error("table {table} has no column {} (it has {})", .missing.join(", "), .present.join(", "))]
    ColumnsMissing {
        /// The table.
        table: TableName,
        /// The columns.
        missing: Vec<String>,
        /// All columns there are.
        present: Vec<String>,
    },
    /// There is no such publication.
    #[error("publication `{publication}` does not exist{}", if *.slot_exists { ", but the slot does: rows written meanwhile cannot be decoded" } else { "" })]
    PublicationMissing {
        /// The publication.
        publication: String,
        /// The tables it should have.
        tables: Vec<TableName>,
        /// The slot, if it exists already: creating the publication now would not help it.
        slot: String,
        /// Whether the slot exists.
        slot_exists: bool,
    },
    /// The publication does not send inserts.
    #[error("publication `{publication}` does not publish inserts")]
    PublicationWithoutInserts {
        /// The publication.
        publication: String,
    },
    /// The publication does not have the table.
    #[error("publication `{publication}` does not contain table {table}")]
    PublicationLacksTable {
        /// The publication.
        publication: String,
        /// The table.
        table: TableName,
        /// The table is partitioned and its partitions are published under their own names.
        partitioned: bool,
    },
    /// The publication hides rows, which would be lost silently.
    #[error("publication `{publication}` filters the rows of table {table}")]
    PublicationFiltersRows {
        /// The publication.
        publication: String,
        /// The table.
        table: TableName,
    },
    /// The publication hides columns that are needed.
    #[error("publication `{publication}` hides column {} of table {table}", .columns.join(", "))]
    PublicationHidesColumns {
        /// The publication.
        publication: String,
        /// The table.
        table: TableName,
        /// The hidden columns.
        columns: Vec<String>,
    },
    /// There is no such slot, and creating it was not asked for.
    #[error("replication slot `{slot}` does not exist")]
    SlotMissing {
        /// The slot.
        slot: String,
    },
    /// The slot that this process has seen is gone, and with it the position.
    #[error("replication slot `{slot}` is gone: this relay had found it before")]
    SlotVanished {
        /// The slot.
        slot: String,
    },
    /// The server belongs to another cluster than before.
    #[error("the server is of another cluster: its system identifier is {now}, it was {before}")]
    OtherCluster {
        /// The identifier of the first session.
        before: String,
        /// The identifier now.
        now: String,
    },
    /// The publication was dropped and created again.
    #[error("publication `{publication}` is not the one this relay started with: it was replaced")]
    PublicationReplaced {
        /// The publication.
        publication: String,
    },
    /// The table was dropped or renamed, and perhaps another one has its name.
    #[error(
        "table {table} is not the one this relay started with: it was renamed, dropped or replaced"
    )]
    TableReplaced {
        /// The table.
        table: TableName,
    },
    /// The slot belongs to something else.
    #[error("replication slot `{slot}` is not ours: {what}")]
    SlotForeign {
        /// The slot.
        slot: String,
        /// Such as ``its plugin is `wal2json` ``.
        what: String,
    },
    /// The log that the slot needs is gone.
    #[error("replication slot `{slot}` is lost: {reason}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// The server's reason.
        reason: String,
    },
    /// Another session streams from the slot.
    #[error("replication slot `{slot}` is in use by process {pid}{}", if .holder.is_empty() { String::new() } else { format!(" ({holder})") })]
    SlotHeld {
        /// The slot.
        slot: String,
        /// The server process.
        pid: i32,
        /// Its application name and client address, as far as we may see them.
        holder: String,
    },
    /// The slot is not held by our stream any more: whatever is said of it now is about somebody
    /// else's work.
    #[error(
        "replication slot `{slot}` is no longer held by this relay's stream: the server ended it, and another session may have the slot"
    )]
    SlotTaken {
        /// The slot.
        slot: String,
    },
    /// Facts would come from one server and rows from another.
    #[error("the replication stream and the SQL session beside it reached different servers")]
    OtherServer,
    /// Creating the slot waits for transactions that are still open.
    #[error("replication slot `{slot}` cannot be created while a write transaction is open: {}", .blockers.join("; "))]
    SlotBlocked {
        /// The slot.
        slot: String,
        /// Who holds it up, oldest first.
        blockers: Vec<String>,
        /// A process to end, if it is a process.
        pid: Option<i32>,
    },
    /// The server keeps no more slots.
    #[error("the server has no free replication slot for `{slot}`")]
    NoFreeSlot {
        /// The slot.
        slot: String,
    },
    /// The role may not create what is missing.
    #[error("the role may not create {object}")]
    CreationForbidden {
        /// Such as ``publication `postrider` ``.
        object: String,
        /// The statement that somebody else must run.
        sql: String,
    },
    /// The server is a standby; slots and publications must be created on the primary.
    #[error("the server is a standby and cannot create `{object}`")]
    ReadOnly {
        /// What should have been created.
        object: String,
    },
}

impl ControlError {
    /// What it means for the relay.
    pub fn class(&self) -> Class {
        match self {
            Self::Connection { source, .. } => source.class(),
            Self::RoleMayNotReplicate { .. }
            | Self::TableForbidden { .. }
            | Self::CreationForbidden { .. } => Class::Permission,
            Self::SlotHeld { .. } | Self::SlotTaken { .. } => Class::Held,
            Self::SlotLost { .. }
            | Self::SlotVanished { .. }
            | Self::OtherCluster { .. }
            | Self::PublicationReplaced { .. }
            | Self::TableReplaced { .. }
            | Self::PublicationMissing { slot_exists: true, .. } => Class::Position,
            Self::SlotBlocked { .. } | Self::OtherServer => Class::Transient,
            _ => Class::Configuration,
        }
    }

    /// Whether the server says that it takes no sessions, as one does that shuts down: `fast` stop
    /// waits for whoever still streams.
    pub fn says_shutdown(&self) -> bool {
        matches!(self, Self::Connection { source, .. } if source.says_shutdown())
    }

    /// The process's exit code for it.
    pub fn exit_code(&self) -> u8 {
        self.class().exit_code()
    }

    /// The command that mends it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Connection { source, .. } => return source.hint(),
            Self::MessagesUnknown { .. } => {
                "use PostgreSQL 14 or later, or leave messages.prefixes empty".to_owned()
            }
            Self::WalLevel { .. } => {
                "ALTER SYSTEM SET wal_level = 'logical'; then restart the server".to_owned()
            }
            Self::RoleMayNotReplicate { role } => {
                format!(
                    "ALTER ROLE {role} REPLICATION; (on Amazon RDS: GRANT rds_replication TO {role};)",
                    role = identifier(role)
                )
            }
            Self::TableMissing { .. } => {
                "run `postrider setup`, or set source.tables to the outbox of this database"
                    .to_owned()
            }
            Self::TableUnsuitable { .. } => {
                "set source.tables to an ordinary or partitioned table that is not unlogged"
                    .to_owned()
            }
            Self::TableForbidden { table, role } => format!(
                "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {table} TO {role};",
                schema = identifier(&table.schema),
                table = qualified(table),
                role = identifier(role),
            ),
            Self::ColumnsMissing { .. } => {
                "name the table's own columns in [outbox] and [route]".to_owned()
            }
            Self::ReadOnly { .. } => {
                "connect to the primary: add target_session_attrs=primary".to_owned()
            }
            Self::CreationForbidden { sql, .. } => format!("as a superuser or the owner: {sql}"),
            Self::NoFreeSlot { .. } => {
                "drop a slot that is not needed, or raise max_replication_slots and restart"
                    .to_owned()
            }
            Self::SlotHeld { pid, .. } => format!(
                "another relay is at work; if it is not: SELECT pg_terminate_backend({pid});"
            ),
            Self::SlotTaken { .. } => {
                "nothing to do: this relay waits until the slot is free, and begins anew".to_owned()
            }
            Self::OtherServer => {
                "what stands before the servers sends each connection to another one: name the \
                 servers themselves in source.url, with target_session_attrs=primary"
                    .to_owned()
            }
            Self::SlotBlocked { pid, .. } => match pid {
                Some(pid) => {
                    format!("let it end, or: SELECT pg_terminate_backend({pid}); then start again")
                }
                None => "COMMIT PREPARED or ROLLBACK PREPARED it, then start again".to_owned(),
            },
            _ => return self.object_hint(),
        })
    }

    /// Hints about publication and slot. What a publication leaves out at the time of the commit,
    /// the slot never sends, however the publication is changed afterwards.
    fn object_hint(&self) -> Option<String> {
        Some(match self {
            Self::PublicationMissing { publication, tables, slot, slot_exists } => {
                let create = create_publication(publication, tables);
                if *slot_exists {
                    let slot = literal(slot);
                    format!(
                        "SELECT pg_drop_replication_slot({slot}); {create} then start again, and \
                         re-send the rows written since the publication was dropped"
                    )
                } else {
                    create
                }
            }
            Self::PublicationWithoutInserts { publication } => {
                let name = identifier(publication);
                format!("ALTER PUBLICATION {name} SET (publish = 'insert');{RESEND}")
            }
            Self::PublicationLacksTable { publication, partitioned: true, .. } => format!(
                "ALTER PUBLICATION {} SET (publish_via_partition_root = true);{RESEND}",
                identifier(publication)
            ),
            Self::PublicationLacksTable { publication, table, .. } => format!(
                "ALTER PUBLICATION {} ADD TABLE {};{RESEND}",
                identifier(publication),
                qualified(table)
            ),
            Self::PublicationFiltersRows { publication, table }
            | Self::PublicationHidesColumns { publication, table, .. } => format!(
                "ALTER PUBLICATION {} SET TABLE {};{RESEND}",
                identifier(publication),
                qualified(table)
            ),
            Self::SlotMissing { slot } => {
                format!("SELECT pg_create_logical_replication_slot({}, 'pgoutput');", literal(slot))
            }
            Self::SlotVanished { slot } => format!(
                "SELECT pg_create_logical_replication_slot({}, 'pgoutput'); then start again, and \
                 re-send the rows committed since the last acknowledged position",
                literal(slot)
            ),
            Self::OtherCluster { .. } => {
                "connect to the old cluster; if this one is to take its place, start again, and \
                 re-send the rows committed before its slot was created"
                    .to_owned()
            }
            Self::PublicationReplaced { .. } | Self::TableReplaced { .. } => {
                "run `postrider setup`, start again, and re-send the rows committed since the \
                 change: Postgres passes over those that were not published"
                    .to_owned()
            }
            Self::SlotForeign { .. } => {
                "set source.slot to another name, or connect to the slot's own database".to_owned()
            }
            Self::SlotLost { slot, .. } => format!(
                "SELECT pg_drop_replication_slot({}); then start again, and re-send the rows that \
                 are still in the outbox; raise max_slot_wal_keep_size",
                literal(slot)
            ),
            _ => return None,
        })
    }
}

/// A comment, so that the whole hint is still SQL.
const RESEND: &str = " -- and re-send the rows committed meanwhile: Postgres passes over them";

/// A table's name, quoted.
pub(super) fn qualified(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

/// The statement that creates the publication as it should be.
pub(super) fn create_publication(publication: &str, tables: &[TableName]) -> String {
    let tables: Vec<_> = tables.iter().map(qualified).collect();
    let tables = tables.join(", ");
    // A publication of no table is enough for logical messages.
    let tables = if tables.is_empty() { tables } else { format!(" FOR TABLE {tables}") };
    // Partitions would be published under names of their own; it means nothing to other tables.
    let options = "publish = 'insert', publish_via_partition_root = true";
    format!("CREATE PUBLICATION {}{tables} WITH ({options});", identifier(publication))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_hint_and_its_exit_code() {
        let table = || TableName::new("public", "Out\"box");
        let lost = ControlError::SlotLost { slot: "it's".to_owned(), reason: String::new() };
        assert_eq!(lost.exit_code(), 70);
        assert!(lost.hint().unwrap().contains("pg_drop_replication_slot('it''s')"));
        let missing = ControlError::PublicationMissing {
            publication: "p".to_owned(),
            tables: vec![table()],
            slot: "s".to_owned(),
            slot_exists: false,
        };
        assert_eq!(missing.exit_code(), 78);
        assert_eq!(
            missing.hint().unwrap(),
            "CREATE PUBLICATION \"p\" FOR TABLE \"public\".\"Out\"\"box\" \
             WITH (publish = 'insert', publish_via_partition_root = true);"
        );
        let role = ControlError::RoleMayNotReplicate { role: "r".to_owned() };
        assert_eq!(role.exit_code(), 77);
        assert!(role.hint().unwrap().starts_with("ALTER ROLE \"r\" REPLICATION;"));
        let held =
            ControlError::SlotHeld { slot: "s".to_owned(), pid: 7, holder: "postrider".to_owned() };
        assert_eq!((held.exit_code(), held.class().is_transient()), (75, true));
        assert!(held.to_string().ends_with("process 7 (postrider)"));
    }
}
