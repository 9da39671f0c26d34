//! A standby that becomes the primary under a live stream.

use std::collections::BTreeSet;

use postrider::sandbox::postgres::Stop;

use crate::relay::stage::Stage;
use crate::support::{kafka, postgres, topic, wait_for};

const ROWS: usize = 100;

/// The stream lives on, on another timeline: the relay begins a session anew, and nothing is lost.
#[test]
fn g1_g6_a_standby_promoted_under_the_stream_costs_a_session_and_no_row() {
    let Some(options) = postgres::eighteen_options() else { return };
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let mut cluster = postgres::start(&options);
        let stage = Stage::new(&cluster, &kafka.bootstrap(), "promoted");
        topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
        let relay = stage.relay().set("kafka.delivery", delivery);
        stage.insert("A", ROWS);
        relay.run_once();
        // Some rows wait for a relay that reads from the standby.
        stage.insert("A", ROWS);
        cluster.stop(Stop::Fast).unwrap();
        std::fs::write(cluster.folder().join("data/standby.signal"), "").unwrap();
        cluster.start_again().unwrap();
        let mut running = relay.expect_log("promoted").run();
        running.wait_for_log("\"streaming\"");
        stage.wait_for_records(2 * ROWS);
        let process = stage.slot_value("active_pid");
        assert_eq!(stage.sql().value("SELECT pg_promote()"), "t");
        // The walsender is the same: nothing but a look tells.
        assert_eq!(stage.slot_value("active_pid"), process);
        stage.insert("A", ROWS);
        running.wait_for_log("promoted");
        running.wait_for_log("\"streaming\"");
        stage.insert("A", ROWS);
        wait_for("every row", || (ids(&stage).0 == 4 * ROWS).then_some(()));
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        let (distinct, all) = ids(&stage);
        assert_eq!(distinct, 4 * ROWS, "{delivery}");
        assert!(delivery == "at_least_once" || all == distinct, "{delivery}: {all}");
    }
}

/// How many rows were delivered, and how many records.
fn ids(stage: &Stage) -> (usize, usize) {
    let records = stage.records();
    let ids: BTreeSet<_> = records.iter().filter_map(|one| one.header("id")).collect();
    (ids.len(), records.len())
}
