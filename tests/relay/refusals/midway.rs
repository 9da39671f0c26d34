//! What somebody breaks while the relay runs.

use postrider::sandbox::postgres::{Cluster, Options};

use super::attempt::{Refusal, judge, refused};
use super::outbox::Outbox;
use support::freezing_proxy::FreezingProxy;
use support::postgres;
use support::relay::{Relay, Running};
use support::sql::Sql;
use support::wait_for;

/// A relay that has delivered one row and goes on.
fn streaming(relay: &Relay, outbox: &Outbox) -> Running {
    outbox.write();
    let mut running = relay.start(&["run", "--output", "json"]);
    running.wait_for_log("caught up");
    running
}

fn spoiled(outbox: &Outbox, exit: i32, spoil: impl FnOnce()) -> Refusal {
    let running = streaming(&outbox.relay(), outbox);
    spoil();
    judge(&running.outcome(), exit)
}

#[test]
fn a_publication_dropped_while_running_is_a_definite_error() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "dropped");
        let refusal = spoiled(&outbox, 70, || {
            outbox.run("DROP PUBLICATION postrider");
            outbox.run(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type)
                        VALUES ('order', '2', 'placed')",
            );
        });
        assert_publication(&outbox, &refusal);
    }
}

#[test]
fn a_publication_younger_than_a_row_of_the_slot_is_a_definite_error() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "younger");
        outbox.run("DROP PUBLICATION postrider");
        outbox.run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type)
                    VALUES ('order', '1', 'placed')",
        );
        outbox.run("CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')");
        outbox.write();
        let before = outbox.acknowledged();
        for _ in 0..2 {
            // Not once only: it stays refused until somebody fixes it.
            let refusal = refused(&outbox.relay(), &["run"], 70);
            assert_publication(&outbox, &refusal);
            assert_eq!(outbox.acknowledged(), before, "nothing is acknowledged");
        }
    }
}

/// A role, a database or a connection string may keep the server's warnings from us.
#[test]
fn g1_a_publication_that_was_missing_is_noticed_whatever_the_session_is_to_hear() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "deaf");
        let name = outbox.database.name();
        outbox.run(&format!("ALTER DATABASE {name} SET client_min_messages = 'error'"));
        let url = outbox.database.address().url() + "?options=-cclient_min_messages%3Derror";
        let relay = outbox.relay().set("source.url", &url);
        outbox.run("DROP PUBLICATION postrider");
        outbox.run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type)
                    VALUES ('order', '1', 'placed')",
        );
        outbox.run("CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')");
        let before = outbox.acknowledged();
        assert_publication(&outbox, &refused(&relay, &["run"], 70));
        assert_eq!(outbox.acknowledged(), before, "nothing is acknowledged");
    }
}

#[test]
fn g1_a_table_that_gets_a_child_while_running_is_refused() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "child");
        let refusal =
            spoiled(&outbox, 78, || outbox.run("CREATE TABLE child () INHERITS (outbox)"));
        let words = ["public.child is an inheritance child of table public.outbox", "re-send"];
        refusal.assert("PR-P055", &words);
    }
}

fn assert_publication(outbox: &Outbox, refusal: &Refusal) {
    let slot = format!("slot `{}` cannot pass this change", outbox.database.name());
    let words =
        ["publication `postrider`", "`postrider repair --execute --drop-slot`", "are lost", &slot];
    refusal.assert("PR-P010", &words);
    assert!(!refusal.text.contains("pg_drop_replication_slot"), "{}", refusal.text);
}

#[test]
fn a_slot_lost_while_the_brokers_are_away_is_a_definite_error() {
    let options = Options::default()
        .with("max_slot_wal_keep_size", "1MB")
        .with("max_wal_size", "32MB")
        .with("min_wal_size", "32MB");
    let cluster: Cluster = postgres::start(&options);
    let outbox = Outbox::ready(&cluster, "away");
    let nowhere = format!("127.0.0.1:{}", postrider::sandbox::port::free().unwrap());
    let relay = outbox.relay_to(&outbox.database.address(), &nowhere);
    let mut running = relay.start(&["run", "--output", "json"]);
    running.wait_for_log("streaming");
    outbox.write();
    for _ in 0..8 {
        outbox.run("CREATE TABLE t (); DROP TABLE t; SELECT pg_switch_wal(); CHECKPOINT");
    }
    let refusal = judge(&running.outcome(), 70);
    assert_eq!(refusal.code, "PR-P041", "{}", refusal.text);
    assert!(refusal.text.contains("re-send"), "{}", refusal.text);
}

#[test]
fn g1_a_slot_dropped_between_two_sessions_is_not_created_again() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "vanished");
        let running = streaming(&outbox.relay().set("retry.initial", "3s"), &outbox);
        let slot = "pg_replication_slots WHERE slot_name = current_database()";
        outbox.run(&format!("SELECT pg_terminate_backend(active_pid) FROM {slot}"));
        outbox.write();
        wait_for("the slot to go", || {
            let drop = format!("SELECT pg_drop_replication_slot(slot_name) FROM {slot}");
            outbox.database.sql().try_run(&drop).ok()
        });
        let refusal = judge(&running.outcome(), 70);
        assert_eq!(refusal.code, "PR-P046", "{}", refusal.text);
        // The position up to which rows were delivered: from there on they are to be sent again.
        let position = refusal.text.split_once("since the last acknowledged position, ");
        let position = position.and_then(|(_, rest)| rest.split_once(");")).unwrap().0;
        let is_one = format!("SELECT pg_lsn '{position}' > '0/0'");
        assert_eq!(outbox.database.sql().value(&is_one), "t", "{}", refusal.text);
        let slots = outbox.database.sql().value(&format!("SELECT count(*) FROM {slot}"));
        assert_eq!(slots, "0", "nothing is created in its place");
    }
}

#[test]
fn g1_a_slot_dropped_after_preflight_is_a_lost_position() {
    let outbox = Outbox::ready(postgres::installed(), "between");
    let proxy = FreezingProxy::start(&outbox.database.address());
    let relay = outbox.relay().set("source.url", &proxy.url());
    let (url, slot) = (outbox.database.address().unix_url(), outbox.database.name().to_owned());
    proxy.before_start(move || {
        let sql = Sql::try_connect(&url).unwrap();
        sql.run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    });
    refused(&relay, &["run"], 70).assert("PR-P046", &[outbox.database.name(), "re-send"]);
}

#[test]
fn g1_a_table_swapped_while_running_is_a_definite_error() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "swapped");
        let refusal = spoiled(&outbox, 70, || {
            outbox.run(
                "CREATE TABLE fresh (LIKE outbox INCLUDING ALL);
                 ALTER TABLE outbox RENAME TO old; ALTER TABLE fresh RENAME TO outbox",
            );
        });
        refusal.assert("PR-P049", &["table public.outbox", "postrider setup", "re-send"]);
    }
}

#[test]
fn g1_a_table_taken_out_of_the_publication_while_running_is_refused() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "unpublished");
        let refusal = spoiled(&outbox, 78, || {
            outbox.run("ALTER PUBLICATION postrider DROP TABLE outbox");
        });
        refusal.assert("PR-P036", &["does not contain table public.outbox", "re-send"]);
    }
}
