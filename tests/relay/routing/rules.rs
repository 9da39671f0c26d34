//! Route rules in a running relay: other topics, keys, headers and partitions, and rows that are left
//! out on purpose.

use crate::stage::Stage;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::topic::{self, Stored};
use support::{broker::Broker, kafka, postgres};

/// The table's own columns and two more, which rules look at and send.
const SHAPE: &str = "ALTER TABLE outbox ADD tenant text, ADD part bigint";

/// The first that matches decides: a test order is dropped, whatever comes after.
fn relay(stage: &Stage) -> Relay {
    let rules = [
        ("0.column", "tenant".to_owned()),
        ("0.glob", "test*".to_owned()),
        ("0.drop", "true".to_owned()),
        ("1.regex", "Order(Placed|Paid)".to_owned()),
        ("1.topic", stage.topic("orders.$1")),
        ("1.key", "tenant".to_owned()),
        ("1.headers", "tenant:for,part".to_owned()),
        ("1.partition", "part".to_owned()),
        ("2.glob", "Order*".to_owned()),
        ("2.headers", "aggregate_id".to_owned()),
        ("3.glob", "Audit?".to_owned()),
        ("3.drop", "true".to_owned()),
    ];
    rules.iter().fold(stage.relay(), |relay, (name, value)| {
        relay.set(&format!("route.rules.{name}"), value)
    })
}

/// Commits a row; its payload is its number.
fn insert(stage: &Stage, n: u32, event_type: &str, tenant: &str, part: &str) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, tenant, part)
         VALUES ('t', 'k', '{event_type}', '{n}', {tenant}, {part})"
    ));
}

fn number(record: &Stored) -> u32 {
    std::str::from_utf8(record.value.as_deref().unwrap()).unwrap().parse().unwrap()
}

/// Topic without the stage's prefix, key, and headers between id and position, by number.
fn described(stage: &Stage) -> Vec<(u32, String, String, String)> {
    let text = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map_or("-".to_owned(), |it| String::from_utf8(it.clone()).unwrap())
    };
    let mut described: Vec<_> = stage
        .records()
        .iter()
        .map(|record| {
            let [(id, _), between @ .., (position, _)] = record.headers.as_slice() else {
                panic!("{record:?}")
            };
            let is_letter = record.header("postrider-error-code").is_some();
            assert!(is_letter || (id == "id" && position == "postrider-lsn"), "{record:?}");
            let between = between.iter().map(|(name, value)| format!("{name}={}", text(value)));
            let headers =
                if is_letter { String::new() } else { between.collect::<Vec<_>>().join(" ") };
            let topic = record.topic.strip_prefix(&stage.topic("")).unwrap().to_owned();
            (number(record), topic, text(&record.key), headers)
        })
        .collect();
    described.sort();
    described
}

#[test]
fn g4_rules_route_and_drop_and_what_they_drop_is_counted_and_acknowledged() {
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "rules");
    stage.sql().run(SHAPE);
    let mut running = relay(&stage).run();
    let face = RelayHttp::of(&mut running);
    insert(&stage, 1, "OrderPlaced", "'acme'", "NULL");
    insert(&stage, 2, "OrderPlaced", "'test-1'", "0");
    insert(&stage, 3, "OrderPaid", "NULL", "2");
    insert(&stage, 4, "OrderPaidTwice", "'a test'", "7");
    insert(&stage, 5, "AuditX", "NULL", "7");
    insert(&stage, 6, "Audits_", "'Test'", "7");
    face.wait_count("postrider_records_confirmed_total", 4);
    let wanted = [
        (1, "orders.Placed", "acme", "for=acme part=-"),
        (3, "orders.Paid", "-", "for=- part=2"),
        (4, "OrderPaidTwice", "k", "aggregate_id=k"),
        (6, "Audits_", "k", "event_type=Audits_ aggregate_type=t"),
    ];
    let wanted = wanted
        .map(|(n, topic, key, headers)| (n, topic.to_owned(), key.to_owned(), headers.to_owned()));
    assert_eq!(described(&stage), wanted);
    let dropped = "postrider_ignored_rows_total{operation=\"dropped\"}";
    face.wait_count(dropped, 2);
    // What is dropped at the end holds nothing back.
    let before = stage.acknowledged();
    for n in 7..=56 {
        insert(&stage, n, "AuditX", "NULL", "NULL");
    }
    let end = stage.log_end();
    stage.wait_acknowledged(end);
    assert!(before < end);
    face.wait_count(dropped, 52);
    assert_eq!(face.count("postrider_records_confirmed_total"), Some(4));
    assert_eq!(face.count("postrider_in_flight_records"), Some(0));
    running.stop();
    assert_eq!(stage.records().len(), 4);
    // Nor does `run --once` wait for them.
    insert(&stage, 57, "AuditX", "NULL", "NULL");
    relay(&stage).run_once();
    assert!(stage.acknowledged() > end);
    assert_eq!(stage.records().len(), 4);
}

#[test]
fn g4_a_partition_column_chooses_among_the_topics_partitions_or_the_row_is_a_dead_letter() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "partitions");
    stage.sql().run(SHAPE);
    topic::create(&kafka.bootstrap(), &stage.topic("Plain"), 3, &[]);
    let relay = relay(&stage).set("route.partition", "part");
    let parts = ["2", "0", "1", "2", "NULL", "NULL", "3", "-1", "2147483648", "2"];
    for (n, part) in (1..).zip(parts) {
        insert(&stage, n, "Plain", "NULL", part);
        insert(&stage, n + 100, "OrderPaid", "'k'", part);
    }
    relay.expect_log("became a dead letter").run_once();
    let mut found: Vec<(u32, Result<i32, String>)> = stage
        .records()
        .iter()
        .map(|record| {
            let code = record.header("postrider-error-code").map(str::to_owned);
            (number(record), code.map_or(Ok(record.partition), Err))
        })
        .collect();
    found.sort();
    // The same key without a partition column's word goes where the key says.
    let by_key = found[4].1.clone();
    assert!(by_key.is_ok(), "{found:?}");
    let refused = || Err("refused".to_owned());
    let invalid = || Err("invalid_value".to_owned());
    let wanted = [
        Ok(2),
        Ok(0),
        Ok(1),
        Ok(2),
        by_key.clone(),
        by_key,
        refused(),
        invalid(),
        invalid(),
        Ok(2),
    ];
    let wanted = [0, 100].map(|base| (base + 1..).zip(wanted.clone())).into_iter().flatten();
    assert_eq!(found, wanted.collect::<Vec<_>>());
    let records = stage.records();
    let letter = records.iter().find(|record| number(record) == 107).unwrap();
    assert_eq!(letter.header("postrider-topic"), Some(stage.topic("orders.Paid").as_str()));
    assert_eq!(letter.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(letter.header("for"), Some("k"));
}
