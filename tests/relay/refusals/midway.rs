//! What somebody breaks while the relay runs, beyond the register of unfit sources.

use postrider::sandbox::postgres::{Cluster, Options};

use super::attempt::{judge, refused};
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

/// Rows may have been passed over, or not: the relay says so, once for each change, and goes on.
#[test]
fn g1_a_publication_that_leaves_out_inserts_for_a_moment_is_told() {
    const TOLD: &str = "publication `postrider` was altered after";
    // In seconds; there is one every five.
    const LAST_LOOK: &str = "\
        SELECT extract(epoch FROM max(query_start))::bigint FROM pg_stat_activity \
        WHERE datname = current_database() AND backend_type = 'client backend' \
            AND pid <> pg_backend_pid()";
    // Nobody sees the state between.
    let blink = |outbox: &Outbox| {
        outbox.database.sql().run(
            "ALTER PUBLICATION postrider SET (publish = 'update'); \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('order', '1', 'placed', '1'); \
             ALTER PUBLICATION postrider SET (publish = 'insert')",
        );
    };
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "blinked");
        outbox.write();
        let relay = outbox.relay().allow_log(TOLD).set("log.repeat_interval", "0s");
        let mut running = relay.run();
        running.wait_for_log("caught up");
        for _ in 0..2 {
            blink(&outbox);
            let told = running.wait_for_log(TOLD);
            assert!(told.contains("re-send") && told.contains("`publish` contained"), "{told}");
            outbox.write();
        }
        // Nothing is said of it by the looks that follow.
        let session = outbox.database.sql();
        let looked = || session.value(LAST_LOOK).parse::<i64>().unwrap();
        let before = looked();
        let outcome = running.outcome_once(|| looked() >= before + 8);
        assert!(outcome.status.success(), "{:?}", outcome.log);
        assert_eq!(outcome.log.iter().filter(|line| line.contains(TOLD)).count(), 2);
    }
}
