//! What the relay says of a database that it can work with, but that should be fixed.

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

#[test]
fn what_merely_harms_is_warned_of_once_in_a_process() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "remarks");
    stage.sql().run("ALTER PUBLICATION postrider SET (publish = 'insert, update')");
    let mut running = stage.relay().run();
    running.wait_for_log("\"streaming\"");
    let session = format!("SELECT pg_terminate_backend({})", stage.slot_value("active_pid"));
    stage.sql().run(&session);
    running.wait_for_log("trying again");
    running.wait_for_log("\"streaming\"");
    running.signal(rustix::process::Signal::TERM);
    let outcome = running.outcome();
    assert!(outcome.status.success(), "{:?}", outcome.status);
    let lines: Vec<_> = outcome
        .log
        .iter()
        .filter(|line| line.contains("publishes UPDATE, DELETE or TRUNCATE"))
        .collect();
    let [line] = lines.as_slice() else { panic!("{:?}", outcome.log) };
    assert!(line.contains("\"WARN\""), "{line}");
    assert!(line.contains("SET (publish = 'insert');"), "{line}");
}
