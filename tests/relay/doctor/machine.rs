//! The configuration, and the machine that the relay runs on.

use std::net::TcpListener;

use super::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;
use support::relay::Relay;

fn relay(stage: &Stage) -> Relay {
    stage.relay()
}

#[test]
fn a_configuration_that_is_wrong_is_a_finding_for_each_mistake() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "doctor_config");
    let wrong = relay(&stage).set("kafka.delivery", "sometimes").set("retry.max", "soon");
    let report = Report::of(&wrong);
    assert_eq!(report.wrong(), ["config.valid", "config.valid"]);
    assert_eq!((report.status("config.others"), report.exit), ("unknown", Some(1)));
}

/// What made the selected checks impossible is shown with them, and counts.
#[test]
fn a_selection_is_not_green_because_nothing_could_be_asked() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "doctor_only");
    let only = ["--only", "slot.lag"];
    let wrong = relay(&stage).set("retry.max", "soon");
    let report = Report::asked(&wrong, &only);
    assert_eq!((report.wrong(), report.exit), (vec!["config.valid"], Some(1)));
    let closed = relay(&stage).set("source.url", "postgres://a@127.0.0.1:1/x");
    let report = Report::asked(&closed, &only);
    assert_eq!((report.wrong(), report.exit), (vec!["postgres.reachable"], Some(1)));
    let report = Report::asked(&relay(&stage), &only);
    assert_eq!((report.wrong(), report.exit), (vec!["slot.exists"], Some(1)));
    let silent = relay(&stage).set("kafka.brokers", "127.0.0.1:1");
    let report = Report::asked(&silent, &["--only", "topic"]);
    assert_eq!((report.wrong(), report.exit), (vec!["kafka.reachable"], Some(1)));
    let refused = relay(&stage).start(&["doctor", "--only", "slott"]).outcome();
    let said = refused.log.join("\n");
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("`slott`") && said.contains("slot.lag"), "{said}");
}

#[test]
fn a_machine_with_narrow_limits_is_told() {
    let broker = Broker::embedded();
    let stage = Stage::migrated(postgres::installed(), &broker.bootstrap(), "doctor_machine");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let narrow = relay(&stage)
        .after("ulimit -n 256")
        .set("http.bind", &taken.local_addr().unwrap().to_string())
        .set("shutdown.grace", "5m");
    let report = Report::of(&narrow);
    report.demands("host.descriptors", "warn", "ulimit -n 1024");
    report.demands("http.port", "warn", "http.bind");
    report.demands("config.grace", "warn", "terminationGracePeriodSeconds above 300");
    let report = Report::asked(&narrow, &["--only", "host", "--deny-warnings"]);
    assert!(report.wrong().iter().all(|id| id.starts_with("host")), "{:?}", report.wrong());
    assert_eq!(report.exit, Some(1));
    let words = ["--only", "host", "--deny-warnings", "--allow", "host"];
    let known = Report::asked(&narrow, &words);
    assert_eq!((known.status("host.descriptors"), known.exit), ("warn", Some(0)));
}
