//! What a backlog that is read in windows must show as a stream would.

use super::backlog::make_noise;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

/// PostgreSQL 18 passes such rows over with a warning, earlier versions end the window with an error.
#[test]
fn g4_rows_of_a_publication_that_was_missing_are_not_passed_over_in_windows() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        let stage = Stage::new(cluster, &broker.bootstrap(), "gone");
        stage.sql().run("DROP PUBLICATION postrider");
        stage.insert("A", 1);
        stage.sql().run("CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')");
        make_noise(&stage, 80);
        let before = stage.slot_value("confirmed_flush_lsn");
        let mut running = stage.relay().allow_log("").run();
        let said = running.wait_for_any(&["PR-P010", "caught up"]);
        assert!(said.contains("PR-P010"), "{said}");
        assert_eq!(running.wait().code(), Some(70));
        assert_eq!(stage.slot_value("confirmed_flush_lsn"), before, "nothing is acknowledged");
    }
}
