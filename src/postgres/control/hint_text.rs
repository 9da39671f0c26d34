//! Sentences and SQL for the hints of errors and for set-up. Invariant: a command that loses rows
//! says so. No I/O.

use crate::wal::REPAIR_UNREADABLE;
use crate::wal::quote::{identifier, literal};
use postrider_core::lsn::Lsn;
use postrider_core::outbox::TableName;

pub(super) const INSERT_AGAIN: &str =
    "insert those again that are still in the table and must be delivered";

pub(super) const UNSUITABLE: &str = "set source.tables to an ordinary or partitioned table that is not \
    unlogged; rows that were written to an unlogged one are not in the log: re-send them";

/// Question before any remedy, because a mistyped name needs none.
pub(super) fn is_right(setting: &str, name: &str, what: &str, others: &[String]) -> String {
    let others: Vec<_> = others.iter().map(|other| format!("`{other}`")).collect();
    let others = match others.as_slice() {
        [] => format!("this database has no {what}"),
        others => format!("this database has {}", others.join(", ")),
    };
    format!("is {setting} = `{name}` right? {others}")
}

pub(super) fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Loses no rows.
pub(super) const OTHER_PUBLICATION: &str = "set source.publication to the publication of the \
    slot. If it was renamed, use its new name, or ALTER PUBLICATION .. RENAME TO its former \
    name; neither loses a row. If it was dropped, create the publication again, and do \
    not touch the slot; if the relay then ends with PR-P010 again: `postrider repair`, then \
    `postrider repair --execute --drop-slot`";

pub fn slot_of_database(slot: &str, database: &str) -> String {
    /// Postgres's NAMEDATALEN - 1; the name is ASCII.
    const NAME_MAX: usize = 63;
    let legal = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    let database = database.to_ascii_lowercase();
    let end: String = database.chars().map(|char| if legal(char) { char } else { '_' }).collect();
    format!("{slot}_{end}").chars().take(NAME_MAX).collect()
}

pub(super) fn without_publication(publication: &str, tables: &[TableName]) -> String {
    format!(
        "do not drop the slot\n\
         if the publication was renamed: ALTER PUBLICATION .. RENAME TO its former name\n\
         if it was dropped: {}\n\
         start the relay, which delivers everything if no row was written in the meantime\n\
         if the relay ends with PR-P010 again, rows were written in the meantime: `postrider \
         repair`, then `postrider repair --execute --drop-slot`. {REPAIR_UNREADABLE}",
        create_publication(publication, tables)
    )
}

pub(super) const fn unfinished(named: bool) -> &'static str {
    if named {
        "wait until that transaction ends, or end it; then the slot is complete"
    } else {
        "wait until the slot is complete: no write transaction that is open now may stay open"
    }
}

/// `pg_replication_slots.invalidation_reason`.
pub(super) fn lost(slot: &str, reason: &str) -> String {
    let prevention = match reason {
        "wal_removed" => "raise max_slot_wal_keep_size",
        "idle_timeout" => {
            "raise idle_replication_slot_timeout, or stop the relay for less time than that"
        }
        "wal_level_insufficient" => "keep wal_level = logical, on the primary too",
        "rows_removed" => "set hot_standby_feedback, as the slot is a standby's",
        _ => "the server's log says why it was invalidated",
    };
    format!(
        "the WAL of its undelivered rows is gone: `postrider repair` finds the rows that are \
         missing in Kafka; with --execute it sends them and creates the slot again; \
         {prevention}. By hand: SELECT pg_drop_replication_slot({}); then `postrider setup \
         --from-now`, and re-send those that are still in the outbox; where progress is kept in \
         Kafka, `postrider adopt --execute` before the relay is started again",
        literal(slot)
    )
}

/// Kind of part that can be fixed in place.
pub(super) const UNLOGGED_PART: &str = "an unlogged partition";

pub(super) const ONLY_INSERTS: &str = "publish = 'insert'";

/// No effect on other tables.
pub(super) const VIA_ROOT: &str = "publish_via_partition_root = true";

/// A comment, so that the whole hint is SQL.
pub(super) const RESEND: &str =
    " -- and re-send the rows committed in the meantime: Postgres does not send them";

/// SET TABLE would remove all other tables.
pub(super) fn publish_whole(publication: &str, table: &TableName) -> String {
    let (name, table) = (identifier(publication), qualified(table));
    format!(
        "BEGIN; ALTER PUBLICATION {name} DROP TABLE {table}; ALTER PUBLICATION {name} ADD TABLE \
         {table}; COMMIT;{RESEND}; where progress is kept, the next start then requires \
         `postrider adopt --execute` (PR-P067)"
    )
}

/// A running session still recognises partitions by OID.
pub(super) fn publish_under_root(publication: &str) -> String {
    format!(
        "ALTER PUBLICATION {} SET ({VIA_ROOT}); -- and re-send the rows of partitions that were made while it \
         was off and the relay was running",
        identifier(publication)
    )
}

pub(super) fn qualified(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

pub(super) fn create_publication(publication: &str, tables: &[TableName]) -> String {
    let tables: Vec<_> = tables.iter().map(qualified).collect();
    let tables = tables.join(", ");
    // A publication without tables suffices for logical messages.
    let tables = if tables.is_empty() { tables } else { format!(" FOR TABLE {tables}") };
    format!(
        "CREATE PUBLICATION {}{tables} WITH ({ONLY_INSERTS}, {VIA_ROOT});",
        identifier(publication)
    )
}

pub(super) fn after_vanishing(delivered: Option<Lsn>) -> String {
    let delivered = delivered.map(|delivered| format!(", {delivered}")).unwrap_or_default();
    format!(
        "`postrider repair` finds out which rows are missing in Kafka, and with --execute sends them and makes the \
         slot. By hand: `postrider setup --from-now` makes a new one, which delivers nothing that was committed \
         before it: {INSERT_AGAIN} (re-send those since the last acknowledged position{delivered}); \
         where progress is kept in Kafka, `postrider adopt --execute` before the relay is started again"
    )
}

pub(super) fn of_part(part: &TableName, kind: &str) -> String {
    if kind == UNLOGGED_PART {
        let part = qualified(part);
        return format!(
            "ALTER TABLE {part} SET LOGGED; -- and re-send the rows that were written to it"
        );
    }
    "publish it and name it in source.tables beside the table, or write elsewhere; and re-send the rows \
     that were written to it"
        .to_owned()
}

pub(super) fn named_besides(publication: &str, others: &str) -> String {
    let publication = identifier(publication);
    format!(
        "if that is a mistake, set source.tables to {others}; to read both, name all of them; if \
         {others} was replaced and is no longer an outbox: ALTER PUBLICATION {publication} DROP \
         TABLE {others}; and start again. Otherwise a relay would acknowledge its rows undelivered"
    )
}

/// A copy keeps only the slot's position (`copy_replication_slot` in slotfuncs.c).
pub(super) fn without_two_phase(slot: &str) -> String {
    let [there, back] = two_phase_copies(slot);
    format!(
        "stop the relays, make sure that one slot is free (max_replication_slots), and copy the \
         slot there and back, which keeps its position and drops two_phase (and failover, if it \
         was set: set it again): {there} {back}"
    )
}

pub(super) fn two_phase_copies(slot: &str) -> [String; 2] {
    let (slot, copy) = (literal(slot), literal(&format!("{slot}_copy")));
    // If a copy fails, the drop after it must not run.
    let moved = |from: &str, to: &str| {
        format!(
            "SELECT pg_drop_replication_slot({from}) FROM pg_copy_logical_replication_slot({from}, {to});"
        )
    };
    [moved(&slot, &copy), moved(&copy, &slot)]
}
