//! Partitions go as a whole, and only as long as nobody can lose a row by it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::scene::{Scene, insert};

/// Names with what became of them.
fn all(names: &[&str], is: &str) -> Vec<(String, String)> {
    names.iter().map(|name| (format!("public.{name}"), is.to_owned())).collect()
}

#[test]
fn old_partitions_are_dropped_and_the_default_one_is_cleaned_row_by_row() {
    let scene = Scene::partitioned();
    scene.insert("old", 30, "3 days");
    scene.insert("ancient", 7, "30 days");
    scene.insert("young", 5, "0 days");
    scene.pass();
    scene.insert("late", 2, "4 days");
    let names = ["\"Day 5\"", "\"Day 3\"", "\"Day 2\""];
    let plan = scene.prune(&[]);
    let mut expected = all(&names, "drop");
    expected.insert(1, ("public.\"Day 4\"".to_owned(), "kept".to_owned()));
    assert_eq!(plan.partitions(), expected);
    assert_eq!(plan.counts(), (7, 0, vec![(2, 0)]));
    let deed = scene.prune(&["--execute"]);
    let mut expected = all(&names, "dropped");
    expected.insert(1, ("public.\"Day 4\"".to_owned(), "kept".to_owned()));
    assert_eq!(deed.partitions(), expected);
    assert_eq!(deed.counts(), (7, 7, vec![(2, 0)]));
    let left: Vec<_> = ["old", "ancient", "young", "late"].map(|of| scene.count(of)).into();
    assert_eq!(left, [0, 0, 5, 2]);
    let rest = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass";
    assert_eq!(
        scene.sql().value(rest),
        "4",
        "two days that are young, the one that is held, the default"
    );
    scene.pass();
    assert_eq!(scene.prune(&["--execute"]).partitions(), all(&["\"Day 4\""], "dropped"));
    assert_eq!(scene.prune(&["--execute"]).partitions(), []);
}

#[test]
fn a_writer_that_is_still_at_work_in_a_partition_keeps_it() {
    let scene = Scene::partitioned();
    scene.insert("old", 30, "3 days");
    scene.pass();
    let writer = scene.sql();
    writer.run(&format!("BEGIN; {}", insert("open", 1, "3 days")));
    let pruned = scene.prune(&["--execute", "--lock-timeout", "50ms"]);
    pruned.assert_refused(69, &["PR-P092", "Day 5"]);
    writer.run("COMMIT");
    let mut expected = all(&["\"Day 5\"", "\"Day 4\"", "\"Day 3\"", "\"Day 2\""], "dropped");
    expected[2].1 = "kept".to_owned();
    assert_eq!(scene.prune(&["--execute"]).partitions(), expected);
    assert_eq!((scene.count("old"), scene.count("open")), (30, 1));
    scene.pass();
    assert_eq!(scene.prune(&["--execute"]).partitions(), all(&["\"Day 3\""], "dropped"));
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Rows that are committed while partitions are detached are in the table afterwards: in a partition that was
/// kept for them, or in the default one.
#[test]
fn what_is_written_while_partitions_are_dropped_is_not_lost() {
    let scene = Scene::partitioned();
    for day in 2..6 {
        scene.insert("old", 2_000, &format!("{day} days"));
    }
    scene.pass();
    let done = AtomicBool::new(false);
    let written: usize = std::thread::scope(|scope| {
        // The writers end even if this thread panics: otherwise the scope would wait for them without end.
        let _stop = StopOnDrop(&done);
        let write = |day: usize| {
            let (scene, done) = (&scene, &done);
            scope.spawn(move || {
                let sql = scene.sql();
                let mut written = 0;
                while !done.load(Ordering::Relaxed) {
                    sql.run(&insert("new", 1, &format!("{day} days")));
                    written += 1;
                }
                written
            })
        };
        let writers: Vec<_> = [2, 3, 9].map(write).into();
        for _ in 0..3 {
            let pruned = scene.prune(&["--execute", "--lock-timeout", "20ms"]);
            assert!([0, 69].contains(&pruned.exit), "{}", pruned.log);
        }
        done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(written > 0);
    assert_eq!(scene.count("new"), written);
}

#[test]
fn partitions_of_partitions_and_open_ends_are_understood() {
    let scene = Scene::partitioned();
    scene.sql().run(
        "CREATE TABLE \"First\" PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01') \
             PARTITION BY HASH (aggregate_id); \
         CREATE TABLE first_0 PARTITION OF \"First\" FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
         CREATE TABLE first_1 PARTITION OF \"First\" FOR VALUES WITH (MODULUS 2, REMAINDER 1); \
         CREATE TABLE last PARTITION OF outbox FOR VALUES FROM ('2999-01-01') TO (MAXVALUE)",
    );
    scene.insert("a", 5, "20 years");
    scene.insert("b", 5, "20 years");
    scene.pass();
    let pruned = scene.prune(&["--execute"]);
    let names = ["\"First\"", "\"Day 5\"", "\"Day 4\"", "\"Day 3\"", "\"Day 2\""];
    assert_eq!(pruned.partitions(), all(&names, "dropped"), "{}", pruned.log);
    assert_eq!(scene.count("%"), 0);
}

#[test]
fn of_a_table_that_is_partitioned_otherwise_rows_are_deleted() {
    let scene = Scene::new();
    scene.sql().run(
        "DROP TABLE outbox; CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text, \
             aggregate_id text, event_type text, payload jsonb, created_at timestamp) \
             PARTITION BY HASH (aggregate_id); \
         ALTER PUBLICATION postrider ADD TABLE outbox; \
         CREATE TABLE part_0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
         CREATE TABLE part_1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    );
    for aggregate in ["a", "b", "c"] {
        scene.insert(aggregate, 10, "2 days");
    }
    scene.insert("young", 10, "0 days");
    scene.pass();
    assert_eq!(scene.prune(&["--execute", "--batch", "4"]).counts(), (30, 30, vec![(0, 0)]));
    assert_eq!(scene.count("%"), 10);
}

#[test]
fn a_partition_that_a_view_reads_is_kept_and_the_others_go() {
    let scene = Scene::partitioned();
    scene.sql().run("CREATE VIEW seen AS SELECT id FROM \"Day 4\"");
    scene.insert("ancient", 7, "30 days");
    scene.pass();
    let pruned = scene.prune(&["--execute"]);
    pruned.assert_refused(78, &["PR-P096", "Day 4", "pg_describe_object"]);
    assert!(!pruned.log.contains("CASCADE"), "{}", pruned.log);
    let mut expected = all(&["\"Day 5\"", "\"Day 4\"", "\"Day 3\"", "\"Day 2\""], "dropped");
    expected[1].1 = "needed".to_owned();
    assert_eq!((pruned.partitions(), scene.count("ancient")), (expected, 0));
}
