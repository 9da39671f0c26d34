//! Spans of delivered rows, at an OpenTelemetry collector.

use std::net::TcpListener;

use rdkafka::mocking::MockCluster;

use crate::stage::Stage;
use support::otlp::Collector;
use support::relay_http::RelayHttp;
use support::secured::{authority, issue};
use support::wait::wait_until;
use support::{postgres, wait_for};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const CONFIRMED: &str = "postrider_records_confirmed_total";

/// Commits so many rows of one trace to `topic` in one transaction.
fn insert(stage: &Stage, topic: &str, flags: &str, count: usize) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, traceparent) \
         SELECT 't', 'planted-key-' || n, '{topic}', jsonb_build_object('planted', n), \
                '00-{TRACE}-{PARENT}-{flags}' FROM generate_series(1, {count}) AS n"
    ));
}

fn exported(count: u64, face: &RelayHttp) {
    face.wait_count("postrider_spans_total{result=\"exported\"}", count);
}

#[test]
fn each_sampled_row_has_a_span_from_its_commit_to_its_confirmation() {
    for delivery in ["at_least_once", "exactly_once"] {
        let collector = Collector::start();
        let mock = MockCluster::new(1).unwrap();
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "traces");
        let relay = stage.relay().set("kafka.delivery", delivery);
        let relay = relay.set("traces.endpoint", &collector.endpoint());
        let relay = relay.set("route.headers", "event_type:eventType");
        let relay = relay.variable("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20planted");
        let mut running = relay.expect_log("became a dead letter").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        stage.insert("A", 3);
        insert(&stage, "A", "00", 3);
        insert(&stage, "A", "01", 20);
        insert(&stage, "not a topic", "01", 1);
        face.wait_count(CONFIRMED, 27);
        exported(21, &face);

        let spans = collector.spans();
        assert_eq!(spans.len(), 21);
        // Each is where a record of the trace is, and none is named twice.
        let mut places = Vec::new();
        for span in &spans {
            assert_eq!((span.trace_id.as_str(), span.parent_span_id.as_str()), (TRACE, PARENT));
            assert_eq!((span.kind, span.service.as_str()), (4, "postrider"));
            assert!(span.start_ns <= span.end_ns && span.start_ns > 1_700_000_000_000_000_000);
            let of = |name: &str| span.attributes[name].clone();
            assert_eq!(span.name, format!("send {}", of("messaging.destination.name")));
            assert!(of("postrider.lsn").contains('/'), "{span:?}");
            let partition: i32 = of("messaging.destination.partition.id").parse().unwrap();
            let offset: i64 = of("messaging.kafka.offset").parse().unwrap();
            places.push((of("messaging.destination.name"), partition, offset));
            let is_letter = of("messaging.destination.name") == stage.topic("dead-letters");
            assert_eq!(span.status, if is_letter { 2 } else { 0 }, "{span:?}");
            let error = span.attributes.get("error.type").map(String::as_str);
            assert_eq!(error, is_letter.then_some("invalid_topic"), "{span:?}");
        }
        let sampled = format!("00-{TRACE}-{PARENT}-01");
        let records = stage.records();
        let mut expected: Vec<_> = records
            .iter()
            .filter(|record| record.header("traceparent") == Some(sampled.as_str()))
            .map(|record| (record.topic.clone(), record.partition, record.offset))
            .collect();
        places.sort();
        expected.sort();
        assert_eq!(places, expected);
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
        assert_eq!(ids.len(), 21);
        let kinds = spans.iter().filter_map(|span| span.attributes.get("postrider.event_type"));
        assert_eq!(kinds.filter(|kind| *kind == "A").count(), 20);

        for (head, body) in collector.requests() {
            assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            assert!(head.contains("authorization: bearer planted"), "{head}");
            let body = String::from_utf8_lossy(&body);
            assert!(!body.contains("planted"), "no key, no payload, no secret: {body}");
        }
        for path in ["/metrics", "/readyz"] {
            assert!(!face.get(path).1.contains("planted"));
        }
        running.stop();
    }
}

#[test]
fn a_collector_that_is_away_or_silent_delays_no_row_and_spans_are_counted() {
    let mock = MockCluster::new(1).unwrap();
    // One takes connections and never answers, at the other's address nobody listens.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, timeout) in [(silent.local_addr().unwrap(), "100"), (away, "10000")] {
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "traces_away");
        let relay = stage.relay().set("traces.max_per_second", "50");
        let relay = relay.variable("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"));
        let relay = relay.variable("OTEL_EXPORTER_OTLP_TIMEOUT", timeout);
        let mut running = relay.expect_log("accepts no spans").run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        insert(&stage, "A", "01", 5_000);
        face.wait_count(CONFIRMED, 5_000);
        let counts = ["failed", "rate_limited", "queue_full", "exported"];
        let count = |result: &str| {
            face.count(&format!("postrider_spans_total{{result=\"{result}\"}}")).unwrap()
        };
        // Each row is accounted for.
        let counted = || counts.iter().map(|result| count(result)).sum::<u64>() == 5_000;
        wait_for("all rows to be counted", || counted().then_some(()));
        assert!(count("failed") >= 50 && count("rate_limited") > 0);
        assert_eq!(count("exported"), 0);
        running.stop();
    }
}

/// A row may have anything where the type of its event is looked for: while a collector is away, thousands of rows wait.
#[test]
fn g3_a_long_type_is_cut_in_the_span() {
    let collector = Collector::start();
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "traces_long");
    let relay = stage.relay().set("traces.endpoint", &collector.endpoint());
    let mut running = relay.set("route.headers", "payload:eventType").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, traceparent) \
         VALUES ('t', 'k', 'A', to_jsonb(repeat('é', 100000)), '00-{TRACE}-{PARENT}-01')"
    ));
    exported(1, &face);
    let spans = collector.spans();
    let kind = &spans[0].attributes["postrider.event_type"];
    assert!((190..=200).contains(&kind.len()) && kind.ends_with('é'), "{}", kind.len());
    running.stop();
}

/// By an authority of the operator's own, which `SSL_CERT_FILE` names; with another one rows are delivered all the same.
#[test]
fn an_encrypted_collector_is_known_by_its_authority() {
    let mock = MockCluster::new(1).unwrap();
    let (own, stranger) = (authority("collectors"), authority("somebody else"));
    let (certificate, key) = issue(&own, "collector", &["localhost"]);
    let collector = Collector::start_encrypted(&certificate, &key);
    let folder = tempfile::tempdir().unwrap();
    for (authority, result) in [(&own, "exported"), (&stranger, "failed")] {
        let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "traces_tls");
        let file = folder.path().join(result);
        std::fs::write(&file, authority.pem()).unwrap();
        let relay = stage.relay().set("traces.endpoint", &collector.endpoint());
        let relay = relay.variable("SSL_CERT_FILE", file.to_str().unwrap());
        let relay = if result == "failed" { relay.expect_log("accepts no spans") } else { relay };
        let mut running = relay.run();
        let face = RelayHttp::of(&mut running);
        face.wait_ready(200);
        let before = collector.spans().len();
        insert(&stage, "A", "01", 20);
        face.wait_count(CONFIRMED, 20);
        face.wait_count(&format!("postrider_spans_total{{result=\"{result}\"}}"), 20);
        let came = collector.spans().len() - before;
        assert_eq!(came, if result == "exported" { 20 } else { 0 });
        // The collector notices a handshake that was broken off a moment after the relay.
        wait_until("what the collector has seen", || {
            (collector.refused() > 0) == (result == "failed")
        });
        assert_eq!(stage.records().len(), 20);
        running.stop();
    }
}

#[test]
fn without_a_collector_nothing_is_traced() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "traces_off");
    let mut running = stage.relay().run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    insert(&stage, "A", "01", 5);
    face.wait_count(CONFIRMED, 5);
    assert!(!face.get("/metrics").1.contains("postrider_spans_total"));
    running.stop();
}
