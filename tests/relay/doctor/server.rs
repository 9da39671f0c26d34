//! Servers whose settings, roles or access rules stop a relay.

use postrider::sandbox::postgres::{Address, Cluster, Options, Stop};

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;
use support::unique;

fn relay_as(stage: &Stage, role: &str) -> Relay {
    let address = Address { user: role.to_owned(), ..stage.database.address() };
    stage.relay_at(&address)
}

#[test]
fn a_role_without_rights_is_told_which() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_role");
    let role = unique("doctor");
    stage.database.create_role(&role, "");
    let report = Report::of(&relay_as(&stage, &role));
    report.demands("postgres.role", "fail", "REPLICATION");
    assert_eq!(report.status("postgres.replication"), "fail");
    report.demands("table.readable", "warn", "GRANT SELECT ON \"public\".\"outbox\" TO");
    stage.sql().run(&format!("ALTER ROLE {role} REPLICATION"));
    stage.sql().run(report.fix("table.readable"));
    let report = Report::of(&relay_as(&stage, &role));
    for id in ["postgres.role", "postgres.replication", "table.readable"] {
        assert_eq!(report.status(id), "pass", "{id}");
    }
    stage.sql().run("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY");
    let report = Report::of(&relay_as(&stage, &role));
    report.demands("table.readable", "warn", "BYPASSRLS");
    stage.sql().run(report.fix("table.readable"));
    assert_eq!(Report::of(&relay_as(&stage, &role)).status("table.readable"), "pass");
}

#[test]
fn a_server_that_writes_too_little_and_has_no_room_is_told() {
    let options = Options::default()
        .with("wal_level", "replica")
        .with("max_replication_slots", "1")
        .with("max_wal_senders", "1")
        .with("wal_sender_timeout", "1s");
    let mut cluster = Cluster::start(&options).unwrap();
    let broker = Broker::embedded();
    let stage = Stage::migrated(&cluster, &broker.bootstrap(), "doctor_limits");
    let report = Report::of(&stage.relay());
    report.demands("postgres.wal_level", "fail", "ALTER SYSTEM SET wal_level = 'logical'");
    report.demands("postgres.wal_sender_timeout", "warn", "RESET wal_sender_timeout");
    report.demands("slot.limit", "warn", "max_slot_wal_keep_size");
    stage.sql().run("ALTER SYSTEM SET wal_level = 'logical'");
    for statement in report.fix("slot.limit").split_inclusive(';') {
        stage.sql().run(statement);
    }
    stage.sql().run("SELECT pg_create_physical_replication_slot('other')");
    cluster.restart(Stop::Fast).unwrap();
    let report = Report::of(&stage.relay());
    assert_eq!(report.status("postgres.wal_level"), "pass");
    assert_eq!(report.status("slot.limit"), "pass");
    report.demands("postgres.slots_free", "fail", "ALTER SYSTEM SET max_replication_slots = 5");
    stage.sql().run("SELECT pg_drop_replication_slot('other')");
    assert_eq!(Report::of(&stage.relay()).status("postgres.slots_free"), "pass");
}

#[test]
fn a_closed_port_is_told() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_login");
    let closed = stage.relay().set("source.url", "postgres://nobody_of_that_name@127.0.0.1:1/x");
    let report = Report::of(&closed);
    assert_eq!(report.status("postgres.reachable"), "fail");
    assert_eq!(report.status("postgres.others"), "unknown");
    assert_eq!(report.status("kafka.reachable"), "pass");
}
