//! Publication, tables and slot in all ways in which they are wrong.

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

#[test]
fn rows_that_would_be_dead_letters_are_told_before_they_are() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_rows");
    assert_eq!(Report::of(&stage.relay()).status("rows.deliverable"), "unknown", "no row");
    stage.insert("A", 3);
    assert_eq!(Report::of(&stage.relay()).status("rows.deliverable"), "pass");
    stage.insert("not a topic", 2);
    let report = Report::of(&stage.relay());
    report.demands("rows.deliverable", "warn", "postrider route --from-database");
    let finding = report.find("rows.deliverable")["finding"].as_str().unwrap().to_owned();
    assert!(finding.starts_with("2 of the newest 5 rows"), "{finding}");
}

#[test]
fn nothing_is_written_and_a_relay_runs_on() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_beside");
    let mut running = stage.relay().run();
    running.wait_for_log("streaming");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    let before = (stage.acknowledged(), stage.slot_value("active_pid"));
    let report = Report::of(&stage.relay());
    assert_eq!(
        (report.status("slot.reader"), report.exit),
        ("pass", Some(0)),
        "{:?}",
        report.wrong()
    );
    assert_eq!(stage.slot_value("active_pid"), before.1);
    assert!(stage.acknowledged() >= before.0);
    assert_eq!(stage.records().len(), 10);
    running.stop();
}
