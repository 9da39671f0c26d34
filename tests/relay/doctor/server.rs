//! Servers whose settings, roles or access rules stop a relay.

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

#[test]
fn a_closed_port_is_told() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "doctor_login");
    let closed = stage.relay().set("source.url", "postgres://nobody_of_that_name@127.0.0.1:1/x");
    let report = Report::of(&closed);
    assert_eq!(report.status("postgres.reachable"), "fail");
    assert_eq!(report.status("postgres.others"), "unknown");
    assert_eq!(report.status("kafka.reachable"), "pass");
}
