//! A slot that keeps a change which no session gets past, though every check of the catalogs passes.

use postrider::sandbox::postgres::Cluster;
use support::postgres::{self, Database};
use support::{kafka, topic};

use super::{
    Mode, assert_each_once, assert_not_needed, begin, free, plan, refused, relay, repair,
    wait_passed,
};
use crate::doctor::Report;
use crate::stage::Stage;
use crate::tables::{insert_in_time, json};

/// How the publication is away, and how it comes back.
const WAYS: [(&str, &str); 2] = [
    (
        "DROP PUBLICATION postrider",
        "CREATE PUBLICATION postrider FOR TABLE outbox \
         WITH (publish = 'insert', publish_via_partition_root = true)",
    ),
    (
        "ALTER PUBLICATION postrider RENAME TO elsewhere",
        "ALTER PUBLICATION elsewhere RENAME TO postrider",
    ),
];

fn stage_on(cluster: &Cluster, bootstrap: &str) -> Stage {
    with_topics(Stage::migrated(cluster, bootstrap, "away"))
}

fn with_topics(stage: Stage) -> Stage {
    for name in ["A", "dead-letters"] {
        topic::create(stage.bootstrap(), &stage.topic(name), 3, &[]);
    }
    stage
}

/// 30 rows are delivered, 20 can be read, 50 are written while the publication is away, 39 after that.
#[test]
fn g6_rows_of_a_publication_that_was_away_arrive_by_a_repair() {
    let Some(kafka) = kafka::shared() else { return };
    for cluster in postgres::versions() {
        for (way, (leave, come_back)) in WAYS.into_iter().enumerate() {
            for mode in [Mode::Once, Mode::Plain] {
                eprintln!("{} {leave} {mode:?}", cluster.version());
                let stage = stage_on(cluster, &kafka.bootstrap());
                let oracle = stage.oracle();
                let relay = relay(&stage, mode);
                begin(&stage, &relay);
                insert_in_time(&stage, "A", 30);
                relay.run_once();
                insert_in_time(&stage, "A", 20);
                stage.sql().run(leave);
                insert_in_time(&stage, "A", 50);
                stage.sql().run(come_back);
                insert_in_time(&stage, "A", 39);
                free(&stage);
                let ended = relay.clone().allow_log("").start(&["run", "--once"]).outcome();
                let log = ended.log.concat();
                assert_eq!(ended.status.code(), Some(70), "{log}");
                // Progress names the publication that was replaced.
                let is_replaced = mode == Mode::Once && way == 0 && log.contains("PR-P048");
                assert!(is_replaced || log.contains("PR-P010"), "{log}");
                assert!(log.contains("postrider repair --execute"), "{log}");
                assert!(!log.contains("pg_drop_replication_slot"), "{log}");
                free(&stage);
                // PostgreSQL 15 may end the stream before the relay has begun to read it.
                let delivered = stage.records().len();
                let is_read = cluster.version() >= 18 && !is_replaced;
                let expected = if is_read { 50..=50 } else { 30..=50 };
                assert!(expected.contains(&delivered), "{delivered}");
                let report = Report::asked(&relay, &["--only", "slot.readable"]);
                report.demands("slot.readable", "fail", "postrider repair");
                assert_eq!(report.code("slot.readable"), "PR-P010");
                let at = stage.slot_value("confirmed_flush_lsn");
                let planned = plan(&relay, &[]);
                assert_eq!(planned["slot"]["is"], "unreadable", "{planned}");
                assert_eq!(planned["missing"], 139 - delivered, "{planned}");
                assert!(planned["action"].as_str().unwrap().contains("--drop-slot"), "{planned}");
                let kept = refused(&relay, &["repair", "--execute"], 70, "PR-P107").log.concat();
                assert!(kept.contains("`postrider repair --execute --drop-slot`"), "{kept}");
                assert!(kept.contains("are lost"), "{kept}");
                free(&stage);
                assert_eq!(stage.slot_value("confirmed_flush_lsn"), at, "the slot stays");
                let done = repair(&relay.clone().allow_log("cannot be decoded past"), &[]);
                assert_eq!(done["finished"], true, "{done}");
                assert_eq!(done["summary"]["confirmed"], 139 - delivered, "{done}");
                insert_in_time(&stage, "A", 5);
                relay.run_once();
                assert_each_once(&stage, &["outbox"]);
                stage.verdict(&oracle, &[]).assert_exactly_once();
                free(&stage);
                assert_eq!(Report::asked(&relay, &["--only", "slot.readable"]).wrong(), [""; 0]);
                if mode == Mode::Once {
                    assert_not_needed(&relay);
                }
            }
        }
    }
}

/// PostgreSQL passes over rows of a table that is not published, without a word. The refusal names the whole way.
#[test]
fn g6_rows_of_a_table_that_was_unpublished_arrive_by_a_repair() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = stage_on(postgres::installed(), &kafka.bootstrap());
    let relay = relay(&stage, Mode::Once);
    begin(&stage, &relay);
    insert_in_time(&stage, "A", 30);
    relay.run_once();
    stage.sql().run("ALTER PUBLICATION postrider DROP TABLE outbox");
    insert_in_time(&stage, "A", 20);
    stage.sql().run("ALTER PUBLICATION postrider ADD TABLE outbox");
    insert_in_time(&stage, "A", 10);
    free(&stage);
    let log = refused(&relay, &["run", "--once"], 70, "PR-P067").log.concat();
    let at = |words: &str| log.find(words).unwrap_or_else(|| panic!("{words}: {log}"));
    assert!(at("adopt --execute") < at("start the relay"));
    assert!(at("start the relay") < at("repair --execute"));
    let log = refused(&relay, &["repair", "--execute"], 70, "PR-P106").log.concat();
    assert!(log.contains("adopt --execute"), "{log}");
    free(&stage);
    let adopted = relay.clone().allow_log("").start(&["adopt", "--execute"]).outcome();
    assert!(adopted.status.success(), "{adopted:?}");
    free(&stage);
    relay.run_once();
    free(&stage);
    wait_passed(&stage);
    let relay = relay.allow_log("");
    let done = json(&relay, &["repair", "--execute"]);
    assert_eq!((&done["finished"], &done["summary"]["confirmed"]), (&true.into(), &20.into()));
    relay.run_once();
    assert_each_once(&stage, &["outbox"]);
}

/// The slot is dropped only if the tables can be read.
#[test]
fn g6_a_row_that_postgres_cannot_convert_is_moved_away_and_the_others_arrive() {
    let Some(kafka) = kafka::shared() else { return };
    for cluster in postgres::versions() {
        let database = Database::encoded(cluster, "unsendable", "EUC_JP");
        let stage = with_topics(Stage::before(database, &kafka.bootstrap()));
        let relay = relay(&stage, Mode::Plain);
        begin(&stage, &relay);
        insert_in_time(&stage, "A", 10);
        relay.run_once();
        stage.sql().run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) \
             VALUES ('t', convert_from('\\xa9a1', 'EUC_JP'), 'A')",
        );
        insert_in_time(&stage, "A", 5);
        free(&stage);
        let at = stage.slot_value("confirmed_flush_lsn");
        let execute = &["repair", "--execute", "--drop-slot"][..];
        for command in [&["run", "--once"][..], &["repair"], execute] {
            refused(&relay, command, 78, "PR-P022");
            free(&stage);
        }
        assert_eq!(stage.slot_value("confirmed_flush_lsn"), at, "the slot stays");
        stage
            .sql()
            .run("DELETE FROM outbox WHERE aggregate_id = convert_from('\\xa9a1', 'EUC_JP')");
        let done = repair(&relay.clone().allow_log("cannot be decoded past"), &[]);
        assert_eq!((&done["finished"], &done["summary"]["confirmed"]), (&true.into(), &5.into()));
        insert_in_time(&stage, "A", 5);
        relay.run_once();
        assert_each_once(&stage, &["outbox"]);
    }
}
