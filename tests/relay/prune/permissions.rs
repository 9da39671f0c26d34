//! What the role lacks is named, with the statement that gives it, before anything is deleted.

use super::scene::Scene;

#[test]
fn a_role_that_may_not_delete_is_told_what_to_grant_and_then_may() {
    let scene = Scene::new();
    scene.insert("old", 10, "2 days");
    scene.pass();
    let role = scene.stage.database.create_role("cleaner", "");
    let sql = scene.sql();
    sql.run("GRANT SELECT ON outbox TO cleaner");
    let grant = "GRANT UPDATE, DELETE ON \"public\".\"outbox\" TO \"cleaner\";";
    for execute in [&[][..], &["--execute"]] {
        let pruned = scene.prune_as(&role, execute);
        pruned.assert_refused(77, &["PR-P076", "role `cleaner`", &grant.replace('"', "\\\"")]);
    }
    sql.run(grant);
    // Transactions of ours write, whatever the role's usually do.
    sql.run(
        "ALTER ROLE cleaner SET default_transaction_read_only = on; \
         ALTER ROLE cleaner SET default_transaction_isolation = 'serializable'",
    );
    assert_eq!(scene.prune_as(&role, &["--execute"]).counts(), (10, 10, vec![(0, 0)]));
}

#[test]
fn a_role_that_does_not_see_every_row_is_refused() {
    let scene = Scene::new();
    scene.stage.database.create_role("cleaner", "");
    let role = scene
        .stage
        .database
        .address()
        .login_as("cleaner", scene.stage.database.address().password.as_deref());
    scene.sql().run(
        "GRANT SELECT, UPDATE, DELETE ON outbox TO cleaner; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY own ON outbox USING (aggregate_id = 'mine')",
    );
    scene.prune_as(&role, &[]).assert_refused(77, &["PR-P077", "BYPASSRLS"]);
}

/// The owner of a partition is subject to its policies where they are forced.
#[test]
fn a_partition_with_rows_that_are_hidden_is_not_dropped() {
    let scene = Scene::partitioned();
    scene.insert("old", 10, "3 days");
    scene.pass();
    scene.insert("hidden", 1, "3 days");
    let role = scene.stage.database.create_role("keeper", "");
    let sql = scene.sql();
    sql.run("ALTER TABLE outbox OWNER TO keeper; GRANT ALL ON SCHEMA public TO keeper");
    for day in 0..6 {
        sql.run(&format!("ALTER TABLE \"Day {day}\" OWNER TO keeper"));
    }
    sql.run(
        "ALTER TABLE \"Rest\" OWNER TO keeper; \
         ALTER TABLE \"Day 3\" ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; \
         CREATE POLICY own ON \"Day 3\" USING (aggregate_id = 'old')",
    );
    let pruned = scene.prune_as(&role, &["--execute"]);
    pruned.assert_refused(77, &["row-level security"]);
    assert_eq!((scene.count("old"), scene.count("hidden")), (10, 1));
}

#[test]
fn partitions_are_dropped_by_their_owner_alone() {
    let scene = Scene::partitioned();
    scene.insert("old", 10, "3 days");
    scene.pass();
    let role = scene.stage.database.create_role("cleaner", "");
    let sql = scene.sql();
    sql.run("GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO cleaner");
    scene.prune_as(&role, &[]).assert_refused(77, &["PR-P076", "ownership", "TO \\\"cleaner\\\";"]);
    sql.run("CREATE ROLE keeper; GRANT keeper TO cleaner; ALTER TABLE outbox OWNER TO keeper");
    for day in 0..6 {
        sql.run(&format!("ALTER TABLE \"Day {day}\" OWNER TO keeper"));
    }
    sql.run("ALTER TABLE \"Rest\" OWNER TO keeper; GRANT ALL ON SCHEMA public TO keeper");
    let pruned = scene.prune_as(&role, &["--execute"]);
    assert!(pruned.partitions().iter().all(|(_, is)| is == "dropped"), "{}", pruned.log);
    assert_eq!((pruned.exit, scene.count("old")), (0, 0));
}
