//! What Postgres tells nobody: the table or the publication changes while the relay runs, and rows
//! are silently not sent any more. The relay notices within ten seconds, is not ready, and ends.

use std::time::{Duration, Instant};

use super::attempt::judge;
use super::outbox::Outbox;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::{postgres, unique};

/// From the change to the end of the relay.
const NOTICED: Duration = Duration::from_secs(40);

/// A change, made at once; how it is answered.
struct Change {
    stem: &'static str,
    sql: &'static str,
    exit: i32,
    code: &'static str,
    words: &'static [&'static str],
}

fn assert_noticed(change: &Change) {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, change.stem);
        assert_noticed_of(change, &outbox, &outbox.relay());
    }
}

fn assert_noticed_of(change: &Change, outbox: &Outbox, relay: &Relay) {
    outbox.write();
    let mut running = relay.start(&["run", "--output", "json"]);
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("caught up");
    face.wait_ready(200);
    outbox.database.sql().run(change.sql);
    let changed = Instant::now();
    let outcome = running.outcome();
    let after = changed.elapsed();
    judge(&outcome, change.exit).assert(change.code, change.words);
    assert!(after < NOTICED, "{}: noticed after {after:?}", change.stem);
    assert!(!face.answers(), "it is not ready any more");
}

/// Whoever may not see what is published cannot notice anything of the above.
#[test]
fn g1_a_source_that_may_not_be_looked_at_any_more_is_noticed() {
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, "unseen");
        let source = outbox.database.create_role(&unique("unseen"), "REPLICATION");
        outbox.write();
        let relay = outbox.relay().set("source.url", &source.url());
        let mut running = relay.start(&["run", "--output", "json"]);
        running.wait_for_log("caught up");
        outbox.run("REVOKE SELECT ON pg_catalog.pg_publication FROM PUBLIC");
        judge(&running.outcome(), 77).assert("PR-P021", &["permission denied", "pg_publication"]);
    }
}

#[test]
fn g1_a_row_filter_is_noticed() {
    assert_noticed(&Change {
        stem: "filtered",
        sql: "ALTER PUBLICATION postrider SET TABLE outbox WHERE (aggregate_type = 'invoice')",
        exit: 78,
        code: "PR-P037",
        words: &[
            "filters the rows of table public.outbox",
            "ADD TABLE \"public\".\"outbox\"",
            "re-send",
        ],
    });
}

#[test]
fn g1_a_column_list_is_noticed() {
    assert_noticed(&Change {
        stem: "hidden",
        sql: "ALTER PUBLICATION postrider \
              SET TABLE outbox (id, aggregate_type, aggregate_id, event_type)",
        exit: 78,
        code: "PR-P038",
        words: &["hides column payload of table public.outbox", "re-send"],
    });
}

#[test]
fn g1_a_publication_that_loses_inserts_is_noticed() {
    assert_noticed(&Change {
        stem: "insertless",
        sql: "ALTER PUBLICATION postrider SET (publish = 'update')",
        exit: 78,
        code: "PR-P035",
        words: &["does not publish inserts", "SET (publish = 'insert');", "re-send"],
    });
}

#[test]
fn g1_a_table_dropped_and_made_again_is_noticed() {
    assert_noticed(&Change {
        stem: "remade",
        sql: "CREATE TABLE fresh (LIKE outbox INCLUDING ALL); DROP TABLE outbox; \
              ALTER TABLE fresh RENAME TO outbox; ALTER PUBLICATION postrider ADD TABLE outbox",
        exit: 70,
        code: "PR-P049",
        words: &["table public.outbox is not the one", "postrider setup", "re-send"],
    });
}

#[test]
fn g1_a_table_swapped_by_renaming_is_noticed() {
    assert_noticed(&Change {
        stem: "exchanged",
        sql: "CREATE TABLE fresh (LIKE outbox INCLUDING ALL); \
              ALTER PUBLICATION postrider ADD TABLE fresh; \
              ALTER TABLE outbox RENAME TO old; ALTER TABLE fresh RENAME TO outbox",
        exit: 70,
        code: "PR-P049",
        words: &["table public.outbox is not the one", "re-send"],
    });
}

#[test]
fn g1_a_table_out_of_the_publication_for_a_moment_is_noticed() {
    assert_noticed(&Change {
        stem: "readmitted",
        sql: "ALTER PUBLICATION postrider DROP TABLE outbox; \
              ALTER PUBLICATION postrider ADD TABLE outbox",
        exit: 70,
        code: "PR-P067",
        words: &["table public.outbox was taken out of publication `postrider`", "re-send"],
    });
}

#[test]
fn g1_a_publication_dropped_and_made_again_is_noticed() {
    assert_noticed(&Change {
        stem: "republished",
        sql: "DROP PUBLICATION postrider; \
              CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')",
        exit: 70,
        code: "PR-P048",
        words: &["publication `postrider` is not the one", "re-send"],
    });
}

/// Such a table has no entry of its own in the publication.
#[test]
fn g1_a_schema_out_of_the_publication_for_a_moment_is_noticed() {
    let change = Change {
        stem: "schema",
        sql: "ALTER PUBLICATION postrider DROP TABLES IN SCHEMA sales; \
              ALTER PUBLICATION postrider ADD TABLES IN SCHEMA sales",
        exit: 70,
        code: "PR-P067",
        words: &["table sales.outbox was taken out of publication `postrider`", "re-send"],
    };
    for cluster in postgres::versions() {
        let outbox = Outbox::ready(cluster, change.stem);
        let table = outbox.database.publish_schema();
        assert_noticed_of(&change, &outbox, &outbox.relay().set("source.tables", table));
    }
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
