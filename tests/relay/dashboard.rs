//! The dashboard: what it says is what the metrics say, in a browser as a person has it, in three widths and two themes; and
//! who gets nothing. The states are streaming, catching up, standby, broker outage, dead letters, and a failed stream of several.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use postrider::sandbox::postgres::{Options, Stop};
use rdkafka::mocking::MockCluster;
use serde_json::Value;

use crate::delivery::idle::ALL;
use crate::operate::Desk;
use crate::stage::Stage;
use crate::streams::{drop_slot, file_of, relay as relay_of, stages, start};
use support::broker::take_down;
use support::relay_http::RelayHttp;
use support::skip::skip;
use support::wait::{let_pass, wait_until};
use support::{postgres, wait_for};

/// What a browser showed of the page at this path, with screenshots of that name; `None`: this machine has none.
fn looked_at(face: &RelayHttp, path: &str, (condition, name): (&str, &str)) -> Option<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools = root.join(".servers/ui");
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let browser: Option<PathBuf> =
        std::env::split_paths(&folders).map(|it| it.join("chromium")).find(|it| it.is_file());
    let (Some(browser), true) = (browser, tools.join("node_modules").is_dir()) else {
        skip("the dashboard in a browser", "needs chromium, and what tests/ui/fetch installs");
        return None;
    };
    let screens = tools.join("screens");
    std::fs::create_dir_all(&screens).unwrap();
    let output = Command::new("node")
        .arg(root.join("tests/ui/look.mjs"))
        .args([&tools, &browser])
        .args([&format!("http://{}{path}", face.address()), condition])
        .arg(screens.join(name))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    for faults in ["serious", "overflows", "uneven", "elsewhere", "said"] {
        assert_eq!(seen[faults], Value::Array(Vec::new()), "{faults}");
    }
    assert_eq!(seen["theme"], serde_json::json!(["dark", "dark"]), "it is not remembered");
    Some(seen)
}

/// The page of one stream.
fn looked(face: &RelayHttp, condition: &str, name: &str) -> Option<Value> {
    let seen = looked_at(face, "/", (condition, name))?;
    assert_eq!(seen["charts"], 4);
    assert_eq!(seen["focus"], serde_json::json!(["skip", "tail-filter"]));
    assert_eq!(seen["keys"], serde_json::json!(["true", "true"]));
    Some(seen)
}

fn shown<'a>(seen: &'a Value, id: &str) -> &'a str {
    seen["values"][id].as_str().unwrap_or_else(|| panic!("no {id} in {seen:#}"))
}

fn state(face: &RelayHttp) -> Value {
    serde_json::from_str(&face.get("/api/v1/state").1).unwrap()
}

/// As the page writes it.
fn number(number: i64) -> String {
    assert!(number < 1_000);
    number.to_string()
}

#[test]
fn a_relay_that_streams_shows_what_its_metrics_say() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_streams");
    let mut running = stage.relay().run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 12);
    stage.insert("B", 5);
    face.wait_count("postrider_records_confirmed_total", 17);
    face.wait_ready(200);
    wait_for("a sample of the slot", || state(&face)["slot"].is_array().then_some(()));
    let told = state(&face);
    assert_eq!(told["condition"], "streaming");
    for (name, metric) in [
        ("confirmed", "postrider_records_confirmed_total"),
        ("in_flight_records", "postrider_in_flight_records"),
        ("transactions_settled", "postrider_transactions_settled_total"),
    ] {
        // Two looks, between which a number may change.
        let is_told = || state(&face)["numbers"][name].as_u64() == face.count(metric);
        wait_until(&format!("{name} to be that of the metrics"), is_told);
    }
    let columns = told["slot"].as_array().unwrap();
    assert!(columns.contains(&serde_json::json!(["slot_name", stage.slot()])), "{columns:?}");
    if let Some(seen) = looked(&face, "streaming", "streaming") {
        assert_eq!(shown(&seen, "rate-note"), "17 total");
        assert_eq!(shown(&seen, "headline"), "Rows are delivered as they are committed");
        assert_eq!(shown(&seen, "database"), stage.slot(), "each stage has a database of its own");
        assert!(mock.bootstrap_servers().contains(shown(&seen, "brokers")));
        assert!(shown(&seen, "hosts").contains(':') || shown(&seen, "hosts").starts_with('/'));
        assert_eq!(shown(&seen, "dead_lettered"), number(0));
        assert_eq!(shown(&seen, "slot_name"), stage.slot());
        assert_eq!(shown(&seen, "cause"), "");
        for link in ["Postgres", "Slot", "Relay", "Kafka"] {
            assert!(!shown(&seen, &format!("chain-{link}")).is_empty());
        }
        let topic = &seen["tables"]["topics"][0];
        assert_eq!((&topic[0], &topic[2]), (&stage.topic("A").into(), &"12".into()));
        assert!(topic[4].as_str().unwrap().ends_with(" ago"), "{topic}");
        assert!(topic[5].as_str().unwrap().parse::<u32>().is_ok(), "{topic}");
    }
    running.stop();
}

#[test]
fn a_backlog_is_shown_while_it_is_delivered() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_backlog");
    for _ in 0..200 {
        stage.sql().run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 't', '1', 'A', to_jsonb(repeat('x', 100000))",
        );
    }
    let_pass(Duration::from_secs(6), "so old are the rows that the page calls it a backlog");
    mock.broker_round_trip_time(ALL, Duration::from_secs(1)).unwrap();
    let relay = stage.relay().set("kafka.max_in_flight", "1MiB").allow_log("cannot reach Kafka");
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    if let Some(seen) = looked(&face, "catching up", "catching-up") {
        assert_eq!(shown(&seen, "headline"), "The relay is catching up");
    }
    mock.broker_round_trip_time(ALL, Duration::ZERO).unwrap();
    face.wait_count("postrider_records_confirmed_total", 200);
    running.stop();
}

#[test]
fn a_broker_that_is_down_is_shown_with_the_cause() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_down");
    let mut running = stage.relay().allow_log("").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 3);
    face.wait_count("postrider_records_confirmed_total", 3);
    take_down(&mock, 1);
    stage.insert("A", 2);
    wait_for("the outage to be noticed", || {
        (state(&face)["status"]["headline"] == "No Kafka broker answers").then_some(())
    });
    assert_eq!(state(&face)["condition"], "not ready");
    if let Some(seen) = looked(&face, "not ready", "broker-down") {
        assert_eq!(shown(&seen, "headline"), "No Kafka broker answers");
        assert_eq!(shown(&seen, "cause"), format!("{} does not answer.", mock.bootstrap_servers()));
        assert_eq!(shown(&seen, "command"), "postrider doctor");
        assert_eq!(shown(&seen, "chain-Kafka"), "Kafkafails");
        assert_eq!(shown(&seen, "rate-note"), "3 total");
        assert_eq!(seen["tables"]["topics"][0][7], "not known", "no broker answers");
    }
    running.kill();
}

/// What waits is not known then, and the server is what failed.
#[test]
fn a_server_that_is_down_is_shown_with_the_cause() {
    // A cluster of its own: it is stopped.
    let mut cluster = postgres::start(&Options::default());
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "page_gone");
    let mut running = stage.relay().allow_log("").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 3);
    face.wait_count("postrider_records_confirmed_total", 3);
    cluster.stop(Stop::Fast).unwrap();
    let told = wait_for("the outage to be shown", || {
        let told = state(&face);
        (told["chain"][0]["is"] == "failed").then_some(told)
    });
    assert_eq!(told["status"]["headline"], "Reading from Postgres fails; the relay retries");
    let cause = told["status"]["cause"].as_str().unwrap();
    assert!(cause.contains("Nothing is lost: rows wait in Postgres."), "{cause}");
    assert_eq!(told["numbers"]["oldest_unacknowledged_seconds"], Value::Null);
    cluster.start_again().unwrap();
    face.wait_ready(200);
    wait_until("the link to be good again", || state(&face)["chain"][0]["is"] == "ok");
    running.stop();
}

#[test]
fn a_standby_says_that_another_relay_delivers() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_standby");
    let relay = stage.relay().allow_log("");
    let mut first = relay.run();
    RelayHttp::of(&mut first).wait_ready(200);
    let mut second = relay.run();
    let face = RelayHttp::of(&mut second);
    second.wait_for_log("standby:");
    if let Some(seen) = looked(&face, "standby", "standby") {
        assert_eq!(shown(&seen, "headline"), "Another relay delivers");
        assert_eq!(shown(&seen, "command"), "");
    }
    second.stop();
    first.stop();
}

#[test]
fn dead_letters_are_listed_with_reason_and_command() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_letters");
    let mut running = stage.relay().expect_log("became a dead letter").run();
    let face = RelayHttp::of(&mut running);
    stage.insert("not a topic", 4);
    stage.insert("A", 1);
    face.wait_count("postrider_records_confirmed_total", 5);
    face.wait_ready(200);
    let told = state(&face);
    let letter = &told["dead_letters"][0];
    let rows = stage.sql().rows("SELECT id FROM outbox WHERE event_type = 'not a topic'");
    let id = letter["id"].as_str().unwrap();
    assert!(rows.iter().any(|row| row[0].as_deref() == Some(id)), "{letter}");
    assert_eq!(letter["code"], "invalid_topic");
    assert_eq!(letter["command"], format!("postrider dead-letters show -- {id}"));
    assert_eq!((&letter["key"]["text"], &letter["payload"]["text"]), (&Value::Null, &Value::Null));
    if let Some(seen) = looked(&face, "streaming", "dead-letters") {
        assert_eq!(shown(&seen, "dead_lettered"), number(4));
        let letters = seen["tables"]["letters"].as_array().unwrap();
        assert_eq!(letters.len(), 4, "{letters:?}");
        assert!(letters[0][6].as_str().unwrap().starts_with("postrider dead-letters show -- "));
        let reasons = seen["tables"]["counts"].to_string();
        assert!(reasons.contains(r#"["Dead letter","invalid_topic","4"]"#), "{reasons}");
    }
    running.stop();
}

#[test]
fn several_streams_have_a_line_each_and_a_page_each() {
    let mock = MockCluster::new(1).unwrap();
    let streams = stages(postgres::installed(), &mock.bootstrap_servers(), &["kept", "lost"]);
    let [_, (_, lost)] = &streams[..] else { panic!("two") };
    let desk = Desk::new();
    desk.write(&file_of("", &streams));
    let mut running = start(&relay_of(&streams).allow_log(""), &desk.file(), &["run"]);
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    lost.insert("A", 3);
    lost.wait_for_records(3);
    drop_slot(lost);
    running.wait_for_log("this stream has failed");
    if let Some(seen) = looked_at(&face, "/", ("not ready", "streams")) {
        let rows = &seen["tables"]["streams"];
        assert_eq!((&rows[0][0], &rows[0][1]), (&"kept".into(), &"streaming".into()));
        assert_eq!((&rows[1][0], &rows[1][1]), (&"lost".into(), &"not ready".into()));
        assert_eq!(shown(&seen, "headline"), "1 of 2 streams not ready");
    }
    if let Some(seen) = looked_at(&face, "/?stream=lost", ("not ready", "failed")) {
        assert_eq!(shown(&seen, "stream"), "lost");
        assert_eq!(shown(&seen, "headline"), "Stopped by an error");
        let command = shown(&seen, "command");
        assert!(
            command.starts_with("postrider ") && command.ends_with(" --stream lost"),
            "{command}"
        );
        assert_eq!(seen["tables"]["topics"][0][2], "3");
    }
    running.kill();
}

#[test]
fn who_is_no_visitor_of_this_machine_gets_nothing_and_secrets_are_masked() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_guarded");
    let url = stage.database.address().url();
    let (_, login) = url.split_once("://").unwrap();
    let (_, password) = login.split_once('@').unwrap().0.split_once(':').unwrap();
    let relay = stage.relay().set("source.url", &url);
    let mut running = relay.property("sasl.password", "planted-secret").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let (head, page) = face.ask("/", &[]);
    assert!(head.starts_with("HTTP/1.1 200") && page.contains("<title>Postrider</title>"));
    let lower = head.to_ascii_lowercase();
    assert!(lower.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!lower.contains("access-control"), "{head}");
    for path in
        ["/", "/api/v1/state", "/api/v1/history", "/api/v1/tail", "/metrics", "/dashboard.js"]
    {
        let (_, body) = face.ask(path, &[]);
        assert!(!body.contains("planted-secret") && !body.contains(password), "{path}");
    }
    assert!(state(&face)["settings"].to_string().contains("source.slot"));
    let refused: [&[(&str, &str)]; 3] = [
        &[("host", "evil.example")],
        &[("origin", "http://evil.example")],
        &[("sec-fetch-site", "cross-site")],
    ];
    for headers in refused {
        let (head, body) = face.ask("/api/v1/state", headers);
        assert!(head.starts_with("HTTP/1.1 403") && body.len() < 200, "{headers:?}: {head}");
    }
    assert_eq!(face.get("/api/v1/history?after=soon").0, 400);
    assert_eq!(face.get("/api/v1/tail?after=soon").0, 400);
    running.stop();

    let mut without = relay_without_page(&stage).run();
    let face = RelayHttp::of(&mut without);
    assert_eq!(face.get("/").0, 404);
    assert_eq!(face.get("/livez").0, 200);
    without.stop();
}

fn tail(face: &RelayHttp, after: u64) -> Value {
    let (status, body) = face.get(&format!("/api/v1/tail?after={after}"));
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

/// Asks as a page does until so many records were told, and gives them.
fn followed(face: &RelayHttp, count: usize) -> Vec<Value> {
    wait_for("delivered records", || {
        let records = tail(face, 0)["records"].as_array().unwrap().clone();
        (records.len() >= count).then_some(records)
    })
}

const PLANTED: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                       VALUES ('t', 'planted-key', 'A', '{\"card\": \"planted-payload\"}')";

#[test]
fn what_is_delivered_is_shown_while_somebody_looks_and_keys_and_payloads_are_not() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_tail");
    let mut running = stage.relay().run();
    let face = RelayHttp::of(&mut running);
    stage.insert("A", 4);
    face.wait_count("postrider_records_confirmed_total", 4);
    assert_eq!(tail(&face, 0), serde_json::json!({"masked": true, "records": []}), "nobody looked");
    stage.sql().run(PLANTED);
    let sent = &followed(&face, 1)[0];
    let row = stage.sql().rows(
        "SELECT id, octet_length(payload::text) FROM outbox WHERE aggregate_id = 'planted-key'",
    );
    assert_eq!(sent["id"].as_str(), row[0][0].as_deref());
    assert_eq!((&sent["topic"], &sent["event_type"]), (&stage.topic("A").into(), &"A".into()));
    assert_eq!(sent["key"], serde_json::json!({"bytes": 11, "text": null}));
    assert_eq!(sent["payload"]["text"], Value::Null);
    let is_later = format!(
        "SELECT '{}'::pg_lsn BETWEEN '0/1' AND pg_current_wal_lsn(), \
         abs(extract(epoch FROM now()) * 1000 - {}) < 600000",
        sent["position"].as_str().unwrap(),
        sent["committed_ms"],
    );
    let [Some(position), Some(time)] = &stage.sql().rows(&is_later)[0][..] else { panic!() };
    assert_eq!((position.as_str(), time.as_str()), ("t", "t"), "{sent}");
    let stored =
        stage.records().into_iter().find(|it| it.key.as_deref() == Some(b"planted-key")).unwrap();
    assert_eq!(
        (&sent["partition"], &sent["offset"]),
        (&stored.partition.into(), &stored.offset.into())
    );
    assert_eq!(tail(&face, sent["number"].as_u64().unwrap())["records"], Value::Array(Vec::new()));
    // The browser takes a while to open.
    let open = Arc::new(());
    let other_page = std::thread::spawn({
        let (face, open) = (face.clone(), Arc::downgrade(&open));
        move || {
            while open.strong_count() > 0 {
                tail(&face, 0);
                let_pass(Duration::from_millis(500), "the pace of a page");
            }
        }
    });
    if let Some(seen) = looked(&face, "streaming", "tail") {
        let first = &seen["tables"]["tail"][0];
        assert_eq!((&first[1], &first[5]), (&stage.topic("A").into(), &"11 B".into()));
        assert!(!seen.to_string().contains("planted"));
    }
    drop(open);
    other_page.join().unwrap();
    assert!(!tail(&face, 0).to_string().contains("planted"));
    let_pass(Duration::from_secs(8), "the relay takes it that nobody looks any more");
    stage.insert("A", 3);
    face.wait_count("postrider_records_confirmed_total", 8);
    assert_eq!(tail(&face, 0)["records"], Value::Array(Vec::new()), "nobody looked");
    running.stop();
}

#[test]
fn whoever_allows_it_sees_payloads_once_their_kafka_transaction_is_committed() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "page_payloads");
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    let mut running = relay.set("http.dashboard_payloads", "true").run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    assert_eq!(tail(&face, 0)["masked"], false);
    stage.sql().run(PLANTED);
    let sent = &followed(&face, 1)[0];
    assert_eq!(sent["key"]["text"], "planted-key");
    assert_eq!(sent["payload"]["text"], r#"{"card": "planted-payload"}"#);
    stage.insert("A", 300);
    // The progress records of Kafka's transactions are none of them.
    let all = followed(&face, 40);
    assert!(all.len() < 1 + 300, "all were copied");
    assert!(all.iter().all(|record| record["topic"] == stage.topic("A").as_str()));
    running.stop();
}

fn relay_without_page(stage: &Stage) -> support::relay::Relay {
    stage.relay().set("http.dashboard", "false")
}
