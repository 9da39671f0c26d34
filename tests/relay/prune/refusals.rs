//! What shows nothing of deliveries is refused, with the fix, and nothing is deleted.

use super::scene::{Scene, prune};
use support::wait::wait_until;

/// Of what is older than a day, without a word about the time before the slot.
const PLAIN: [&str; 3] = ["--older-than", "1d", "--execute"];

#[test]
fn a_slot_that_says_nothing_of_deliveries_is_refused() {
    let scene = Scene::new();
    scene.insert("old", 10, "2 days");
    scene.pass();
    let slot = scene.stage.slot();
    let refused = |name: &str, exit, words: &[&str]| {
        scene.prune(&["--execute", "--slot", name]).assert_refused(exit, words);
        scene.prune(&["--execute", "--slot", slot, "--slot", name]).assert_refused(exit, words);
    };
    refused("absent", 78, &["PR-P072", "`absent` does not exist", slot]);
    let sql = scene.sql();
    sql.run("SELECT pg_create_physical_replication_slot('physical', true)");
    refused("physical", 78, &["PR-P040", "it is a physical slot"]);
    sql.run("SELECT pg_create_logical_replication_slot('decoding', 'test_decoding')");
    refused("decoding", 78, &["PR-P040", "its plugin is `test_decoding`"]);
    let other = support::sql::Sql::connect(&scene.cluster.unix_url());
    other.run("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')");
    refused("elsewhere", 78, &["PR-P040", "it is a slot of database `postgres`"]);
    other.run(
        "SELECT pg_drop_replication_slot(name) FROM unnest(ARRAY['physical', 'elsewhere']) AS name",
    );
    sql.run("SELECT pg_drop_replication_slot('decoding')");
    assert_eq!(scene.count("old"), 10);
}

#[test]
fn a_lost_slot_deletes_nothing() {
    let scene = Scene::new();
    scene.insert("old", 10, "2 days");
    scene.pass();
    let sql = scene.sql();
    sql.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'");
    sql.run("SELECT pg_reload_conf()");
    // The server reads its settings again in its own time.
    wait_until("the slot to be lost", || {
        sql.run("SELECT pg_logical_emit_message(false, '', 'x'); SELECT pg_switch_wal()");
        sql.run("CHECKPOINT");
        scene.stage.slot_value("wal_status") == "lost"
    });
    scene.prune(&["--execute"]).assert_refused(70, &["PR-P041", "is lost", "setup --from-now"]);
    assert_eq!(scene.count("old"), 10);
}

#[test]
fn without_progress_the_operator_has_to_say_that_no_slot_was_lost() {
    let scene = Scene::new();
    scene.insert("old", 10, "2 days");
    scene.pass();
    let words = ["PR-P073", "no progress is kept", "progress.at_least_once", "--from-before-slot"];
    prune(&scene.relay(), &PLAIN).assert_refused(70, &words);
    prune(&scene.relay(), &PLAIN[..2]).assert_refused(70, &words);
    assert_eq!(scene.count("old"), 10);
    assert_eq!(scene.prune(&["--execute"]).counts(), (10, 10, vec![(0, 0)]));
}

#[test]
fn a_table_without_the_columns_is_refused() {
    let scene = Scene::new();
    let relay = scene.relay();
    let refused = |option, value, exit, words: &[&str]| {
        let pruned = prune(&relay.clone().set(option, value), &PLAIN);
        pruned.assert_refused(exit, words);
    };
    refused("source.tables", "public.absent", 78, &["PR-P032", "public.absent"]);
    refused("outbox.created_at", "written", 78, &["PR-P034", "no column written"]);
    refused(
        "outbox.created_at",
        "event_type",
        78,
        &["PR-P078", "of type text", "outbox.created_at"],
    );
}

#[test]
fn a_large_table_without_an_index_over_the_age_is_refused_with_the_statement() {
    let scene = Scene::new();
    let sql = scene.sql();
    sql.run(
        "DROP INDEX outbox_by_age; ALTER TABLE outbox ALTER COLUMN payload SET STORAGE PLAIN; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', 'big', 'A', to_jsonb(repeat('x', 7500)), now() - interval '2 days' \
         FROM generate_series(1, 9000)",
    );
    scene.pass();
    let create = "CREATE INDEX CONCURRENTLY ON \"public\".\"outbox\" (\"created_at\", \"id\");";
    let escaped = create.replace('"', "\\\"");
    scene.prune(&["--execute"]).assert_refused(78, &["PR-P079", &escaped]);
    sql.run(create);
    assert_eq!(scene.prune(&["--execute"]).counts(), (9_000, 9_000, vec![(0, 0)]));
}

#[test]
fn a_standby_deletes_nothing_and_says_where_to_go() {
    let mut scene = Scene::new();
    let slot = format!("SELECT pg_drop_replication_slot('{}')", scene.stage.slot());
    scene.sql().run(&slot);
    scene.cluster.stop(postrider::sandbox::postgres::Stop::Fast).unwrap();
    std::fs::write(scene.cluster.folder().join("data/standby.signal"), "").unwrap();
    scene.cluster.start_again().unwrap();
    scene.prune(&["--execute"]).assert_refused(78, &["PR-P075", "target_session_attrs=primary"]);
}
