//! What Postgres tells nobody: the table or the publication changes while the relay runs, and rows
//! are silently not sent any more. The relay notices within ten seconds, is not ready, and ends.

use std::time::{Duration, Instant};

use super::attempt::judge;
use super::outbox::Outbox;
use crate::relay::face::Face;
use crate::support::{postgres, unique};

/// From the change to the end of the relay.
const NOTICED: Duration = Duration::from_secs(10);

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
        outbox.write();
        let mut running = outbox.relay().start(&["run", "--output", "json"]);
        let face = Face::of(&mut running);
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
