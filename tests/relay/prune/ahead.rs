//! Partitions of the days to come.

use postrider::sandbox::postgres::Options;

use super::scene::{NO_BROKERS, Pruned, Scene, insert};

/// What became of each day, in their order.
fn days(pruned: &Pruned) -> Vec<&str> {
    let days = pruned.tables[0]["ahead"].as_array().unwrap();
    days.iter().map(|day| day["is"].as_str().unwrap()).collect()
}

fn count_of_partitions(scene: &Scene) -> String {
    scene.sql().value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass")
}

#[test]
fn days_that_no_partition_covers_get_one() {
    let scene = Scene::partitioned();
    let plan = scene.prune(&["--ahead", "3"]);
    assert_eq!((days(&plan), count_of_partitions(&scene).as_str()), (vec!["create"; 3], "7"));
    let done = scene.prune(&["--ahead", "3", "--execute"]);
    assert_eq!((days(&done), done.exit), (vec!["created"; 3], 0), "{}", done.log);
    scene.sql().run(&insert("in two days", 5, "-2 days"));
    let rest = scene.sql().value("SELECT count(*) FROM \"Rest\"");
    assert_eq!(rest, "0", "the row lies in the partition of its day");
    assert_eq!(days(&scene.prune(&["--ahead", "3", "--execute"])), [""; 0]);
    // Of whatever size they are.
    scene.sql().run(
        "CREATE TABLE long PARTITION OF outbox FOR VALUES \
         FROM (date_trunc('day', now() + interval '5 days')) TO ('2999-01-01')",
    );
    let more = scene.prune(&["--ahead", "8", "--execute"]);
    assert_eq!((days(&more), more.exit), (vec!["created"], 0), "{}", more.log);
}

#[test]
fn a_day_whose_rows_lie_in_the_default_partition_is_told_and_the_others_are_made() {
    let scene = Scene::partitioned();
    scene.sql().run(&insert("early", 1, "-2 days"));
    scene.insert("old", 5, "30 days");
    scene.pass();
    let done = scene.prune(&["--ahead", "3", "--execute"]);
    done.assert_refused(78, &["PR-P099", "default partition"]);
    assert_eq!(days(&done), ["created", "occupied", "created"]);
    assert_eq!(
        (scene.count("early"), scene.count("old")),
        (1, 0),
        "old rows are pruned all the same"
    );
}

#[test]
fn a_day_whose_name_something_else_has_is_told_and_the_others_are_made() {
    let scene = Scene::partitioned();
    let day = scene
        .sql()
        .value("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '2 days', 'YYYYMMDD')");
    scene.sql().run(&format!("CREATE TABLE outbox_{day} (x int)"));
    scene.insert("old", 5, "30 days");
    scene.pass();
    let done = scene.prune(&["--ahead", "3", "--execute"]);
    done.assert_refused(78, &["PR-P117", &format!("outbox_{day}"), "RENAME"]);
    assert_eq!(days(&done), ["created", "taken", "created"]);
    assert_eq!(scene.count("old"), 0, "old rows are pruned all the same");
}

#[test]
fn a_table_that_is_locked_gets_none_and_nobody_waits_long_for_it() {
    let scene = Scene::partitioned();
    let reader = scene.sql();
    reader.run("BEGIN; SELECT FROM outbox");
    let done = scene.prune(&["--ahead", "1", "--execute", "--lock-timeout", "50ms"]);
    done.assert_refused(69, &["PR-P092"]);
    assert_eq!(days(&done), ["locked"]);
    reader.run("COMMIT");
    assert_eq!(days(&scene.prune(&["--ahead", "1", "--execute"])), ["created"]);
}

#[test]
fn a_table_that_is_not_partitioned_has_no_days() {
    let scene = Scene::new();
    scene.prune(&["--ahead", "3"]).assert_refused(78, &["PR-P098", "setup --partition day"]);
}

/// The migrations create the same index, and no second one.
#[test]
fn setup_creates_the_index_that_prune_needs() {
    let scene = Scene::without_slot(&Options::default(), NO_BROKERS);
    let sql = scene.sql();
    sql.run("DROP TABLE outbox; DROP PUBLICATION postrider");
    let made = scene.relay().unprepared().start(&["setup"]).outcome();
    assert!(made.status.success(), "{:?}", made.log);
    sql.run(include_str!("../../../migrations/0006_outbox_by_age.sql"));
    let indexes = "SELECT string_agg(pg_get_indexdef(indexrelid), ';') FROM pg_index \
        WHERE indrelid = 'outbox'::regclass AND NOT indisprimary";
    let wanted = "CREATE INDEX outbox_by_age ON public.outbox USING btree (created_at, id)";
    assert_eq!(sql.value(indexes), wanted);
    // An older table gets it from the migration.
    sql.run("DROP INDEX outbox_by_age");
    for _ in 0..2 {
        sql.run(include_str!("../../../migrations/0006_outbox_by_age.sql"));
    }
    assert_eq!(sql.value(indexes), wanted);
}

#[test]
fn what_setup_partitions_is_delivered_pruned_and_has_days_ahead() {
    let scene = Scene::without_slot(&Options::default(), NO_BROKERS);
    scene.sql().run("DROP TABLE outbox; DROP PUBLICATION postrider");
    let setup = |arguments: &[&str]| {
        let relay = scene.relay().unprepared();
        let made = relay.start(&[&["setup", "--partition", "day"], arguments].concat()).outcome();
        assert!(made.status.success(), "{:?}", made.log);
        made.stdout
    };
    assert!(setup(&["--print"]).contains("PARTITION BY RANGE (created_at)"));
    setup(&[]);
    assert_eq!(count_of_partitions(&scene), "9", "today, seven days, the default one");
    assert!(!setup(&[]).contains("created:"), "once is enough");
    let index =
        "SELECT indrelid::regclass FROM pg_index WHERE indexrelid = 'outbox_by_age'::regclass";
    assert_eq!(scene.sql().value(index), "outbox_default", "other partitions are dropped whole");
    let done = scene.prune(&["--ahead", "9", "--execute"]);
    assert_eq!(days(&done), ["created"; 2]);
    scene.insert("old", 3, "3 days");
    scene.insert("young", 2, "0 days");
    scene.pass();
    let pruned = scene.prune(&["--execute"]);
    assert_eq!(pruned.counts().1, 3, "of the default partition");
    assert_eq!((scene.count("old"), scene.count("young")), (0, 2));
    assert_eq!(scene.sql().value("SELECT pubviaroot FROM pg_publication"), "t");
}
