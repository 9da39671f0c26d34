//! Checks of `postrider doctor` for limits, open transactions and other slots of the server. Pure.

use super::check::{Check, bytes, duration, identifier};
use super::fix::Fix;
use postrider_core::outbox::TableName;
use postrider_postgres::control::{
    FAILOVER_SLOTS_SINCE, HealthFacts, IdleSlot, Inspection, OpenTransaction, ServerLimits,
    SlotHealth, TableHealth, how_to_end,
};
use postrider_postgres::wal::raise_limit;

/// Minimum `max_slot_wal_keep_size` to propose, in GiB.
const KEEP_GIB: i64 = 50;
/// First supported version that reports how much WAL a slot may retain.
const LIMITS_SINCE: i32 = 130_000;
/// Oldest version that PostgreSQL's developers maintain.
const MAINTAINED_SINCE: i32 = 140_000;
/// Seconds that a transaction may be open.
const OPEN_MAX: i64 = 3_600;
/// Seconds that a transaction may be open while more than [`HELD_BACK_MAX`] is held back.
const OPEN_MAX_HELD_BACK: i64 = 300;
/// Bytes of WAL that short transactions on a busy server do not hold back.
const HELD_BACK_MAX: i64 = 1 << 30;
/// A larger difference of clocks, in seconds, misleads times and retention.
const CLOCK_MAX: i64 = 2;
/// Bytes of WAL that an unread slot may keep without a warning.
const IDLE_SLOT_MAX: i64 = 1 << 30;
/// Bytes of unacknowledged WAL without a warning, even if the slot is read.
const LAG_MAX: i64 = 1 << 30;
/// Age of kept catalog rows, in transactions: half of the age that forces a vacuum.
const CATALOG_AGE_MAX: i64 = 100_000_000;
/// Maximum bytes of the outbox.
const TABLE_MAX: i64 = 10 << 30;
/// Number of dead rows that needs no warning.
const DEAD_MIN: i64 = 100_000;

pub(super) struct Around<'a> {
    pub(super) tables: &'a [TableName],
    pub(super) is_remote: bool,
    /// Microseconds since the Unix epoch.
    pub(super) now_us: i64,
}

pub(super) fn checks(
    facts: &HealthFacts,
    inspection: &Inspection,
    around: &Around<'_>,
) -> Vec<Check> {
    let Around { tables, is_remote, now_us } = *around;
    let version = inspection.server.version_num;
    let (limits, slot) = (&facts.limits, facts.slot.as_ref());
    let mut checks = vec![
        self::version(version),
        encrypted(limits.is_encrypted, is_remote),
        clock(limits.now_us, now_us),
        free("postgres.slots_free", "max_replication_slots", limits.slots, slot.is_some()),
        free("postgres.senders_free", "max_wal_senders", limits.senders, is_read(inspection)),
        wal_sender_timeout(inspection),
        open("postgres.open_transactions", &facts.writers, held_back(slot)),
        open("postgres.prepared_transactions", &facts.prepared, held_back(slot)),
        idle_slots(&facts.idle_slots),
        idle_timeout(limits),
        retention_limit(limits, version, slot),
        retention(slot),
        lag(slot, reader(inspection).as_deref()),
        catalog_age(slot),
    ];
    checks.extend(failover(limits, slot, version));
    for (name, table) in tables.iter().zip(&facts.tables) {
        let role = &inspection.server.role;
        checks.extend(table.iter().flat_map(|table| of_table(name, table, role)));
    }
    checks
}

fn is_read(inspection: &Inspection) -> bool {
    inspection.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some())
}

fn reader(inspection: &Inspection) -> Option<String> {
    let pid = inspection.slot.as_ref()?.active_pid?;
    Some(format!("process {pid}"))
}

/// Acknowledged WAL that is kept for a transaction that was open.
fn held_back(slot: Option<&SlotHealth>) -> i64 {
    slot.filter(|slot| !slot.is_lost).map_or(0, |slot| slot.retained_bytes - slot.lag_bytes)
}

fn version(number: i32) -> Check {
    const ID: &str = "postgres.version";
    let shown = format!("PostgreSQL {}.{}", number / 10_000, number % 10_000);
    if number >= MAINTAINED_SINCE {
        return Check::pass(ID, shown);
    }
    Check::warn(ID, format!("{shown} no longer receives fixes"), "upgrade to a maintained version")
}

fn encrypted(is_encrypted: Option<bool>, is_remote: bool) -> Check {
    const ID: &str = "postgres.tls";
    match (is_encrypted, is_remote) {
        (Some(true), _) => Check::pass(ID, "the connection is encrypted"),
        (_, false) => Check::pass(ID, "the server is on this machine"),
        (Some(false), true) => Check::warn(
            ID,
            "rows and password check cross the network unencrypted",
            "first ssl = on with a certificate in postgresql.conf; then sslmode=verify-full and sslrootcert in source.url",
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

/// Checks for a free place, unless the relay already has one.
fn free(id: &'static str, setting: &str, (limit, used): (i64, i64), has_ours: bool) -> Check {
    let finding = format!("{setting} is {limit}, {used} are in use");
    if has_ours || used < limit {
        return Check::pass(id, finding);
    }
    let fix = Fix::sql(raise_limit(setting, limit)).then_restart();
    Check::fail(
        id,
        format!(
            "{finding}: there is none for the relay (the setting needs a restart of the server)"
        ),
        fix,
    )
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
            Fix::sql("ALTER SYSTEM RESET wal_sender_timeout; SELECT pg_reload_conf();"),
        );
    }
    if timeout.as_secs() < 3 {
        let what = format!("{shown}: a pause of a second or two costs a session");
        return Check::warn(
            ID,
            what,
            Fix::sql("ALTER SYSTEM RESET wal_sender_timeout; SELECT pg_reload_conf();"),
        );
    }
    Check::pass(ID, shown)
}

/// Transactions that hold back the slot and its creation: open for an hour, or for minutes while
/// much acknowledged WAL is kept.
fn open(id: &'static str, transactions: &[OpenTransaction], held_back: i64) -> Check {
    let limit = if held_back > HELD_BACK_MAX { OPEN_MAX_HELD_BACK } else { OPEN_MAX };
    let is_old = |one: &&OpenTransaction| one.seconds.is_some_and(|seconds| seconds > limit);
    let old: Vec<_> = transactions.iter().filter(is_old).collect();
    let Some(oldest) = old.first() else {
        let hidden = transactions.iter().filter(|one| one.seconds.is_none()).count();
        return match (transactions.len(), hidden) {
            (0, _) => Check::pass(id, "none"),
            (open, 0) => {
                Check::pass(id, format!("{open}, none for longer than {}", duration(limit)))
            }
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
    let kept = if held_back > HELD_BACK_MAX {
        format!(" ({} that are acknowledged already)", bytes(held_back))
    } else {
        String::new()
    };
    let finding = format!(
        "{}: WAL since then is kept for the slot{kept}, and no slot can be made",
        named.join("; ")
    );
    Check::warn(id, finding, Fix::sql(&oldest.end_sql).told_as(how_to_end(&oldest.end_sql)))
}

fn idle_slots(slots: &[IdleSlot]) -> Check {
    const ID: &str = "postgres.other_slots";
    let large: Vec<_> = slots.iter().filter(|slot| slot.retained_bytes > IDLE_SLOT_MAX).collect();
    let Some(first) = large.first() else {
        return Check::pass(ID, "no slot that nobody reads keeps more than 1 GiB of WAL");
    };
    let named: Vec<_> = large
        .iter()
        .map(|slot| format!("`{}` ({}) keeps {}", slot.name, slot.kind, bytes(slot.retained_bytes)))
        .collect();
    let name = first.name.replace('\'', "''");
    Check::warn(
        ID,
        format!(
            "slots that nobody reads fill the disk: {}; drop only one whose reader, a standby or another relay, will not \
             come back, because that reader loses the changes that it has not read",
            named.join(", ")
        ),
        Fix::sql(format!("SELECT pg_drop_replication_slot('{name}');")),
    )
}

fn idle_timeout(limits: &ServerLimits) -> Check {
    const ID: &str = "slot.idle_timeout";
    match &limits.idle_slot_timeout {
        None => Check::pass(ID, "the server drops no slot for being idle"),
        Some(timeout) => Check::warn(
            ID,
            format!(
                "a relay that is away for {timeout} loses its slot (idle_replication_slot_timeout); what it keeps is \
                 limited by max_slot_wal_keep_size instead"
            ),
            Fix::sql(
                "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
            ),
        ),
    }
}

/// Limit of at least twice what the slot keeps now, which every check proposes.
fn enough_wal(slot: Option<&SlotHealth>) -> Fix {
    let kept = slot
        .map_or(0, |slot| slot.retained_bytes.saturating_add(slot.safe_bytes.unwrap_or(0).max(0)));
    let gib = KEEP_GIB.max((kept >> 30) * 2 + 2);
    Fix::sql(format!(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '{gib}GB'; SELECT pg_reload_conf();"
    ))
}

fn retention_limit(limits: &ServerLimits, version: i32, slot: Option<&SlotHealth>) -> Check {
    const ID: &str = "slot.limit";
    match limits.slot_keep_mib {
        Some(0) => Check::fail(
            ID,
            "max_slot_wal_keep_size is 0: the next checkpoint may take the slot's WAL, whatever is undelivered",
            enough_wal(slot),
        ),
        Some(limit) if limit > 0 && limit < limits.wal_max_mib => Check::warn(
            ID,
            format!(
                "the slot keeps at most {} of WAL, less than there is between two checkpoints ({}, max_wal_size)",
                bytes(limit << 20),
                bytes(limits.wal_max_mib << 20)
            ),
            enough_wal(slot),
        ),
        Some(limit) if limit > 0 => {
            Check::pass(ID, format!("the slot keeps at most {} of WAL", bytes(limit << 20)))
        }
        _ if version < LIMITS_SINCE => {
            Check::unknown(ID, "this version cannot limit what a slot keeps")
        }
        _ => Check::warn(
            ID,
            "max_slot_wal_keep_size is not set: a relay that is away for long fills the server's disk; with a limit it \
             loses its slot instead",
            enough_wal(slot),
        ),
    }
}

/// The server's remaining WAL is more exact than its settings.
fn retention(slot: Option<&SlotHealth>) -> Check {
    const ID: &str = "slot.retained";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    if slot.is_lost {
        return Check::unknown(ID, "the slot is lost");
    }
    let kept = bytes(slot.retained_bytes);
    let Some(left) = slot.safe_bytes.map(|left| left.max(0)) else {
        return Check::pass(ID, format!("{kept} of WAL are kept for the slot, without a limit"));
    };
    let finding =
        format!("{kept} of WAL are kept for the slot, which is lost after {} more", bytes(left));
    let limit = slot.retained_bytes.saturating_add(left);
    if left > limit / 2 {
        Check::pass(ID, finding)
    } else if left > limit / 10 {
        Check::warn(ID, finding, enough_wal(Some(slot)))
    } else {
        Check::fail(ID, finding, enough_wal(Some(slot)))
    }
}

fn lag(slot: Option<&SlotHealth>, reader: Option<&str>) -> Check {
    const ID: &str = "slot.lag";
    let Some(slot) = slot else { return Check::unknown(ID, "there is no slot to look at") };
    if slot.is_lost {
        return Check::unknown(ID, "the slot is lost");
    }
    let finding = format!("{} of WAL are not acknowledged", bytes(slot.lag_bytes));
    match reader {
        _ if slot.lag_bytes <= LAG_MAX => Check::pass(ID, finding),
        None => Check::warn(
            ID,
            format!("{finding}, and no relay reads the slot"),
            Fix::postrider("postrider run"),
        ),
        Some(reader) => Check::warn(
            ID,
            format!("{finding}, and {reader}, which reads the slot, is that far behind"),
            Fix::postrider("postrider lag")
                .say(", twice: if it grows, look for the cause (relay.ready, kafka.*, topic.*)"),
        ),
    }
}

/// From PostgreSQL 17 on, [`super::failover`] checks more.
fn failover(limits: &ServerLimits, slot: Option<&SlotHealth>, version: i32) -> Option<Check> {
    const ID: &str = "slot.failover";
    if slot.is_none() {
        return Some(Check::unknown(ID, "there is no slot to look at"));
    }
    if version >= FAILOVER_SLOTS_SINCE {
        return None;
    }
    let count = match limits.standbys {
        0 => return Some(Check::pass(ID, "no standby streams from this server")),
        1 => "1 standby".to_owned(),
        standbys => format!("{standbys} standbys"),
    };
    Some(Check::warn(
        ID,
        format!("{count}, and slots do not follow a failover before PostgreSQL 17"),
        Fix::postrider("postrider repair").told_as("after a failover: postrider repair"),
    ))
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

fn of_table(name: &TableName, facts: &TableHealth, role: &str) -> [Check; 3] {
    const COMMANDS: &str = "backfill, repair, replay, verify, trace and prune";
    let schema = identifier(&name.schema);
    let table = format!("{schema}.{}", identifier(&name.name));
    let role = identifier(role);
    let readable = match (facts.may_read, facts.hides_rows) {
        (true, false) => Check::pass("table.readable", format!("{name} may be read")),
        (true, true) => Check::warn(
            "table.readable",
            format!(
                "row security hides rows of {name} from us: {COMMANDS} refuse it, or do not see them"
            ),
            Fix::sql(format!("ALTER ROLE {role} BYPASSRLS;")),
        ),
        (false, _) => Check::warn(
            "table.readable",
            format!("{name} may not be read: {COMMANDS} do not work"),
            Fix::sql(format!(
                "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {table} TO {role};"
            )),
        ),
    };
    let size = bytes(facts.bytes);
    let sized = if facts.bytes < TABLE_MAX {
        Check::pass("table.size", format!("{name} takes {size}"))
    } else {
        Check::warn(
            "table.size",
            format!(
                "{name} takes {size}: prune deletes delivered rows, where progress is kept (exactly_once, or progress.at_least_once)"
            ),
            Fix::postrider("postrider prune --older-than 7d --execute"),
        )
    };
    let vacuumed = if facts.dead < DEAD_MIN || facts.dead < facts.live {
        Check::pass("table.dead_rows", format!("{name} has {} dead rows", facts.dead))
    } else {
        Check::warn(
            "table.dead_rows",
            format!(
                "{name} has {} dead rows and {} living ones; partitions (setup --partition day) need no vacuum",
                facts.dead, facts.live
            ),
            Fix::sql(format!("VACUUM {table};")),
        )
    };
    [readable, sized, vacuumed]
}

#[cfg(test)]
mod tests;
