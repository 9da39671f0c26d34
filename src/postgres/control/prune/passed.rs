//! Determines which transactions a replication slot has passed: their rows were delivered.
//!
//! Invariant: a passed row stays passed; a row whose transaction is in doubt was not passed.
//!
//! Every 15 seconds and at checkpoints, Postgres logs the running transactions. A slot's
//! `catalog_xmin` is the oldest of them in the last such record that the slot has confirmed
//! (`SnapBuildProcessRunningXacts`, `LogicalIncreaseXminForSlot`). Rows of older transactions were
//! committed before the confirmed position, however long they were open, and whatever `created_at`
//! says. Rows older than the stream's start ([`Since`](postrider_core::progress::Since)) are held
//! back: a recreated slot never delivers them.

use tokio_postgres::Row;

use super::PruneError;
use crate::control::connect::Client;
use crate::control::error::ControlError;
use crate::control::inspect::{get, known};
use crate::control::slot::slot;
use postrider_core::lsn::Lsn;

const DOING: &str = "looking at the replication slot";

/// False if the named slot has passed row `t`. The slot must have existed when the row was written.
/// A visible row whose transaction seems to lie ahead is more than 2^31 transactions old.
pub fn not_passed(slot: &str) -> String {
    format!(
        "coalesce(NOT (age(t.xmin) < 0 OR age(t.xmin) > (SELECT age(catalog_xmin) \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot} AND database = current_database() \
         AND wal_status IS DISTINCT FROM 'lost')), true)"
    )
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotPosition {
    pub slot: String,
    pub confirmed: Lsn,
    /// Rows of lower 64-bit transaction numbers were committed before `confirmed`.
    pub before: u64,
    /// No transaction with this number or a later one has committed.
    pub next_xid: u64,
}

/// Refuses a slot that is missing, lost, or not a relay's in this database.
pub async fn slot_position(client: &Client, name: &str) -> Result<SlotPosition, PruneError> {
    const SQL: &str = "\
        SELECT s.confirmed_flush_lsn::text, s.catalog_xmin::text::bigint, \
            pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()), \
            to_jsonb(s)->>'wal_status' \
        FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::text";
    refuse(client, name).await?;
    let found = client.run(DOING, client.sql().query_opt(SQL, &[&name])).await?;
    let row = found.ok_or_else(|| missing(name, Vec::new()))?;
    read(name, &row)
}

fn read(name: &str, row: &Row) -> Result<SlotPosition, PruneError> {
    let catalog_xmin: Option<i64> = get(row, 1)?;
    let lost =
        || ControlError::SlotLost { slot: name.to_owned(), reason: "wal_removed".to_owned() };
    let status: Option<String> = get(row, 3)?;
    if status.as_deref() == Some("lost") {
        return Err(lost().into());
    }
    // Only an unfinished slot has none, and it was refused above.
    let confirmed = known(row, 0)?;
    let catalog_xmin = catalog_xmin.and_then(|xmin| u32::try_from(xmin).ok()).ok_or_else(lost)?;
    let next_xid = get::<i64>(row, 2)?.cast_unsigned();
    Ok(SlotPosition {
        slot: name.to_owned(),
        confirmed,
        before: in_64_bits(catalog_xmin, next_xid),
        next_xid,
    })
}

/// A transaction's number with its epoch; it lies within 2^31 of `near`.
fn in_64_bits(xid: u32, near: u64) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    let distance = xid.wrapping_sub(near as u32).cast_signed();
    near.saturating_add_signed(i64::from(distance))
}

async fn refuse(client: &Client, name: &str) -> Result<(), PruneError> {
    const HERE: &str = "SELECT current_database()::text, pg_catalog.pg_is_in_recovery()";
    const OTHERS: &str = "SELECT slot_name::text FROM pg_catalog.pg_replication_slots \
        WHERE database = current_database() AND plugin = 'pgoutput' ORDER BY 1 LIMIT 20";
    let row = client.run(DOING, client.sql().query_one(HERE, &[])).await?;
    let (database, in_recovery): (String, bool) = (get(&row, 0)?, get(&row, 1)?);
    if in_recovery {
        return Err(PruneError::Standby);
    }
    let Some(facts) = slot(client, name).await? else {
        let rows = client.run(DOING, client.sql().query(OTHERS, &[])).await?;
        let others: Result<_, ControlError> = rows.iter().map(|row| get(row, 0)).collect();
        return Err(missing(name, others?));
    };
    let (slot, unfinished, is_lost) = (|| name.to_owned(), facts.unfinished(name), facts.is_lost());
    let what = match (facts.plugin.as_deref(), facts.database) {
        (None, _) => Some("it is a physical slot".to_owned()),
        (Some(plugin), _) if plugin != "pgoutput" => Some(format!("its plugin is `{plugin}`")),
        (_, of) if of.as_ref() != Some(&database) => {
            Some(format!("it is a slot of database `{}`", of.unwrap_or_default()))
        }
        _ => None,
    };
    if let Some(what) = what {
        return Err(ControlError::SlotForeign { slot: slot(), what, database }.into());
    }
    if let Some(unfinished) = unfinished {
        return Err(unfinished.into());
    }
    if is_lost {
        let reason = facts.invalidation.unwrap_or_else(|| "wal_removed".to_owned());
        return Err(ControlError::SlotLost { slot: slot(), reason }.into());
    }
    Ok(())
}

fn missing(slot: &str, others: Vec<String>) -> PruneError {
    PruneError::SlotMissing { slot: slot.to_owned(), others }
}

pub async fn publication_name(client: &Client, oid: u32) -> Result<Option<String>, PruneError> {
    const SQL: &str = "SELECT pubname::text FROM pg_catalog.pg_publication WHERE oid = $1::oid";
    let row = client.run(DOING, client.sql().query_opt(SQL, &[&oid])).await?;
    Ok(row.map(|row| get(&row, 0)).transpose()?)
}

/// Transactions from `since` on, and below `before`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedSlot {
    pub slot: String,
    /// 0 if nothing preceded the stream.
    pub since: u64,
    /// See [`SlotPosition::before`].
    pub before: u64,
}

/// Several slots may hold back one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    pub not_passed: u64,
    /// Rows that may never have been delivered.
    pub before_slot: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed(pub Vec<PassedSlot>);

impl PassedSlot {
    /// Condition: the slot has not reached row `t`.
    fn lags(&self) -> String {
        let before = self.xid();
        format!("(age(t.xmin) >= 0 AND age(t.xmin) <= age({before}))")
    }

    /// Condition: row `t` is, or may be, older than the slot's stream.
    fn is_early(&self) -> String {
        if self.since == 0 {
            return "false".to_owned();
        }
        let (lags, before) = (self.lags(), self.xid());
        let span = self.before.saturating_sub(self.since);
        format!(
            "(NOT {lags} AND (age(t.xmin) < 0 OR age(t.xmin)::bigint - age({before}) > {span}))"
        )
    }

    fn xid(&self) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let xid = self.before as u32;
        format!("'{xid}'::pg_catalog.xid")
    }
}

impl Passed {
    pub(super) fn condition(&self) -> String {
        let one = |slot: &PassedSlot| format!("NOT {} AND NOT {}", slot.lags(), slot.is_early());
        self.0.iter().map(one).collect::<Vec<_>>().join(" AND ")
    }

    /// Two counts per slot, from the columns `l0`, `e0`, ... of `from`.
    pub(super) fn counts(&self) -> String {
        let one =
            |at: usize| format!("count(*) FILTER (WHERE l{at}), count(*) FILTER (WHERE e{at})");
        let counts: Vec<_> = (0..self.0.len()).map(one).collect();
        format!("ARRAY[{}]", counts.join(", "))
    }

    pub(super) fn columns(&self) -> String {
        let one = |(at, slot): (usize, &PassedSlot)| {
            format!("{} AS l{at}, {} AS e{at}", slot.lags(), slot.is_early())
        };
        self.0.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn held(&self, counts: &[i64]) -> Vec<Held> {
        let number = |at: usize| counts.get(at).map_or(0, |count| count.unsigned_abs());
        let one = |at: usize| Held { not_passed: number(2 * at), before_slot: number(2 * at + 1) };
        (0..self.0.len()).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transactions_number_finds_its_epoch() {
        let epoch = 1_u64 << 32;
        assert_eq!(in_64_bits(700, 740), 700);
        assert_eq!(in_64_bits(741, 740), 741, "the slot was read a moment after the snapshot");
        assert_eq!(in_64_bits(u32::MAX, epoch + 5), epoch - 1);
        assert_eq!(in_64_bits(4, epoch - 1), epoch + 4);
        assert_eq!(in_64_bits(u32::MAX - 5, 3), 0, "no transaction is that old");
    }

    #[test]
    fn a_stream_without_a_beginning_has_no_early_rows() {
        let slot = |since| PassedSlot { slot: "s".to_owned(), since, before: (1 << 32) + 9 };
        assert_eq!(slot(0).is_early(), "false");
        assert!(slot(1 << 32).is_early().ends_with("age('9'::pg_catalog.xid) > 9))"));
        assert!(slot(u64::MAX).is_early().ends_with("> 0))"), "it has passed nothing");
    }
}
