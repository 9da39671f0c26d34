//! Errors of checks and set-up over SQL: why the relay may not start or continue.
//!
//! Errors of the connection itself are [`WalError`], so that one mistake has one message.

use super::hint_text::{
    INSERT_AGAIN, ONLY_INSERTS, OTHER_PUBLICATION, RESEND, UNSUITABLE, after_vanishing,
    create_publication, is_right, listed, lost, named_besides, of_part, publish_under_root,
    publish_whole, qualified, slot_of_database, unfinished, without_publication, without_two_phase,
};
use super::standby::StandbyError;
use crate::wal::quote::identifier;
use crate::wal::{Class, STANDBY_REACHED, WalError, raise_limit};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("{doing}: {source}")]
    Connection { doing: &'static str, source: WalError },
    #[error("messages.prefixes is set, and PostgreSQL {version} does not send logical messages")]
    MessagesUnknown { version: i32 },
    #[error("wal_level is `{current}`, logical decoding needs `logical`")]
    WalLevel { current: String },
    #[error("role `{role}` may not replicate")]
    RoleMayNotReplicate { role: String },
    #[error("table {table} does not exist in database `{database}`")]
    TableMissing { table: TableName, database: String },
    #[error("{table} is {kind}, which cannot be an outbox")]
    TableUnsuitable { table: TableName, kind: &'static str },
    /// Only a dry run reads the table.
    #[error("role `{role}` may not read table {table}")]
    TableForbidden { table: TableName, role: String },
    #[error("table {table} has no column {} (it has {})", .missing.join(", "), listed(.present))]
    ColumnsMissing { table: TableName, missing: Vec<String>, present: Vec<String> },
    #[error("publication `{publication}` does not exist{}", if *.slot_exists { format!(", but slot `{slot}` does") } else { String::new() })]
    PublicationMissing {
        publication: String,
        tables: Vec<TableName>,
        /// An existing slot could not use a new publication.
        slot: String,
        slot_exists: bool,
        others: Vec<String>,
    },
    #[error("publication `{publication}` does not publish inserts")]
    PublicationWithoutInserts { publication: String },
    #[error("publication `{publication}` does not contain table {table}")]
    PublicationLacksTable { publication: String, table: TableName, partitioned: bool },
    #[error("publication `{publication}` filters the rows of table {table}")]
    PublicationFiltersRows { publication: String, table: TableName },
    #[error("publication `{publication}` hides column {} of table {table}", .columns.join(", "))]
    PublicationHidesColumns { publication: String, table: TableName, columns: Vec<String> },
    /// Rows of the slot's other tables would be lost.
    #[error(
        "replication slot `{slot}` delivers {others} by publication `{publication}`, and \
         source.tables names only {tables}"
    )]
    TablesLeftOut {
        slot: String,
        publication: String,
        /// Published tables that source.tables omits.
        others: String,
        /// Tables of source.tables that are not published.
        tables: String,
    },
    #[error("replication slot `{slot}` does not exist")]
    SlotMissing { slot: String, others: Vec<String> },
    /// Rows that a new slot or a newly published table would omit.
    #[error(
        "table {table} has {rows}, which a new slot does not deliver: it delivers what is \
         committed from now on"
    )]
    RowsBefore {
        table: TableName,
        /// Number of rows in the words of [`RowsBefore`](super::RowsBefore).
        rows: String,
    },
    /// The slot that this process has seen no longer exists, and its position is lost.
    #[error("replication slot `{slot}` no longer exists: this relay has used it")]
    SlotVanished { slot: String, delivered: Option<Lsn> },
    #[error(
        "the server belongs to another cluster: its system identifier is {now}, before it was \
             {before}"
    )]
    OtherCluster { before: String, now: String },
    #[error("publication `{publication}` is not the one this relay started with: it was replaced")]
    PublicationReplaced { publication: String },
    #[error("table {table} was taken out of publication `{publication}` and put in again")]
    MemberReplaced { publication: String, table: TableName },
    /// The table was dropped or renamed; another may have its name.
    #[error(
        "table {table} is not the one this relay started with: it was renamed, dropped or replaced"
    )]
    TableReplaced { table: TableName },
    #[error("replication slot `{slot}` is not ours: {what}")]
    SlotForeign { slot: String, what: String, database: String },
    #[error(
        "replication slot `{slot}` was created with two_phase: it sends a transaction at PREPARE \
         TRANSACTION and only a marker at COMMIT PREPARED, and the relay needs its rows at the commit"
    )]
    SlotTwoPhase { slot: String },
    #[error("replication slot `{slot}` is lost: {reason}")]
    SlotLost {
        slot: String,
        /// `wal_removed` if the server does not give one.
        reason: String,
    },
    #[error(
        "replication slot `{slot}` is still being created{}{}",
        .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default(),
        .waits_for.as_ref().map(|what| format!(", which waits for {what}")).unwrap_or_default()
    )]
    SlotUnfinished { slot: String, pid: Option<i32>, waits_for: Option<String> },
    #[error("replication slot `{slot}` is in use by process {pid}{}", if .holder.is_empty() { String::new() } else { format!(" ({holder})") })]
    SlotHeld { slot: String, pid: i32, holder: String },
    /// The slot's data now concerns another reader.
    #[error(
        "replication slot `{slot}` is no longer held by this relay's stream: the server ended it{}",
        if *.is_held { ", and another session has the slot" } else { "" }
    )]
    SlotTaken { slot: String, is_held: bool },
    #[error("the replication stream and the SQL session beside it reached different servers")]
    OtherServer,
    /// The promoted server's log has a new timeline.
    #[error("the server was promoted: the stream begins again on its new timeline")]
    Promoted,
    /// A list of hosts led to a standby, but the slot is on the primary.
    #[error("the server that was reached is a standby, and {what} replication slot `{slot}`")]
    StandbyReached {
        slot: String,
        /// `does not have`, `only has a copy of` or `cannot stream from`.
        what: &'static str,
    },
    /// Rows of a part are published under another name, or not at all.
    #[error("{part} is {kind} of table {table}, and rows in it are not delivered")]
    PartUnsuitable {
        table: TableName,
        part: TableName,
        /// Kind of part, for example `an unlogged partition`.
        kind: &'static str,
    },
    #[error("replication slot `{slot}` cannot be created while a write transaction is open: {}", .blockers.join("; "))]
    SlotBlocked {
        slot: String,
        /// Oldest first.
        blockers: Vec<String>,
        pid: Option<i32>,
    },
    #[error("the server has no free replication slot for `{slot}`")]
    NoFreeSlot { slot: String, limit: i64 },
    #[error("the role may not create {object}")]
    CreationForbidden { object: String, needs: String, sql: String },
    #[error(transparent)]
    Standby(#[from] StandbyError),
}

/// Rows from before a rename are decoded with their old column names.
const COLUMNS_MISSING: &str = "name the table's own columns in [outbox] and [route]; after a rename \
    list both names, the new one first, as in outbox.aggregate_id = [\"new\", \"old\"]";

const RENAMED: &str = "if it was renamed and published throughout, set source.tables to its new \
                       name and start again: no row is lost; if it was dropped or replaced, run \
                       `postrider setup`";

const REPLACED: &str = "stop the relay a minute later and run `postrider repair --execute`, which re-sends the rows committed \
    since the change that are still in the outbox: Postgres does not send those that were not published; where progress \
    is kept, the next start requires `postrider adopt --execute`";

impl ControlError {
    pub(super) fn is_of(&self, codes: &[&str]) -> bool {
        matches!(self, Self::Connection { source: WalError::Server(server), .. }
            if codes.contains(&server.code.as_str()))
    }

    pub fn is_of_slot(&self) -> bool {
        matches!(
            self,
            Self::SlotMissing { .. }
                | Self::SlotVanished { .. }
                | Self::SlotForeign { .. }
                | Self::SlotTwoPhase { .. }
                | Self::SlotLost { .. }
                | Self::SlotUnfinished { .. }
                | Self::SlotHeld { .. }
                | Self::SlotTaken { .. }
                | Self::SlotBlocked { .. }
                | Self::NoFreeSlot { .. }
        )
    }

    pub fn class(&self) -> Class {
        match self {
            Self::Connection { source, .. } => source.class(),
            Self::Standby(error) => error.class(),
            Self::RoleMayNotReplicate { .. }
            | Self::TableForbidden { .. }
            | Self::CreationForbidden { .. } => Class::Permission,
            Self::SlotHeld { .. } | Self::SlotTaken { is_held: true, .. } => Class::Held,
            Self::SlotLost { .. }
            | Self::SlotVanished { .. }
            | Self::OtherCluster { .. }
            | Self::PublicationReplaced { .. }
            | Self::MemberReplaced { .. }
            | Self::TableReplaced { .. }
            | Self::PublicationMissing { slot_exists: true, .. } => Class::Position,
            Self::SlotBlocked { .. }
            | Self::SlotUnfinished { .. }
            | Self::SlotTaken { .. }
            | Self::OtherServer
            | Self::Promoted
            | Self::StandbyReached { .. } => Class::Transient,
            _ => Class::Configuration,
        }
    }

    /// A `fast` stop of the server waits for streams.
    pub fn says_shutdown(&self) -> bool {
        matches!(self, Self::Connection { source, .. } if source.says_shutdown())
    }

    pub fn exit_code(&self) -> u8 {
        self.class().exit_code()
    }

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
                "set source.tables to the outbox of this database; only if there is none yet, run \
                 `postrider setup`: rows of a table that source.tables does not name are skipped, \
                 and not delivered later"
                    .to_owned()
            }
            Self::TableUnsuitable { .. } => UNSUITABLE.to_owned(),
            Self::Promoted => "nothing to do".to_owned(),
            Self::PartUnsuitable { part, kind, .. } => of_part(part, kind),
            Self::TableForbidden { table, role } => format!(
                "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {table} TO {role};",
                schema = identifier(&table.schema),
                table = qualified(table),
                role = identifier(role),
            ),
            Self::ColumnsMissing { .. } => COLUMNS_MISSING.to_owned(),
            Self::Standby(error) => error.hint(),
            Self::CreationForbidden { needs, sql, .. } => {
                format!("it needs {needs}\nor as a superuser, or a role that has that: {sql}")
            }
            Self::NoFreeSlot { limit, .. } => format!(
                "{} then restart the server; or drop an unused slot; its reader loses the rows it has not read",
                raise_limit("max_replication_slots", *limit)
            ),
            Self::SlotHeld { pid, .. } => format!(
                "another relay is at work; if it is not: SELECT pg_terminate_backend({pid});"
            ),
            Self::SlotUnfinished { waits_for, .. } => unfinished(waits_for.is_some()).to_owned(),
            Self::SlotTaken { .. } => {
                "nothing to do: the relay starts a new session; the server's log says why"
                    .to_owned()
            }
            Self::OtherServer => {
                "a proxy sends each connection to another server: name the servers themselves in \
                 source.url, with target_session_attrs=primary"
                    .to_owned()
            }
            Self::SlotBlocked { pid, .. } => match pid {
                Some(pid) => {
                    format!(
                        "wait until it ends, or roll it back: SELECT pg_terminate_backend({pid}); \
                         then start again"
                    )
                }
                None => "COMMIT PREPARED it (or ROLLBACK PREPARED, which discards what it wrote), \
                         then start again"
                    .to_owned(),
            },
            _ => return self.object_hint(),
        })
    }

    /// The slot never sends what the publication omitted at the commit.
    fn object_hint(&self) -> Option<String> {
        Some(match self {
            Self::PublicationMissing { publication, tables, slot_exists, others, .. } => {
                let name = is_right("source.publication", publication, "publications", others);
                if *slot_exists && others.is_empty() {
                    format!("{name}\n{}", without_publication(publication, tables))
                } else if *slot_exists {
                    format!("{name}; {OTHER_PUBLICATION}")
                } else {
                    let create = create_publication(publication, tables);
                    format!("{name}; if it is new: `postrider setup`, which does: {create}")
                }
            }
            Self::PublicationWithoutInserts { publication } => {
                let name = identifier(publication);
                format!(
                    "ALTER PUBLICATION {name} SET ({ONLY_INSERTS});{RESEND}; another \
                     subscriber of this publication would get no more updates and deletes"
                )
            }
            Self::PublicationLacksTable { publication, partitioned: true, .. } => {
                publish_under_root(publication)
            }
            Self::PublicationLacksTable { publication, table, .. } => format!(
                "ALTER PUBLICATION {} ADD TABLE {};{RESEND}",
                identifier(publication),
                qualified(table)
            ),
            Self::PublicationFiltersRows { publication, table } => {
                publish_whole(publication, table)
            }
            Self::PublicationHidesColumns { publication, table, .. } => format!(
                "{}; a generated column is published from 18 on only, if it is stored and the \
                 publication has publish_generated_columns = stored: name another one in [outbox]",
                publish_whole(publication, table)
            ),
            Self::SlotMissing { slot, others } => format!(
                "{}\nat a first start: `postrider setup`, and `postrider backfill --execute` after its `--existing send`\n\
                 if the slot was there before (a failover, a restored backup, a dropped slot), a new one delivers \
                 nothing that was committed before it:\n\
                 `postrider repair` finds out which rows are missing in Kafka, and makes it\n\
                 or `postrider setup --from-now`, and {INSERT_AGAIN}",
                is_right("source.slot", slot, "slots", others)
            ),
            Self::TablesLeftOut { publication, others, .. } => named_besides(publication, others),
            Self::SlotVanished { delivered, .. } => after_vanishing(*delivered),
            Self::StandbyReached { .. } => STANDBY_REACHED.to_owned(),
            Self::RowsBefore { .. } => "after a lost slot `postrider repair`, which sends what is missing in Kafka; \
                `postrider setup --from-now` if none need be delivered; else `--existing send`, then `postrider backfill --execute`"
                .to_owned(),
            Self::OtherCluster { .. } => {
                "connect to the old cluster; if this one is to take its place, start again, and \
                 re-send the rows committed before its slot was created"
                    .to_owned()
            }
            Self::MemberReplaced { .. } => format!("start again; {REPLACED}"),
            Self::PublicationReplaced { .. } => {
                format!("run `postrider setup`, start again; {REPLACED}")
            }
            Self::TableReplaced { .. } => format!("{RENAMED}, start again; {REPLACED}"),
            Self::SlotForeign { slot, database, .. } => format!(
                "set source.slot to another name: POSTRIDER_SOURCE__SLOT={} (slots of all databases of a server share \
                 their names); or connect to the slot's own database",
                slot_of_database(slot, database)
            ),
            Self::SlotTwoPhase { slot } => without_two_phase(slot),
            Self::SlotLost { slot, reason } => lost(slot, reason),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
