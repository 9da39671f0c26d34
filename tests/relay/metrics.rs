//! The metrics page of a running relay, as Prometheus reads it: by its own linter, and with exemplars.

use rdkafka::mocking::MockCluster;

use crate::stage::Stage;
use support::relay_http::RelayHttp;
use support::{postgres, promtool, wait_for};

const ACCEPT: &str =
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Commits a row with this `traceparent`.
fn insert(stage: &Stage, traceparent: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, traceparent) \
         VALUES ('t', '1', 'A', '{{}}', '{traceparent}')"
    ));
}

#[test]
fn the_page_is_clean_and_latencies_name_a_trace_that_is_kept() {
    for delivery in ["at_least_once", "exactly_once"] {
        let mock = MockCluster::new(1).unwrap();
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "metrics");
        let relay = stage.relay().set("kafka.delivery", delivery);
        let mut running = relay.expect_log("became a dead letter").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        stage.insert("A", 10);
        stage.insert("not a topic", 1);
        // A trace that nobody keeps, and what is none, are no exemplars.
        insert(&stage, &format!("00-5{}-00f067aa0ba902b7-00", &TRACE[1..]));
        insert(&stage, "a trace");
        face.wait_count("postrider_records_confirmed_total", 13);
        let (_, before) = face.ask("/metrics", &[("accept", ACCEPT)]);
        assert!(!before.contains("trace_id"), "{before}");

        insert(&stage, &format!("00-{TRACE}-00f067aa0ba902b7-01"));
        let line = wait_for("an exemplar", || {
            let (head, page) = face.ask("/metrics", &[("accept", ACCEPT)]);
            assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
            assert!(page.ends_with("\n# EOF\n"), "{page}");
            page.lines().find(|line| line.contains("trace_id")).map(str::to_owned)
        });
        // `name{le="bound"} count # {trace_id=".."} seconds time`
        let (bucket, exemplar) = line.split_once(" # ").unwrap();
        let bound = bucket.split('"').nth(1).unwrap().replace("+Inf", "inf");
        assert!(bucket.starts_with("postrider_commit_to_confirm_seconds_bucket{le="), "{line}");
        let rest = exemplar.strip_prefix(&format!("{{trace_id=\"{TRACE}\"}} ")).unwrap();
        let numbers: Vec<f64> = rest.split(' ').map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] <= bound.parse::<f64>().unwrap(), "{line}");
        assert!(numbers[1] > 1.7e9, "{line}");

        let (head, page) = face.ask("/metrics", &[]);
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        promtool::check_metrics(&page);
        running.stop();
    }
}
