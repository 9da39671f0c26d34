//! Unit tests of the judgements, at their bounds.

use super::*;
use crate::doctor::check::Outcome;

const LIMITS: ServerLimits = ServerLimits {
    now_us: 0,
    is_encrypted: Some(false),
    slots: (10, 10),
    senders: (10, 3),
    slot_keep_mib: Some(1_024),
    idle_slot_timeout: None,
    decoding_kib: Some(65_536),
    standbys: 0,
    bounds_idle_transactions: true,
};

const SLOT: SlotHealth = SlotHealth {
    retained_bytes: 0,
    lag_bytes: 0,
    safe_bytes: None,
    failover: None,
    spilled_bytes: Some(0),
    catalog_age: Some(10),
};

const TABLE: TableHealth = TableHealth {
    may_read: true,
    hides_rows: false,
    bytes: 1 << 20,
    live: 1_000,
    dead: 0,
    has_triggers: false,
};

#[test]
fn a_place_is_missed_only_by_a_relay_that_has_none() {
    let slots = |has_ours| free("postgres.slots_free", "max_replication_slots", (10, 10), has_ours);
    assert_eq!((slots(true).outcome, slots(false).outcome), (Outcome::Pass, Outcome::Fail));
    assert_eq!(
        slots(false).fix.unwrap(),
        "ALTER SYSTEM SET max_replication_slots = 14; then restart the server"
    );
}

#[test]
fn what_the_slot_retains_is_measured_by_its_limit() {
    let of = |mib: i64| retention(&LIMITS, Some(&SlotHealth { retained_bytes: mib << 20, ..SLOT }));
    let outcomes = [511, 512, 921, 922].map(|mib| of(mib).outcome);
    assert_eq!(outcomes, [Outcome::Pass, Outcome::Warn, Outcome::Warn, Outcome::Fail]);
    let unlimited = ServerLimits { slot_keep_mib: Some(-1), ..LIMITS };
    assert_eq!(retention(&unlimited, Some(&SLOT)).outcome, Outcome::Pass);
    assert_eq!(retention_limit(&unlimited, 160_000).outcome, Outcome::Warn);
    assert_eq!(retention_limit(&LIMITS, 160_000).outcome, Outcome::Pass);
    let early = ServerLimits { slot_keep_mib: None, ..LIMITS };
    assert_eq!(retention_limit(&early, 120_000).outcome, Outcome::Unknown);
}

#[test]
fn transactions_that_are_open_for_long_are_named_with_what_ends_them() {
    let transaction = |seconds| OpenTransaction {
        name: "process 7, idle in transaction".to_owned(),
        end_sql: "SELECT pg_terminate_backend(7);".to_owned(),
        seconds,
    };
    let told = open("postgres.open_transactions", &[transaction(Some(7_300)), transaction(None)]);
    assert_eq!(told.outcome, Outcome::Warn);
    assert!(told.finding.starts_with("process 7, idle in transaction for 2 h"), "{}", told.finding);
    assert_eq!(told.fix.as_deref(), Some("SELECT pg_terminate_backend(7);"));
    assert_eq!(open("x", &[transaction(Some(10))]).outcome, Outcome::Pass);
    assert_eq!(open("x", &[transaction(None)]).outcome, Outcome::Unknown, "hidden from us");
    assert_eq!(open("x", &[]).outcome, Outcome::Pass);
}

#[test]
fn slots_that_do_not_follow_a_failover_matter_where_there_is_a_standby() {
    let one = ServerLimits { standbys: 1, ..LIMITS };
    let slot = |failover| SlotHealth { failover, ..SLOT };
    assert_eq!(failover(&LIMITS, Some(&slot(Some(false))), 170_000).outcome, Outcome::Pass);
    assert_eq!(failover(&one, Some(&slot(Some(false))), 170_000).outcome, Outcome::Warn);
    assert_eq!(failover(&one, Some(&slot(Some(true))), 170_000).outcome, Outcome::Pass);
    let early = failover(&one, Some(&slot(None)), 150_000);
    assert!(early.outcome == Outcome::Warn && early.finding.contains("before PostgreSQL 17"));
}

#[test]
fn a_remote_server_without_tls_and_a_clock_that_is_off_are_told() {
    assert_eq!(encrypted(Some(false), true).outcome, Outcome::Warn);
    assert_eq!(encrypted(Some(false), false).outcome, Outcome::Pass);
    assert_eq!(encrypted(None, true).outcome, Outcome::Unknown);
    assert_eq!(clock(2_000_000, 0).outcome, Outcome::Pass);
    assert!(clock(0, 90_000_000).finding.contains("90 s behind"));
}

#[test]
fn other_slots_are_told_once_they_keep_much() {
    let slot = |retained_bytes| IdleSlot { name: "it's".to_owned(), retained_bytes };
    assert_eq!(idle_slots(&[slot(1 << 30)]).outcome, Outcome::Pass);
    let told = idle_slots(&[slot(3 << 30)]);
    assert!(told.finding.ends_with("`it's` keeps 3072 MiB"), "{}", told.finding);
    assert!(told.fix.unwrap().contains("pg_drop_replication_slot('it''s')"));
    let timeout = ServerLimits { idle_slot_timeout: Some("1h".to_owned()), ..LIMITS };
    assert_eq!(idle_timeout(&timeout).outcome, Outcome::Warn);
}

#[test]
fn a_table_is_judged_by_rights_size_and_dead_rows() {
    let name = TableName::new("public", "outbox");
    let outcomes = |facts: TableHealth| of_table(&name, &facts).map(|check| check.outcome);
    let [pass, warn] = [Outcome::Pass, Outcome::Warn];
    assert_eq!(outcomes(TABLE), [pass; 4]);
    let large = TableHealth { bytes: 20 << 30, dead: 200_000, may_read: false, ..TABLE };
    assert_eq!(outcomes(large), [warn, warn, warn, pass]);
    assert_eq!(outcomes(TableHealth { hides_rows: true, ..TABLE })[0], warn);
}

#[test]
fn a_slot_that_nobody_reads_and_that_lags_is_told() {
    let behind = SlotHealth { lag_bytes: 2 << 30, catalog_age: Some(200_000_000), ..SLOT };
    assert_eq!(lag(Some(&behind), false).outcome, Outcome::Warn);
    assert_eq!(lag(Some(&behind), true).outcome, Outcome::Pass);
    assert_eq!(catalog_age(Some(&behind)).outcome, Outcome::Warn);
    assert_eq!(
        (lag(None, false).outcome, spilled(&LIMITS, None).outcome),
        (Outcome::Unknown, Outcome::Unknown)
    );
    assert_eq!(version(130_010).outcome, Outcome::Warn);
}
