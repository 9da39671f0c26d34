//! A standby that becomes the primary: under a live stream, or in the place of a primary that is gone.

use std::collections::BTreeSet;

use postrider::sandbox::postgres::{Options, Stop};

use super::pair::{both, wait_for_copy};
use crate::stage::Stage;
use support::broker::Broker;
use support::{kafka, postgres, topic, wait_for};

const ROWS: usize = 100;

/// The stream lives on, on another timeline: the relay begins a session anew, and nothing is lost.
#[test]
fn g1_g6_a_standby_promoted_under_the_stream_costs_a_session_and_no_row() {
    let Some(options) = postgres::eighteen_options() else { return };
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let mut cluster = postgres::start(&options);
        let stage = Stage::new(&cluster, &kafka.bootstrap(), "promoted");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
        let relay = stage.relay().set("kafka.delivery", delivery);
        stage.insert("A", ROWS);
        relay.run_once();
        // Some rows wait for a relay that reads from the standby.
        stage.insert("A", ROWS);
        cluster.stop(Stop::Fast).unwrap();
        std::fs::write(cluster.folder().join("data/standby.signal"), "").unwrap();
        cluster.start_again().unwrap();
        let mut running = relay.expect_log("promoted").run();
        running.wait_for_log("\"streaming\"");
        stage.wait_for_records(2 * ROWS);
        let process = stage.slot_value("active_pid");
        assert_eq!(stage.sql().value("SELECT pg_promote()"), "t");
        // The walsender is the same: nothing but a look tells.
        assert_eq!(stage.slot_value("active_pid"), process);
        stage.insert("A", ROWS);
        running.wait_for_log("promoted");
        running.wait_for_log("\"streaming\"");
        stage.insert("A", ROWS);
        wait_for("every row", || (ids(&stage).0 == 4 * ROWS).then_some(()));
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let (distinct, all) = ids(&stage);
        assert_eq!(distinct, 4 * ROWS, "{delivery}");
        assert!(delivery == "at_least_once" || all == distinct, "{delivery}: {all}");
    }
}

/// As docs/operations/postgres-failover.md has it: a slot that the standby copies, and both hosts in the URL.
#[test]
fn g1_g6_a_standby_reached_in_the_place_of_the_primary_costs_a_session_and_no_row() {
    let Some(options) = postgres::eighteen_options() else { return };
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let mut primary = postgres::start(&options);
        let stage = Stage::migrated(&primary, &kafka.bootstrap(), "failed_over");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
        let slot = stage.slot();
        stage.sql().run(&format!(
            "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)"
        ));
        let standby = postgres::standby_of(&mut primary, &options);
        let url = both(&stage, &primary, &standby);
        let relay =
            stage.relay().set("source.url", &format!("{url}?target_session_attrs=read-write"));
        // One of the two hosts takes no writes, and then one does not answer.
        let relay = relay.set("kafka.delivery", delivery).set("retry.max", "500ms");
        let mut running = relay.allow_log("trying again").run();
        running.wait_for_log("\"streaming\"");
        let after = Stage::before(stage.database.at(&standby), &kafka.bootstrap());
        wait_for_copy(&stage, &after);
        stage.wait_acknowledged(stage.log_end());
        stage.insert("A", ROWS);
        stage.wait_for_records(ROWS);
        // Some are under way when it is gone.
        stage.insert("A", ROWS);
        primary.stop(Stop::Kill).unwrap();
        assert_eq!(after.sql().value("SELECT pg_promote()"), "t");
        let proven = running.wait_for_log("delivery resumes there");
        assert!(proven.contains("timeline 2 descends from timeline 1"), "{proven}");
        running.wait_for_log("\"streaming\"");
        after.insert("A", ROWS);
        let kept: usize = after.sql().value("SELECT count(*) FROM outbox").parse().unwrap();
        assert!(kept > 2 * ROWS, "{kept}");
        wait_for("every row", || (ids(&after).0 >= kept).then_some(()));
        after.wait_acknowledged(after.log_end());
        running.stop();
        let (distinct, all) = ids(&after);
        eprintln!("{delivery}: {kept} rows, {all} records");
        assert_eq!(distinct, kept, "{delivery}: what the standby had not received was not sent");
        assert!(delivery == "at_least_once" || all == distinct, "{delivery}: {all}");
    }
}

/// What a failover takes back is owed to nobody: Postgres will not send it again, and a stop does not wait for it.
#[test]
fn g8_a_relay_whose_rows_a_failover_took_back_stops_clean() {
    let Some(options) = postgres::eighteen_options() else { return };
    let Some(kafka) = kafka::shared() else { return };
    let mut primary = postgres::start(&options);
    let stage = Stage::migrated(&primary, &kafka.bootstrap(), "taken_back");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
    let slot = stage.slot();
    stage.sql().run(&format!(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)"
    ));
    let standby = postgres::standby_of(&mut primary, &options);
    stage.sql().run("ALTER SYSTEM RESET synchronized_standby_slots");
    stage.sql().run("SELECT pg_reload_conf()");
    let url = format!("{}?target_session_attrs=read-write", both(&stage, &primary, &standby));
    let relay = stage.relay().set("source.url", &url).set("retry.max", "500ms").allow_log("");
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    let after = Stage::before(stage.database.at(&standby), &kafka.bootstrap());
    wait_for_copy(&stage, &after);
    after.sql().run("ALTER SYSTEM SET primary_conninfo = ''");
    after.sql().run("SELECT pg_reload_conf()");
    wait_for("the standby to be cut off", || {
        (after.sql().value("SELECT count(*) FROM pg_stat_wal_receiver") == "0").then_some(())
    });
    let before = stage.records().len();
    stage.insert("A", 20 * ROWS);
    stage.wait_for_records(before + 20 * ROWS);
    stage.wait_acknowledged(stage.log_end());
    primary.stop(Stop::Kill).unwrap();
    assert_eq!(after.sql().value("SELECT pg_promote()"), "t");
    running.wait_for_log("no longer in Postgres");
    running.wait_for_log("\"streaming\"");
    running.stop();
}

/// A standby that copies the slot cannot stream from it, and says 55000 as of a slot that is lost.
#[test]
fn g1_a_standby_reached_while_the_primary_restarts_is_waited_out() {
    let Some(options) = postgres::eighteen_options() else { return };
    let broker = Broker::embedded();
    let mut primary = postgres::start(&options);
    let stage = Stage::migrated(&primary, &broker.bootstrap(), "restarted");
    let slot = stage.slot();
    stage.sql().run(&format!(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', failover => true)"
    ));
    let standby = postgres::standby_of(&mut primary, &options);
    let relay = stage.relay().set("source.url", &both(&stage, &primary, &standby));
    let relay = relay.set("retry.max", "500ms").allow_log("trying again");
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    let copy = Stage::before(stage.database.at(&standby), &broker.bootstrap());
    wait_for_copy(&stage, &copy);
    let before: usize = stage.sql().value("SELECT count(*) FROM outbox").parse().unwrap();
    stage.wait_for_records(before);
    primary.stop(Stop::Fast).unwrap();
    let reached = running.wait_for_log("only has a copy of replication slot");
    assert!(reached.contains("target_session_attrs=read-write"), "{reached}");
    // What the stream itself would say, should the server become a standby after that look.
    let peek = format!("SELECT pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL)");
    let error = copy.sql().try_run(&peek).unwrap_err();
    let said = error.as_db_error().unwrap();
    assert_eq!((said.code().code(), said.routine()), ("55000", Some("CreateDecodingContext")));
    assert!(said.message().starts_with("cannot use replication slot "), "{error}");
    primary.start_again().unwrap();
    running.wait_for_log("\"streaming\"");
    stage.insert("A", ROWS);
    stage.wait_for_records(before + ROWS);
    running.stop();
}

/// Before PostgreSQL 16 nothing is streamed while in recovery; the slot is there, and of use after a promotion.
#[test]
fn g1_a_primary_that_was_made_a_standby_is_waited_for_until_it_is_promoted() {
    let broker = Broker::embedded();
    for options in std::iter::once(Options::default()).chain(postgres::eighteen_options()) {
        let mut cluster = postgres::start(&options);
        let stage = Stage::new(&cluster, &broker.bootstrap(), "demoted");
        let relay = stage.relay().set("retry.max", "500ms").allow_log("trying again");
        let mut running = relay.allow_log("closing the replication stream").run();
        stage.insert("A", ROWS);
        stage.wait_for_records(ROWS);
        cluster.stop(Stop::Fast).unwrap();
        std::fs::write(cluster.folder().join("data/standby.signal"), "").unwrap();
        cluster.start_again().unwrap();
        if cluster.version() < 16 {
            let reached = running.wait_for_log("cannot stream from replication slot");
            assert!(reached.contains("trying again"), "{reached}");
        }
        stage.sql().run("SELECT pg_promote()");
        stage.insert("A", ROWS);
        stage.wait_for_records(2 * ROWS);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
    }
}

/// Nothing can be written on a standby to find the end of its log by.
#[test]
fn once_on_a_standby_delivers_what_it_has_and_ends() {
    let Some(options) = postgres::eighteen_options() else { return };
    let broker = Broker::embedded();
    let mut cluster = postgres::start(&options);
    let stage = Stage::new(&cluster, &broker.bootstrap(), "reading");
    stage.insert("A", ROWS);
    cluster.stop(Stop::Fast).unwrap();
    std::fs::write(cluster.folder().join("data/standby.signal"), "").unwrap();
    cluster.start_again().unwrap();
    for _ in 0..2 {
        stage.relay().run_once();
        assert_eq!(stage.records().len(), ROWS);
    }
}

/// How many rows were delivered, and how many records.
fn ids(stage: &Stage) -> (usize, usize) {
    let records = stage.records();
    let ids: BTreeSet<_> = records.iter().filter_map(|one| one.header("id")).collect();
    (ids.len(), records.len())
}
