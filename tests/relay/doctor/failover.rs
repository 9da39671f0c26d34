//! A primary and a standby of which one setting is wrong: it is named with its fix, which is done as it is printed.

use std::io::Write as _;

use postrider::libpq::ConnectInfo;
use postrider::sandbox::postgres::{Cluster, Stop};
use postrider::wal::{Connection, SessionParams};
use serde_json::Value;

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;
use support::sql::Sql;
use support::wait::wait_until;

/// Every id that a failover is judged by.
const ALL: [&str; 4] = ["--only", "slot.failover", "--only", "failover"];

/// A primary, its standby, and a relay that names both.
struct Two {
    stage: Stage,
    standby: Cluster,
    relay: Relay,
}

impl Two {
    fn report(&self) -> Report {
        Report::asked(&self.relay, &ALL)
    }

    fn primary(&self) -> Sql {
        self.stage.sql()
    }

    fn standby(&self) -> Sql {
        Sql::connect(&self.standby.unix_url())
    }

    /// A replication command at the primary.
    fn command(&self, text: &str) {
        let info =
            ConnectInfo::resolve(&self.stage.database.address().unix_url(), &|_| None).unwrap().0;
        let mut connection = Connection::open(&info, &SessionParams::default()).unwrap();
        connection.simple_query(text).unwrap();
    }

    /// Lets the slot move, which its copy needs to be kept, until nothing is wrong.
    fn wait_well(&self) {
        let slot = self.stage.slot();
        wait_until("nothing to be wrong", || {
            self.stage.insert("A", 1);
            let _ = self.primary().try_run(&format!(
                "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
            ));
            self.primary().run("SELECT pg_log_standby_snapshot()");
            self.report().wrong().is_empty()
        });
    }

    /// Does each step of what is printed for this check.
    fn fix(&mut self, report: &Report, id: &str) {
        for step in report.find(id)["fix"]["steps"].as_array().unwrap() {
            let text = self.filled(step);
            match (step["kind"].as_str().unwrap(), step["where"].as_str().unwrap()) {
                ("sql", "database") => self.primary().run(&text),
                ("sql", "replication") => self.command(&text),
                ("sql", "standby") => self.standby().run(&text),
                ("shell", "standby") => self.standby.restart(Stop::Fast).unwrap(),
                other => panic!("nobody does {other:?}"),
            }
        }
    }

    fn filled(&self, step: &Value) -> String {
        let mut text = step["text"].as_str().unwrap().to_owned();
        for placeholder in step["placeholders"].as_array().unwrap() {
            let placeholder = placeholder.as_str().unwrap();
            let value = match placeholder {
                "SLOT_OF_THE_STANDBY" => "standby".to_owned(),
                "DATA_DIRECTORY" => self.standby().value("SHOW data_directory"),
                "PRIMARY_CONNINFO" => self.standby().value("SHOW primary_conninfo"),
                other => panic!("nobody knows {other}"),
            };
            text = text.replace(placeholder, &value);
        }
        text
    }

    /// Breaks it, has it told with this in its fix, does what is told, and asks again.
    fn hold(&mut self, id: &str, fix: &str, breaks: impl FnOnce(&Self)) {
        eprintln!("{id}: {fix}");
        breaks(self);
        let mut told = self.report();
        wait_until(id, || {
            told = self.report();
            told.status_or_none(id) == Some("warn") && told.fix(id).contains(fix)
        });
        self.fix(&told, id);
        self.wait_well();
    }

    fn set_at_standby(&self, setting: &str, value: &str) {
        set(&self.standby(), setting, value);
    }
}

fn set(sql: &Sql, setting: &str, value: &str) {
    sql.run(&format!("ALTER SYSTEM SET {setting} = {value}"));
    sql.run("SELECT pg_reload_conf()");
}

/// A standby whose `wal_level` is too low from the beginning: one with a copy would not start.
fn two(bootstrap: &str) -> Option<(Cluster, Two)> {
    let options = postgres::eighteen_options()?;
    let mut primary = postgres::start(&options);
    let stage = Stage::migrated(&primary, bootstrap, "two");
    let slot = stage.slot();
    stage.sql().run(&format!(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)"
    ));
    let mut standby = postgres::standby_of(&mut primary, &options);
    standby.stop(Stop::Fast).unwrap();
    let data = standby.folder().join("data");
    for slot in data.join("pg_replslot").read_dir().unwrap() {
        std::fs::remove_dir_all(slot.unwrap().path()).unwrap();
    }
    let settings = std::fs::OpenOptions::new().append(true).open(data.join("postgresql.auto.conf"));
    settings.unwrap().write_all(b"wal_level = 'replica'\n").unwrap();
    standby.start_again().unwrap();
    let host = |cluster: &Cluster| format!("127.0.0.1:{}", cluster.port());
    let both = format!("{},{}", host(&primary), host(&standby));
    let url = stage.database.address().url().replace(&host(&primary), &both);
    let relay = stage.relay().set("source.url", &url);
    Some((primary, Two { stage, standby, relay }))
}

#[test]
fn each_setting_that_a_failover_would_suffer_from_is_named_with_its_fix() {
    let broker = Broker::embedded();
    let Some((_primary, mut two)) = two(&broker.bootstrap()) else { return };
    two.hold("failover.wal_level", "ALTER SYSTEM SET wal_level = 'logical';", |_| ());
    two.hold("failover.sync", "ALTER SYSTEM SET sync_replication_slots = on;", |two| {
        two.set_at_standby("sync_replication_slots", "off");
    });
    two.hold("failover.feedback", "ALTER SYSTEM SET hot_standby_feedback = on;", |two| {
        two.set_at_standby("hot_standby_feedback", "off");
    });
    two.hold("failover.standby_slot", "ALTER SYSTEM SET primary_slot_name =", |two| {
        two.set_at_standby("primary_slot_name", "''");
    });
    two.hold("failover.database", "dbname=postgres'", |two| {
        let said = two.standby().value("SHOW primary_conninfo");
        let without = said.replace(" dbname=postgres", "").replace('\'', "''");
        two.set_at_standby("primary_conninfo", &format!("'{without}'"));
    });
    two.hold("failover.awaited", "SET synchronized_standby_slots = 'standby';", |two| {
        set(&two.primary(), "synchronized_standby_slots", "''");
    });
    two.hold("failover.awaited", "SET synchronized_standby_slots = 'standby';", |two| {
        set(&two.primary(), "synchronized_standby_slots", "'standby, gone'");
    });
    two.hold("failover.awaited", "SET synchronized_standby_slots = 'standby';", |two| {
        two.primary().run("SELECT pg_create_physical_replication_slot('unread')");
        set(&two.primary(), "synchronized_standby_slots", "'standby, unread'");
    });
    two.hold("slot.failover", "(FAILOVER true);", |two| {
        two.command(&format!("ALTER_REPLICATION_SLOT {} (FAILOVER false)", two.stage.slot()));
    });
    two.hold("failover.copy", "ALTER SYSTEM SET max_slot_wal_keep_size = -1;", |two| {
        two.set_at_standby("sync_replication_slots", "off");
        two.set_at_standby("max_slot_wal_keep_size", "'1MB'");
        for _ in 0..4 {
            two.stage.insert("A", 100);
            two.primary().run("SELECT pg_switch_wal()");
        }
        two.primary().run("CHECKPOINT");
        let end = two.primary().value("SELECT pg_current_wal_lsn()");
        wait_until("the standby to have it", || {
            two.standby().value(&format!("SELECT pg_last_wal_replay_lsn() >= '{end}'")) == "t"
        });
        two.standby().run("CHECKPOINT");
    });
}

/// What is wrong at the start is a warning with its fix.
#[test]
fn a_relay_that_starts_warns_of_what_a_failover_would_lose() {
    let broker = Broker::embedded();
    let Some((_primary, two)) = two(&broker.bootstrap()) else { return };
    for setting in ["sync_replication_slots", "hot_standby_feedback"] {
        two.set_at_standby(setting, "off");
    }
    set(&two.primary(), "synchronized_standby_slots", "''");
    two.command(&format!("ALTER_REPLICATION_SLOT {} (FAILOVER false)", two.stage.slot()));
    let mut running = two.relay.clone().allow_log("").run();
    for (what, fix) in [
        ("does not follow a failover", "(FAILOVER true);"),
        ("synchronized_standby_slots is empty", "SET synchronized_standby_slots = 'standby';"),
        ("hot_standby_feedback is off", "SET hot_standby_feedback = on;"),
        ("sync_replication_slots is off", "SET sync_replication_slots = on;"),
        ("wal_level is replica", "SET wal_level = 'logical';"),
    ] {
        let line = running.wait_for_log(what);
        assert!(line.contains("\"WARN\"") && line.contains(fix), "{line}");
    }
    running.stop();
}
