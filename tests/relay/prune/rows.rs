//! Rows go when they are old and every slot has passed them, and not before.

use postrider::sandbox::postgres::Options;

use super::scene::{Scene, insert};
use support::{postgres, wait::wait_until};

/// Both versions at hand.
fn scenes() -> impl Iterator<Item = Scene> {
    let versions = std::iter::once(Options::default()).chain(postgres::eighteen_options());
    versions.map(|options| Scene::on(&options, "127.0.0.1:1"))
}

#[test]
fn old_rows_that_the_slot_has_passed_are_deleted_and_the_plan_says_which() {
    for scene in scenes() {
        scene.insert("old", 250, "2 days");
        scene.insert("young", 30, "2 hours");
        scene.pass();
        scene.insert("late", 20, "2 days");
        let expected = |deleted| (250, deleted, vec![(20, 0)]);
        assert_eq!(scene.prune(&[]).counts(), expected(0));
        assert_eq!(scene.count("%"), 300, "a plan changes nothing");
        // 4 pages, the last of which is not full.
        assert_eq!(scene.prune(&["--execute", "--batch", "80"]).counts(), expected(250));
        assert_eq!((scene.count("old"), scene.count("young"), scene.count("late")), (0, 30, 20));
        assert_eq!(scene.prune(&["--execute"]).counts(), (0, 0, vec![(20, 0)]));
        scene.pass();
        assert_eq!(scene.prune(&["--execute"]).counts(), (20, 20, vec![(0, 0)]));
        assert_eq!(scene.count("%"), 30);
    }
}

#[test]
fn a_row_stays_until_the_last_of_all_slots_has_passed_it() {
    let scene = Scene::new();
    let slot = scene.stage.slot();
    let other = format!("{slot}_other");
    scene.sql().run(&format!("SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')"));
    scene.insert("first", 10, "2 days");
    scene.pass();
    scene.pass_by(&other);
    scene.insert("second", 5, "2 days");
    scene.pass();
    let both = ["--slot", slot, "--slot", &other];
    let deed = [&both[..], &["--execute"]].concat();
    assert_eq!(scene.prune(&both).counts(), (10, 0, vec![(0, 0), (5, 0)]));
    assert_eq!(scene.prune(&deed).counts(), (10, 10, vec![(0, 0), (5, 0)]));
    scene.pass_by(&other);
    assert_eq!(scene.prune(&deed).counts(), (5, 5, vec![(0, 0), (0, 0)]));
    let drop = format!("SELECT pg_drop_replication_slot('{other}')");
    scene.sql().run(&drop);
}

#[test]
fn a_row_of_a_transaction_that_was_open_for_long_stays_until_its_commit_is_passed() {
    let scene = Scene::new();
    let open = scene.sql();
    // The savepoint gives the row a transaction number of its own.
    let rows = insert("slow", 1, "2 days");
    open.run(&format!(
        "BEGIN; SELECT txid_current(); SAVEPOINT inner_one; {rows}; RELEASE inner_one"
    ));
    scene.insert("fast", 10, "2 days");
    // The slot goes on over both inserts, and over the commit of the fast one alone.
    let sql = scene.sql();
    let slot = scene.stage.slot();
    sql.run("CHECKPOINT");
    sql.run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
    assert_eq!(scene.prune(&["--execute"]).counts(), (0, 0, vec![(10, 0)]), "in doubt");
    open.run("COMMIT");
    assert_eq!(scene.prune(&["--execute"]).counts(), (0, 0, vec![(11, 0)]));
    scene.pass();
    assert_eq!(scene.prune(&["--execute"]).counts(), (11, 11, vec![(0, 0)]));
}

#[test]
fn a_row_that_is_inserted_again_with_its_old_time_has_to_be_passed_again() {
    let scene = Scene::new();
    scene.insert("one", 10, "2 days");
    scene.pass();
    scene.sql().run(
        "WITH again AS (DELETE FROM outbox WHERE id = (SELECT min(id::text)::uuid FROM outbox) RETURNING *) \
         INSERT INTO outbox SELECT * FROM again",
    );
    assert_eq!(scene.prune(&["--execute"]).counts(), (9, 9, vec![(1, 0)]));
}

#[test]
fn rows_of_one_age_are_visited_once_each() {
    let scene = Scene::new();
    scene.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) \
         SELECT 't', 'same', 'A', '2020-01-01' FROM generate_series(1, 95)",
    );
    scene.pass();
    assert_eq!(scene.prune(&["--execute", "--batch", "10"]).counts(), (95, 95, vec![(0, 0)]));
}

#[test]
fn a_run_that_is_killed_leaves_whole_pages_and_the_next_one_goes_on() {
    let scene = Scene::new();
    scene.insert("old", 5_000, "2 days");
    scene.pass();
    let line = ["prune", "--older-than", "1d", "--from-before-slot", "--execute", "--batch", "10"];
    let running = scene.relay().start(&[&line[..], &["--pause", "20ms"]].concat());
    wait_until("some rows to be deleted", || scene.count("old") < 4_900);
    running.kill();
    // Its last page may still be under way.
    let sql = scene.sql();
    wait_until("its session to end", || {
        sql.value(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'WITH page%' AND pid <> pg_backend_pid()",
        ) == "0"
    });
    let left = scene.count("old");
    assert!(left > 0 && left.is_multiple_of(10), "{left}");
    let left = left.try_into().unwrap();
    assert_eq!(scene.prune(&["--execute"]).counts(), (left, left, vec![(0, 0)]));
}

#[test]
fn columns_are_those_of_the_configuration() {
    let scene = Scene::new();
    scene.sql().run(
        "ALTER TABLE outbox RENAME COLUMN created_at TO written; \
         ALTER TABLE outbox RENAME COLUMN id TO event_id; \
         ALTER TABLE outbox ALTER COLUMN written TYPE date; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, written) \
         SELECT 't', 'k', 'A', current_date - n FROM generate_series(0, 9) AS n",
    );
    scene.pass();
    let relay =
        scene.relay().set("outbox.id", "id,event_id").set("outbox.created_at", "at,written");
    let line = ["--older-than", "4d", "--from-before-slot", "--execute"];
    let pruned = super::scene::prune(&relay, &line);
    // Four days ago it was some time of that day.
    assert_eq!(pruned.counts(), (5, 5, vec![(0, 0)]));
}

/// `SQL, DMY` prints zones by abbreviations, and the server reads IST as another one.
#[test]
fn rows_are_walked_through_once_whatever_times_look_like_in_the_database() {
    let scene = Scene::new();
    let database = scene.stage.slot();
    scene.sql().run(&format!(
        "ALTER DATABASE {database} SET datestyle = 'SQL, DMY'; \
         ALTER DATABASE {database} SET timezone = 'Europe/Dublin'"
    ));
    scene.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) \
         SELECT 't', 'old', 'A', '2026-07-01 12:00:00Z'::timestamptz + n * interval '10 ms' \
         FROM generate_series(1, 3000) AS n",
    );
    let held = scene.prune(&["--execute", "--batch", "100"]);
    assert_eq!(held.counts(), (0, 0, vec![(3_000, 0)]));
    scene.pass();
    assert_eq!(scene.prune(&["--execute", "--batch", "100"]).counts().1, 3_000);
    assert_eq!(scene.count("old"), 0);
}
