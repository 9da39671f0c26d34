//! Locks of others are waited for briefly, and what they have is left.

use super::scene::Scene;

#[test]
fn rows_that_others_have_locked_are_left_for_the_next_run() {
    let scene = Scene::new();
    scene.insert("old", 20, "2 days");
    scene.insert("busy", 3, "2 days");
    scene.pass();
    let busy = scene.sql();
    busy.run("BEGIN; SELECT FROM outbox WHERE aggregate_id = 'busy' FOR UPDATE");
    let pruned = scene.prune(&["--execute"]);
    assert_eq!(pruned.counts(), (23, 20, vec![(0, 0)]));
    assert_eq!(pruned.table()["locked"], 3);
    busy.run("COMMIT");
    assert_eq!(scene.prune(&["--execute"]).counts(), (3, 3, vec![(0, 0)]));
}

#[test]
fn a_table_that_is_locked_is_tried_a_few_times_and_named() {
    let scene = Scene::new();
    scene.insert("old", 20, "2 days");
    scene.pass();
    let other = scene.sql();
    other.run("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
    let pruned = scene.prune(&["--execute", "--lock-timeout", "50ms"]);
    pruned.assert_refused(69, &["PR-P092", "table public.outbox", "run it again"]);
    other.run("ROLLBACK");
    assert_eq!(scene.prune(&["--execute"]).counts(), (20, 20, vec![(0, 0)]));
}

/// DETACH waits for readers of the whole table, and writers would wait behind it.
#[test]
fn a_partition_is_left_where_the_table_is_in_use_and_dropped_later() {
    let scene = Scene::partitioned();
    scene.insert("old", 20, "3 days");
    scene.pass();
    let reader = scene.sql();
    reader.run("BEGIN; SELECT count(*) FROM outbox");
    let pruned = scene.prune(&["--execute", "--lock-timeout", "50ms"]);
    pruned.assert_refused(69, &["PR-P092", "Day 5"]);
    let is_locked = |(_, is): &(String, String)| is == "locked";
    assert!(pruned.partitions().iter().all(is_locked), "{:?}", pruned.tables);
    assert_eq!(scene.count("old"), 20);
    scene.insert("new", 1, "0 days");
    reader.run("COMMIT");
    let pruned = scene.prune(&["--execute"]);
    assert!(pruned.partitions().iter().all(|(_, is)| is == "dropped"), "{:?}", pruned.tables);
    assert_eq!((scene.count("old"), scene.count("new")), (0, 1));
}
