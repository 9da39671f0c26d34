//! Checks of `postrider doctor`: what limits, open transactions and other slots of the server do to the relay.
//!
//! Input: [`HealthFacts`] and an [`Inspection`]. Output: checks. Pure, but for the clock that is given to it.

use super::check::{Check, bytes, duration};
use postrider_core::outbox::TableName;
use postrider_postgres::control::{
    HealthFacts, IdleSlot, Inspection, OpenTransaction, ServerLimits, SlotHealth, TableHealth,
};

/// The first supported version that tells how much WAL a slot may retain.
const LIMITS_SINCE: i32 = 130_000;
/// The oldest version that PostgreSQL's developers still maintain.
const MAINTAINED_SINCE: i32 = 140_000;
/// The first version with slots that follow a failover.
const FAILOVER_SLOTS_SINCE: i32 = 170_000;
/// A transaction that is open for longer, in seconds, is told.
const OPEN_MAX: i64 = 3_600;
/// Clocks that differ by more, in seconds, mislead times and retention.
const CLOCK_MAX: i64 = 2;
/// A slot that nobody reads and that keeps more, in bytes, is told.
const IDLE_SLOT_MAX: i64 = 1 << 30;
/// More unacknowledged WAL, in bytes, is told where nobody reads the slot.
const LAG_MAX: i64 = 1 << 30;
/// Catalog rows that are kept for more transactions are told: half of what forces a vacuum.
const CATALOG_AGE_MAX: i64 = 100_000_000;
/// An outbox that is larger, in bytes, is told.
const TABLE_MAX: i64 = 10 << 30;
/// So many dead rows are worth a word, if they are more than the living.
const DEAD_MIN: i64 = 100_000;

/// See the module. `now_us`: our clock, in microseconds since the Unix epoch.
pub(super) fn checks(
    facts: &HealthFacts,
    inspection: &Inspection,
    (tables, is_remote, now_us): (&[TableName], bool, i64),
) -> Vec<Check> {
    let version = inspection.server.version_num;
    let (limits, slot) = (&facts.limits, facts.slot.as_ref());
    let mut checks = vec![
        self::version(version),
        encrypted(limits.is_encrypted, is_remote),
        clock(limits.now_us, now_us),
        free("postgres.slots_free", "max_replication_slots", limits.slots, slot.is_some()),
        free("postgres.senders_free", "max_wal_senders", limits.senders, is_read(inspection)),
        wal_sender_timeout(inspection),
        open("postgres.open_transactions", &facts.writers),
        open("postgres.prepared_transactions", &facts.prepared),
        idle_transactions(limits),
        idle_slots(&facts.idle_slots),
        idle_timeout(limits),
        retention_limit(limits, version),
        retention(limits, slot),
        lag(slot, is_read(inspection)),
        failover(limits, slot, version),
        spilled(limits, slot),
        catalog_age(slot),
    ];
    for (name, table) in tables.iter().zip(&facts.tables) {
        checks.extend(table.iter().flat_map(|table| of_table(name, table)));
    }
    checks
}

fn is_read(inspection: &Inspection) -> bool {
    inspection.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

fn version(number: i32) -> Check {
    const ID: &str = "postgres.version";
    let shown = format!("PostgreSQL {}.{}", number / 10_000, number % 10_000);
    if number >= MAINTAINED_SINCE {
        return Check::pass(ID, shown);
    }
    Check::warn(ID, format!("{shown} gets no fixes any more"), "upgrade to a maintained version")
}

fn encrypted(is_encrypted: Option<bool>, is_remote: bool) -> Check {
    const ID: &str = "postgres.tls";
    match (is_encrypted, is_remote) {
        (Some(true), _) => Check::pass(ID, "the connection is encrypted"),
        (_, false) => Check::pass(ID, "the server is on this machine"),
        (Some(false), true) => Check::warn(
            ID,
            "rows and password check cross the network unencrypted",
            "add sslmode=verify-full to source.url, and set ssl = on in postgresql.conf",
        ),
        (None, true) => Check::unknown(ID, "the server does not tell whether TLS is used"),
    }
}

fn clock(server_us: i64, now_us: i64) -> Check {
    const ID: &str = "host.clock";
    let seconds = (server_us - now_us) / 1_000_000;
    if seconds.abs() <= CLOCK_MAX {
        return Check::pass(ID, "our clock and the server's agree");
    }
    let which = if seconds > 0 { "ahead of" } else { "behind" };
    Check::warn(
        ID,
        format!(
            "the server's clock is {} {which} ours: latencies are wrong by that",
            duration(seconds.abs())
        ),
        "set both by NTP",
    )
}

/// Whether there is room for one more, unless it is ours already.
fn free(id: &'static str, setting: &str, (limit, used): (i64, i64), has_ours: bool) -> Check {
    let finding = format!("{setting} is {limit}, {used} are in use");
    if has_ours || used < limit {
        return Check::pass(id, finding);
    }
    let sql = format!("ALTER SYSTEM SET {setting} = {}; then restart the server", limit + 4);
    Check::fail(id, format!("{finding}: there is none for the relay"), sql)
}

fn wal_sender_timeout(inspection: &Inspection) -> Check {
    const ID: &str = "postgres.wal_sender_timeout";
    let timeout = inspection.server.wal_sender_timeout;
    let shown = format!("wal_sender_timeout is {} ms", timeout.as_millis());
    if timeout.is_zero() {
        let what = "wal_sender_timeout is 0: a relay whose machine is gone holds the slot until TCP gives up";
        return Check::warn(
            ID,
            what,
            "ALTER SYSTEM RESET wal_sender_timeout; SELECT pg_reload_conf();",
        );
    }
    if timeout.as_secs() < 3 {
        let what = format!("{shown}: a pause of a second or two costs a session");
        return Check::warn(
            ID,
            what,
            "ALTER SYSTEM RESET wal_sender_timeout; SELECT pg_reload_conf();",
        );
    }
    Check::pass(ID, shown)
}

/// Open transactions hold back what the slot lets go of, and the creation of slots.
fn open(id: &'static str, transactions: &[OpenTransaction]) -> Check {
    let is_old = |one: &&OpenTransaction| one.seconds.is_some_and(|seconds| seconds > OPEN_MAX);
    let old: Vec<_> = transactions.iter().filter(is_old).collect();
    let Some(oldest) = old.first() else {
        let hidden = transactions.iter().filter(|one| one.seconds.is_none()).count();
        return match (transactions.len(), hidden) {
            (0, _) => Check::pass(id, "none"),
            (open, 0) => Check::pass(id, format!("{open}, none for longer than an hour")),
            (open, _) => Check::unknown(
                id,
                format!("{open}; how long is hidden from the role (GRANT pg_monitor shows it)"),
            ),
        };
    };
    let named = old
        .iter()
        .map(|one| format!("{} for {}", one.name, duration(one.seconds.unwrap_or_default())));
    let named: Vec<_> = named.collect();
    let finding = format!(
        "{}: WAL since then is kept for the slot, and no slot can be made",
        named.join("; ")
    );
    Check::warn(id, finding, oldest.end_sql.clone())
}

fn idle_transactions(limits: &ServerLimits) -> Check {
    const ID: &str = "postgres.transaction_limits";
    if limits.bounds_idle_transactions {
        return Check::pass(ID, "a session that forgets its transaction is ended by the server");
    }
    Check::pass(
        ID,
        "no limit on idle transactions (idle_in_transaction_session_timeout): one that is forgotten makes the slot keep WAL",
    )
}

fn idle_slots(slots: &[IdleSlot]) -> Check {
    const ID: &str = "postgres.other_slots";
    let large: Vec<_> = slots.iter().filter(|slot| slot.retained_bytes > IDLE_SLOT_MAX).collect();
    let Some(first) = large.first() else {
        return Check::pass(ID, "no slot that nobody reads keeps more than 1 GiB of WAL");
    };
    let named: Vec<_> = large
        .iter()
        .map(|slot| format!("`{}` keeps {}", slot.name, bytes(slot.retained_bytes)))
        .collect();
    let name = first.name.replace('\'', "''");
    Check::warn(
        ID,
        format!("slots that nobody reads fill the disk: {}", named.join(", ")),
        format!("if its reader will not come back: SELECT pg_drop_replication_slot('{name}');"),
    )
}

fn idle_timeout(limits: &ServerLimits) -> Check {
    const ID: &str = "slot.idle_timeout";
    match &limits.idle_slot_timeout {
        None => Check::pass(ID, "the server drops no slot for being idle"),
        Some(timeout) => Check::warn(
            ID,
            format!(
                "a relay that is away for {timeout} loses its slot (idle_replication_slot_timeout)"
            ),
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf(); and limit by max_slot_wal_keep_size",
        ),
    }
}

fn retention_limit(limits: &ServerLimits, version: i32) -> Check {
    const ID: &str = "slot.limit";
    match limits.slot_keep_mib {
        Some(limit) if limit >= 0 => {
            Check::pass(ID, format!("the slot keeps at most {} of WAL", bytes(limit << 20)))
        }
        _ if version < LIMITS_SINCE => {
            Check::unknown(ID, "this version cannot limit what a slot keeps")
        }
        _ => Check::warn(
            ID,
            "max_slot_wal_keep_size is not set: a relay that is away for long fills the server's disk",
            "choose which is worse, a full disk or a lost slot; for the latter: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        ),
    }
}

fn retention(limits: &ServerLimits, slot: Option<&SlotHealth>) -> Check {
    const ID: &str = "slot.retained";
    const FIX: &str = "let the relay catch up; look for an open transaction (postgres.open_transactions); or raise max_slot_wal_keep_size";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    let kept = bytes(slot.retained_bytes);
    let Some(limit) = limits.slot_keep_mib.filter(|limit| *limit > 0).map(|mib| mib << 20) else {
        return Check::pass(ID, format!("{kept} of WAL are kept for the slot"));
    };
    let finding = format!("{kept} of WAL are kept for the slot, {} are the limit", bytes(limit));
    if slot.retained_bytes < limit / 2 {
        Check::pass(ID, finding)
    } else if slot.retained_bytes < limit / 10 * 9 {
        Check::warn(ID, finding, FIX)
    } else {
        Check::fail(ID, format!("{finding}: it is about to be lost"), FIX)
    }
}

fn lag(slot: Option<&SlotHealth>, is_read: bool) -> Check {
    const ID: &str = "slot.lag";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    let finding = format!("{} of WAL are not acknowledged", bytes(slot.lag_bytes));
    if slot.lag_bytes <= LAG_MAX || is_read {
        return Check::pass(ID, finding);
    }
    Check::warn(ID, format!("{finding}, and no relay reads the slot"), "postrider run")
}

fn failover(limits: &ServerLimits, slot: Option<&SlotHealth>, version: i32) -> Check {
    const ID: &str = "slot.failover";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    match (limits.standbys, slot.failover) {
        (0, _) => Check::pass(ID, "no standby streams from this server"),
        (_, Some(true)) => Check::pass(ID, "standbys keep a copy of the slot"),
        (standbys, _) if version < FAILOVER_SLOTS_SINCE => Check::warn(
            ID,
            format!("{standbys} standbys, and slots do not follow a failover before PostgreSQL 17"),
            "after a failover: postrider setup, then send what is missing (docs/operations.md)",
        ),
        (standbys, _) => Check::warn(
            ID,
            format!("{standbys} standbys, and the slot does not follow a failover"),
            "with the relay stopped, over a replication connection: ALTER_REPLICATION_SLOT \"SLOT\" (FAILOVER true); and sync_replication_slots = on at the standbys",
        ),
    }
}

fn spilled(limits: &ServerLimits, slot: Option<&SlotHealth>) -> Check {
    const ID: &str = "slot.spilled";
    let spilled = slot.and_then(|slot| slot.spilled_bytes);
    match (spilled, limits.decoding_kib) {
        (None, _) => Check::unknown(ID, "the server has no statistics of the slot"),
        (Some(0), _) => Check::pass(ID, "every transaction was decoded in memory"),
        (Some(spilled), memory) => Check::pass(
            ID,
            format!(
                "{} of large transactions were decoded by way of disk (logical_decoding_work_mem is {})",
                bytes(spilled),
                bytes(memory.unwrap_or_default() << 10)
            ),
        ),
    }
}

fn catalog_age(slot: Option<&SlotHealth>) -> Check {
    const ID: &str = "slot.catalog_age";
    match slot.and_then(|slot| slot.catalog_age) {
        None => Check::unknown(ID, "there is no slot to look at"),
        Some(age) if age <= CATALOG_AGE_MAX => {
            Check::pass(ID, format!("the catalog is kept for {age} transactions"))
        }
        Some(age) => Check::warn(
            ID,
            format!(
                "dead rows of the catalog are kept for {age} transactions: tables of the catalog grow"
            ),
            "let the relay catch up, or drop the slot if nobody needs it",
        ),
    }
}

fn of_table(name: &TableName, facts: &TableHealth) -> [Check; 4] {
    let readable = match (facts.may_read, facts.hides_rows) {
        (true, false) => Check::pass("table.readable", format!("{name} may be read")),
        (true, true) => Check::warn(
            "table.readable",
            format!(
                "row security hides rows of {name} from us: backfill, replay, verify and prune refuse it"
            ),
            "ALTER ROLE .. BYPASSRLS; or a policy for the role",
        ),
        (false, _) => Check::warn(
            "table.readable",
            format!("{name} may not be read: backfill, replay, verify and prune do not work"),
            format!("GRANT SELECT ON {name} TO the role"),
        ),
    };
    let size = bytes(facts.bytes);
    let sized = if facts.bytes < TABLE_MAX {
        Check::pass("table.size", format!("{name} takes {size}"))
    } else {
        Check::warn(
            "table.size",
            format!("{name} takes {size}: nothing deletes what was delivered"),
            "postrider prune --older-than 7d",
        )
    };
    let vacuumed = if facts.dead < DEAD_MIN || facts.dead < facts.live {
        Check::pass("table.dead_rows", format!("{name} has {} dead rows", facts.dead))
    } else {
        Check::warn(
            "table.dead_rows",
            format!("{name} has {} dead rows and {} living ones", facts.dead, facts.live),
            format!("VACUUM {name}; partitions (setup --partition day) need none"),
        )
    };
    let triggers = if facts.has_triggers {
        format!("{name} has triggers that run for each row")
    } else {
        format!("{name} has no triggers")
    };
    [readable, sized, vacuumed, Check::pass("table.triggers", triggers)]
}

#[cfg(test)]
mod tests;
