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
    wal_max_mib: 1_024,
    standbys: 0,
};

const SLOT: SlotHealth = SlotHealth {
    retained_bytes: 0,
    lag_bytes: 0,
    safe_bytes: None,
    is_lost: false,
    catalog_age: Some(10),
};

const TABLE: TableHealth =
    TableHealth { may_read: true, hides_rows: false, bytes: 1 << 20, live: 1_000, dead: 0 };

#[test]
fn a_place_is_missed_only_by_a_relay_that_has_none() {
    let slots = |has_ours| free("postgres.slots_free", "max_replication_slots", (10, 10), has_ours);
    assert_eq!((slots(true).outcome, slots(false).outcome), (Outcome::Pass, Outcome::Fail));
    assert_eq!(
        slots(false).fix.unwrap().text(),
        "ALTER SYSTEM SET max_replication_slots = 14; then restart the server: pg_ctl restart -m fast -D DATA_DIRECTORY"
    );
}

#[test]
fn what_the_slot_retains_is_measured_by_its_limit() {
    let of = |left: i64| {
        let slot = SlotHealth { retained_bytes: 100 - left, safe_bytes: Some(left), ..SLOT };
        retention(Some(&slot))
    };
    let outcomes = [51, 50, 11, 10].map(|left| of(left).outcome);
    assert_eq!(outcomes, [Outcome::Pass, Outcome::Warn, Outcome::Warn, Outcome::Fail]);
    assert!(
        of(10).fix.unwrap().text().contains("ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'")
    );
    assert_eq!(retention(Some(&SLOT)).outcome, Outcome::Pass, "no limit");
    let overdrawn = SlotHealth { retained_bytes: 100, safe_bytes: Some(-5), ..SLOT };
    assert_eq!(retention(Some(&overdrawn)).outcome, Outcome::Fail);
    let limit = |mib| {
        retention_limit(&ServerLimits { slot_keep_mib: Some(mib), ..LIMITS }, 160_000, None).outcome
    };
    let outcomes = [-1, 0, 1_023, 1_024].map(limit);
    assert_eq!(outcomes, [Outcome::Warn, Outcome::Fail, Outcome::Warn, Outcome::Pass]);
    let slot = SlotHealth { retained_bytes: 90 << 30, safe_bytes: Some(10 << 30), ..SLOT };
    let low = ServerLimits { slot_keep_mib: Some(1), ..LIMITS };
    let fixes = [retention(Some(&slot)), retention_limit(&low, 160_000, Some(&slot))];
    let fixes = fixes.map(|check| check.fix.unwrap().text().to_owned());
    assert!(fixes[0] == fixes[1] && fixes[0].contains("'202GB'"), "{fixes:?}");
    let early = ServerLimits { slot_keep_mib: None, ..LIMITS };
    assert_eq!(retention_limit(&early, 120_000, None).outcome, Outcome::Unknown);
}

#[test]
fn transactions_that_are_open_for_long_are_named_with_what_ends_them() {
    let transaction = |seconds| OpenTransaction {
        name: "process 7, idle in transaction".to_owned(),
        end_sql: "SELECT pg_terminate_backend(7);".to_owned(),
        seconds,
    };
    let told =
        open("postgres.open_transactions", &[transaction(Some(7_300)), transaction(None)], 0);
    assert_eq!(told.outcome, Outcome::Warn);
    assert!(told.finding.starts_with("process 7, idle in transaction for 2 h"), "{}", told.finding);
    assert_eq!(told.fix.as_ref().map(Fix::text), Some("SELECT pg_terminate_backend(7);"));
    assert_eq!(open("x", &[transaction(Some(10))], 0).outcome, Outcome::Pass);
    assert_eq!(open("x", &[transaction(None)], 0).outcome, Outcome::Unknown, "hidden from us");
    assert_eq!(open("x", &[], 2 << 30).outcome, Outcome::Pass);
    let minutes = [transaction(Some(301))];
    assert_eq!(open("x", &minutes, 1 << 30).outcome, Outcome::Pass);
    assert_eq!(open("x", &minutes, 2 << 30).outcome, Outcome::Warn, "WAL is kept for it");
}

#[test]
fn slots_that_do_not_follow_a_failover_matter_where_there_is_a_standby() {
    let one = ServerLimits { standbys: 1, ..LIMITS };
    let early = failover(&one, Some(&SLOT), 160_000).unwrap();
    assert!(early.outcome == Outcome::Warn && early.finding.contains("before PostgreSQL 17"));
    assert_eq!(failover(&LIMITS, Some(&SLOT), 160_000).unwrap().outcome, Outcome::Pass);
    assert_eq!(failover(&one, Some(&SLOT), 170_000), None, "all hosts are asked there");
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
    let slot = |retained_bytes| IdleSlot {
        name: "it's".to_owned(),
        kind: "physical".to_owned(),
        retained_bytes,
    };
    assert_eq!(idle_slots(&[slot(1 << 30)]).outcome, Outcome::Pass);
    let told = idle_slots(&[slot(3 << 30)]);
    assert!(told.finding.contains("`it's` (physical) keeps 3072 MiB"), "{}", told.finding);
    assert!(told.fix.unwrap().text().contains("pg_drop_replication_slot('it''s')"));
    let timeout = ServerLimits { idle_slot_timeout: Some("1h".to_owned()), ..LIMITS };
    assert_eq!(idle_timeout(&timeout).outcome, Outcome::Warn);
}

#[test]
fn a_table_is_judged_by_rights_size_and_dead_rows() {
    let name = TableName::new("public", "outbox");
    let outcomes =
        |facts: TableHealth| of_table(&name, &facts, "my role").map(|check| check.outcome);
    let [pass, warn] = [Outcome::Pass, Outcome::Warn];
    assert_eq!(outcomes(TABLE), [pass; 3]);
    let large = TableHealth { bytes: 20 << 30, dead: 200_000, may_read: false, ..TABLE };
    assert_eq!(outcomes(large), [warn; 3]);
    assert_eq!(outcomes(TableHealth { hides_rows: true, ..TABLE })[0], warn);
    let [unread, ..] = of_table(&name, &TableHealth { may_read: false, ..TABLE }, "my role");
    assert_eq!(
        unread.fix.as_ref().map(Fix::text),
        Some(
            "GRANT USAGE ON SCHEMA \"public\" TO \"my role\"; GRANT SELECT ON \"public\".\"outbox\" TO \"my role\";"
        )
    );
}

#[test]
fn a_slot_that_nobody_reads_and_that_lags_is_told() {
    let behind = SlotHealth { lag_bytes: 2 << 30, catalog_age: Some(200_000_000), ..SLOT };
    assert_eq!(lag(Some(&behind), None).outcome, Outcome::Warn);
    let read = lag(Some(&behind), Some("process 7"));
    assert!(read.outcome == Outcome::Warn && read.finding.contains("process 7"), "{read:?}");
    assert_eq!(lag(Some(&SLOT), Some("process 7")).outcome, Outcome::Pass);
    assert_eq!(catalog_age(Some(&behind)).outcome, Outcome::Warn);
    assert_eq!(lag(None, None).outcome, Outcome::Unknown);
    let lost = SlotHealth { is_lost: true, ..behind };
    assert_eq!(
        (lag(Some(&lost), None).outcome, retention(Some(&lost)).outcome),
        (Outcome::Unknown, Outcome::Unknown)
    );
    assert_eq!(version(130_010).outcome, Outcome::Warn);
}
