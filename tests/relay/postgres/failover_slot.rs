//! Slots that standbys copy: from PostgreSQL 17 on every slot that Postrider makes is one.

use crate::stage::Stage;
use crate::tables::json;
use support::relay::Relay;
use support::wait::wait_until;
use support::{kafka, postgres, topic};

/// Whether standbys copy the slot; empty before PostgreSQL 17.
fn follows(stage: &Stage) -> String {
    let of = "coalesce(to_jsonb(pg_replication_slots)->>'failover', '')";
    stage.slot_value(of)
}

fn drop_slot(stage: &Stage) {
    stage.sql().run(&format!("SELECT pg_drop_replication_slot('{}')", stage.slot()));
}

/// Succeeds as soon as no other test has a write transaction open for ten seconds on the same server.
fn succeeds(relay: &Relay, arguments: &[&str]) {
    wait_until("a slot that can be created", || {
        let outcome = relay.start(arguments).outcome();
        let is_done = outcome.status.success();
        let is_held = outcome.log.iter().any(|line| line.contains("\"PR-P042\""));
        assert!(is_done || is_held, "{arguments:?}: {:?}", outcome.log);
        is_done
    });
}

#[test]
fn a_slot_that_is_made_follows_a_failover_unless_that_is_turned_off() {
    let Some(kafka) = kafka::shared() else { return };
    for cluster in postgres::versions() {
        let stage = Stage::empty(cluster, &kafka.bootstrap(), "follows");
        for (asked, follow) in [("true", "true"), ("false", "false")] {
            let expected = if cluster.version() < 17 { "" } else { follow };
            let relay = stage.relay().set("source.failover", asked);
            succeeds(&relay, &["setup"]);
            assert_eq!(follows(&stage), expected, "setup");
            drop_slot(&stage);
            let printed = relay.start(&["setup", "--print"]).outcome().stdout;
            // As psql does: a slot is not made in a transaction that has written.
            let sql = stage.sql();
            for part in printed.split_inclusive("$$;\n").filter(|part| part.contains("slot")) {
                sql.run(part);
            }
            assert_eq!(follows(&stage), expected, "{printed}");
            drop_slot(&stage);
            relay.creates_slot().allow_log("created slot").run_once();
            assert_eq!(follows(&stage), expected, "run");
            drop_slot(&stage);
        }
    }
}

/// A copy of a slot does not follow by itself, and a temporary one never does.
#[test]
fn a_slot_made_by_backfill_or_anew_by_repair_follows_a_failover() {
    let (Some(kafka), Some(cluster)) = (kafka::shared(), postgres::eighteen()) else { return };
    for asked in ["true", "false"] {
        let stage = Stage::migrated(cluster, &kafka.bootstrap(), "follows");
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 1, &[]);
        }
        let relay = stage.relay().set("kafka.delivery", "exactly_once").unprepared();
        let relay = relay.set("source.failover", asked);
        stage.insert("A", 3);
        assert_eq!(json(&relay, &["backfill", "--execute"])["finished"], true);
        assert_eq!(follows(&stage), asked, "backfill");
        stage.insert("A", 3);
        let slot = stage.slot();
        stage
            .sql()
            .run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"));
        assert_eq!(json(&relay, &["repair", "--execute"])["finished"], true);
        assert_eq!(stage.records().len(), 6);
        assert_eq!(follows(&stage), asked, "repair");
    }
}
