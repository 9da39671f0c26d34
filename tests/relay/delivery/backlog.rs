//! A log that has grown long before the relay comes.

use crate::load::Load;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

#[test]
fn a_backlog_is_worked_off_in_a_session_of_its_own() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "backlog");
    let oracle = stage.oracle();
    let tap = stage.tap();
    let relay = stage.relay_at(&tap.address());
    relay.run_once();
    stage.insert("A", 5_000);
    // Another table fills the log: the embedded broker keeps no more than 5 MB per partition.
    stage.sql().run(
        "CREATE TABLE noise AS SELECT (SELECT string_agg(md5(n::text || m), '') \
            FROM generate_series(1, 50) AS m) FROM generate_series(1, 45000) AS n",
    );
    stage.insert("A", 5_000);
    let load = Load::start(&stage, &[(300, 1), (300, 20)]);
    let mut running = relay.run();
    let first = running.wait_for_log("\"streaming\"");
    assert!(first.contains("\"mode\":\"backlog\""), "{first}");
    let second = running.wait_for_log("\"streaming\"");
    assert!(!second.contains("\"mode\""), "{second}");
    load.stop();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
}
