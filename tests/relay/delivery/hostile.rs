//! Ten thousand rows that mean harm: each ends in a topic or in the dead letters, and all the counts
//! agree.
//!
//! The SQL that makes a row also writes down what is to become of it (`fate`), by rules of its own,
//! and numbers it; both travel as headers. So the topics, the metrics and the table are three
//! accounts of the same rows.

use std::collections::BTreeMap;

use postrider::route::RejectionCode;

use crate::stage::Stage;
use support::broker::Broker;
use support::kafka::{self, Kafka};
use support::postgres;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::topic::{self, Stored};

const ROWS: u64 = 10_000;

/// An outbox that keeps nothing out. Whatever a row may be made to carry is sent.
const SHAPE: &str = "
    ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, DROP CONSTRAINT outbox_row_size,
        ALTER id DROP NOT NULL, ALTER aggregate_type DROP NOT NULL,
        ALTER aggregate_id DROP NOT NULL, ALTER event_type DROP NOT NULL,
        ALTER created_at DROP NOT NULL, ALTER payload TYPE text,
        ADD n int, ADD fate text, ADD note text, ADD detail json, ADD amount numeric,
        ADD weight float8, ALTER traceparent TYPE text";

/// Values of `format.value` that are more than the payload's bytes.
const FORMATS: [&str; 5] =
    ["string", "json", "json_schema", "cloudevents_binary", "cloudevents_structured"];

const HEADERS: &str = "n,fate,event_type,aggregate_type,note,detail,amount,weight,created_at";

/// Rows from `$from` to `$to` for topics that begin with `$prefix`. What spoils a row is its fate
/// alone; everything else is strange and may be sent.
const ATTACK: &str = r#"
    INSERT INTO outbox (n, fate, id, aggregate_type, aggregate_id, event_type, payload, note,
                        detail, amount, weight, traceparent, created_at)
    SELECT n, fate,
        CASE WHEN fate <> 'missing_value' THEN gen_random_uuid() END,
        (ARRAY['t', '', NULL, E'\x01\x7f', repeat('t', 5000)])[1 + n % 5],
        CASE WHEN fate = 'too_large' AND n % 1000 = 2 THEN repeat(md5(n::text), 32768)
             WHEN n % 500 = 7 THEN repeat(md5(n::text), 20000)
             ELSE (ARRAY['k' || n % 17, '', NULL, E'a\nb\x01', '☠' || n % 3])[1 + n % 5] END,
        CASE fate
            WHEN 'no_route' THEN (ARRAY[NULL, ''])[1 + n / 10 % 2]
            WHEN 'invalid_topic' THEN (ARRAY['$prefix/a', '.', '..', '$prefix' || repeat('x', 300),
                '$prefix ü', E'$prefix\x01', E'$prefix\n', '$prefix\u0000', '../../etc/passwd',
                repeat('x', 200000), '__consumer_offsets', '__transaction_state', '_.x',
                'postrider.progress.$slot', 'postrider_progress.x', '$prefixdead-letters',
                replace('$prefix', '.', '_') || 'dead-letters'])[1 + n / 10 % 17]
            ELSE (ARRAY['$prefixA', '$prefixB', rpad('$prefix', 249, 'x')])[1 + n % 3] END,
        (ARRAY['{"n": 1.50}', NULL, '', E' \n\t', '{"a":1,"a":2,"a":{"b":[]}}', '{"a":',
            '{"n":1e400,"m":-123456789012345678901234567890.12345678901234567890}',
            '{"a":"\u0000\ud800"}', E'\x01\x02\x1f\x7f', '☠' || U&'\202E', 'null', 'NaN',
            repeat('[', 10000) || repeat(']', 10000),
            repeat('{"a":', 10000) || '1' || repeat('}', 10000)])[1 + n % 14],
        CASE WHEN fate = 'too_large' AND n % 1000 = 502 THEN repeat(md5(n::text), 32768)
             WHEN n % 500 = 257 THEN repeat(md5(n::text), 20000)
             ELSE (ARRAY['', NULL, E'\r\nx: y', E'\x1b[2J'])[1 + n % 4] END,
        CASE WHEN n % 97 = 0 THEN repeat('[', 10000) || repeat(']', 10000)
             ELSE '{"a":1,"a":2,"n":1e999}' END::json,
        (ARRAY['NaN', 'Infinity', '-Infinity', '-0', '1e-1000', '1' || repeat('0', 1000)])
            [1 + n % 6]::numeric,
        (ARRAY['NaN', 'Infinity', '-Infinity', '-0', '1e-300'])[1 + n % 5]::float8,
        (ARRAY[NULL, '', '00-zz-00', E'\n', repeat('0', 9000),
            '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'])[1 + n % 6],
        CASE WHEN fate = 'invalid_value'
                THEN (ARRAY['infinity', '-infinity', '1969-12-31', '4713-01-01 BC',
                    '294276-12-31 23:59:59.999999+00'])[1 + n / 50 % 5]
             WHEN n % 3 = 0 THEN NULL ELSE '1970-01-01 00:00:01+00' END::timestamptz
    FROM (SELECT n, CASE WHEN n % 500 = 2 THEN 'too_large'
                         ELSE (ARRAY['invalid_topic', 'no_route'])[1 + n % 10] END AS plain
          FROM generate_series($from, $to) AS n) AS numbered,
    LATERAL (SELECT coalesce(plain, CASE n % 50 WHEN 3 THEN 'invalid_value'
                                                WHEN 4 THEN 'missing_value'
                                                ELSE 'record' END) AS fate) AS fates"#;

fn attack(stage: &Stage, from: u64, to: u64) {
    let prefix = stage.topic("");
    let sql = ATTACK.replace("$prefix", &prefix).replace("$slot", stage.slot());
    stage.sql().run(&sql.replace("$from", &from.to_string()).replace("$to", &to.to_string()));
}

/// What became of each row: by its number, its fate as Postgres sees it and as the topics do.
fn fates(records: &[Stored]) -> Vec<(u64, String, String)> {
    let mut fates: Vec<(u64, String, String)> = records
        .iter()
        .map(|record| {
            let header = |name| record.header(name).map(str::to_owned);
            let found = header("postrider-error-code").unwrap_or_else(|| "record".to_owned());
            (header("n").unwrap().parse().unwrap(), header("fate").unwrap(), found)
        })
        .collect();
    fates.sort();
    fates
}

/// Rows with a time that Kafka does not take, an hour ahead at most by default: on their own, with a
/// topic that does not go, and for the topic of the dead letters itself.
fn attack_from_the_future(stage: &Stage, from: u64, to: u64) {
    let prefix = stage.topic("");
    stage.sql().run(&format!(
        "INSERT INTO outbox (n, fate, aggregate_id, event_type, payload, created_at)
         SELECT n, (ARRAY['refused', 'invalid_topic', 'invalid_topic'])[1 + n % 3], n % 7,
             '{prefix}' || (ARRAY['A', 'bad/topic', 'dead-letters'])[1 + n % 3], n,
             '9999-12-31 00:00:00+00'
         FROM generate_series({from}, {to}) AS n"
    ));
}

/// The topics that rows may reach, told to keep what has times of 1970, as some rows do; that of
/// the dead letters is as any other.
fn create_topics(stage: &Stage, kafka: &Kafka) {
    let long = format!("{:x<249}", stage.topic(""));
    for name in [stage.topic("A"), stage.topic("B"), long] {
        topic::create(&kafka.bootstrap(), &name, 3, &[("retention.ms", "-1")]);
    }
    topic::create(&kafka.bootstrap(), &stage.topic("dead-letters"), 3, &[]);
}

fn relay(stage: &Stage) -> Relay {
    stage
        .relay()
        .set("route.topic", "${routedByValue}")
        .set("route.headers", HEADERS)
        .set("outbox.timestamp", "created_at")
        .expect_log("became a dead letter")
}

#[test]
fn g4_hostile_rows_end_in_a_topic_or_in_the_dead_letters_and_the_counts_agree() {
    let broker = Broker::best();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "hostile");
    if let Broker::Kafka(kafka) = &broker {
        create_topics(&stage, kafka);
    }
    stage.sql().run(SHAPE);
    let mut running = relay(&stage).run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    let heap = ROWS / 10;
    for number in 0..10 {
        attack(&stage, number * heap + 1, (number + 1) * heap);
    }
    stage.wait_acknowledged(stage.log_end());
    face.wait_count("postrider_in_flight_records", 0);
    assert_eq!(face.get("/livez").0, 200);
    face.wait_ready(200);

    let fates = fates(&stage.records());
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for ((number, wanted, found), n) in fates.iter().zip(1..) {
        assert_eq!((*number, wanted), (n, found), "lost, sent twice, or met the wrong fate");
        *counts.entry(found).or_default() += 1;
    }
    assert_eq!(fates.len() as u64, ROWS);
    for row in stage.sql().rows("SELECT fate, count(*) FROM outbox GROUP BY fate") {
        let [Some(wanted), Some(count)] = row.as_slice() else { panic!("{row:?}") };
        assert_eq!(counts[wanted.as_str()].to_string(), *count, "{wanted}");
    }
    for code in RejectionCode::ALL {
        let series = format!("postrider_rejections_total{{reason=\"{code}\"}}");
        let wanted = counts.get(code.as_str()).copied().unwrap_or(0);
        assert_eq!(face.count(&series), Some(wanted), "{code}");
    }
    face.wait_count("postrider_records_confirmed_total", ROWS);
    let letters = stage.topic("dead-letters");
    let dead = format!("postrider_records_total{{topic=\"{letters}\",result=\"dead_lettered\"}}");
    assert_eq!(face.count(&dead), Some(ROWS - counts["record"]));
    let memory = face.metric("process_resident_memory_bytes").unwrap() / f64::from(1 << 20);
    eprintln!("{counts:?}, {memory:.0} MiB");
    running.stop();
}

/// What the brokers refuse ends a session each time, so rows may be there again; never with another
/// fate.
#[test]
fn g4_hostile_rows_that_only_the_brokers_refuse_stop_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    if !kafka.is_since(kafka::TIMES_AHEAD, "rows dated far ahead") {
        return;
    }
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "spiteful");
    create_topics(&stage, kafka);
    stage.sql().run(SHAPE);
    // What follows a refusal may end in a session's end of another name.
    let relay = relay(&stage).expect_log("refused a batch").allow_log("trying again");
    // A busy machine's broker.
    let mut running = relay.allow_log("cannot reach Kafka; retrying").run();
    let face = RelayHttp::of(&mut running);
    attack(&stage, 1, 300);
    attack_from_the_future(&stage, 301, 330);
    attack(&stage, 331, 600);
    stage.wait_acknowledged(stage.log_end());
    assert_eq!(face.get("/livez").0, 200);
    face.wait_ready(200);
    let mut fates = fates(&stage.records());
    fates.dedup();
    for ((number, wanted, found), n) in fates.iter().zip(1..) {
        assert_eq!((*number, wanted), (n, found), "lost, or met the wrong fate");
    }
    assert_eq!(fates.len(), 600);
    running.stop();
}

/// Formats read what the verbatim one only passes on: a row may then be rejected for its payload, and
/// be lost or stop the relay as little.
#[test]
fn g4_g7_hostile_rows_stop_no_format() {
    for format in FORMATS {
        let broker = Broker::embedded();
        let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "formatted");
        stage.sql().run(SHAPE);
        let relay = relay(&stage).set("format.expand_json", "true").set("format.value", format);
        let running = relay.set("format.columns", "debezium").run();
        attack(&stage, 1, 600);
        stage.wait_acknowledged(stage.log_end());
        let numbers: Vec<u64> = fates(&stage.records()).iter().map(|(n, ..)| *n).collect();
        assert_eq!(numbers, (1..=600).collect::<Vec<u64>>(), "{format}");
        running.stop();
    }
}
