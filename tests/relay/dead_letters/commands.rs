//! `postrider dead-letters` as a process, on what a real relay has left in the topic.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use postrider::sandbox::port;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::Stage;
use support::broker::Broker;
use support::relay::{Outcome, Relay};
use support::topic::{self, Stored};
use support::{kafka, postgres, wait_for};

/// What no list may show.
const BODY: &str = "the-body-of-a-row";

/// 20 kB that do not compress.
const LARGE: &str = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 625) AS n)";

/// A database, a relay that has rejected rows, and their dead letters.
struct Letters {
    stage: Stage,
    relay: Relay,
    /// Lives as long as the rest; `None` where it is shared.
    broker: Option<Broker>,
}

impl Letters {
    fn new(broker: Broker, stem: &str) -> Self {
        let letters = Self::at(&broker.bootstrap(), stem);
        Self { broker: Some(broker), ..letters }
    }

    fn at(bootstrap: &str, stem: &str) -> Self {
        let stage = Stage::new(postgres::installed(), bootstrap, stem);
        stage.sql().run("ALTER TABLE outbox ALTER event_type DROP NOT NULL");
        let relay = stage
            .relay()
            .set("outbox.timestamp", "created_at")
            .set("kafka.message_max_bytes", "10kB");
        Self { stage, relay, broker: None }
    }

    /// Commits rows and delivers them, each as a record or a dead letter.
    fn deliver(&self, rows: &str) {
        self.stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) {rows}"
        ));
        self.relay.clone().expect_log("became a dead letter").run_once();
    }

    /// One good row, and one for each of four reasons.
    fn deliver_one_of_each(&self) {
        self.deliver(&format!(
            "VALUES ('t', 'a', 'A', '1', now()), ('t', 'a', 'bad/topic', '\"{BODY}\"', now()),
                    ('t', 'b', NULL, '2', now()), ('t', 'b', 'A', to_jsonb({LARGE}), now()),
                    ('t', 'c', 'A', '{{\"n\": 1.50}}', 'infinity')"
        ));
    }

    /// Rows that are good but for their time: `count` with ten keys, numbered from 1.
    fn deliver_timeless(&self, count: u32) {
        self.deliver(&format!(
            "SELECT 't', n % 10, 'A', to_jsonb(n), 'infinity' FROM generate_series(1, {count}) AS n"
        ));
    }

    fn run(&self, words: &str) -> Outcome {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.relay.start(&[&["dead-letters"], &words[..]].concat()).outcome()
    }

    /// What it wrote to stdout; it must have succeeded.
    fn stdout(&self, words: &str) -> String {
        let outcome = self.run(words);
        assert!(outcome.status.success(), "{words}: {}", outcome.log.join("\n"));
        outcome.stdout
    }

    fn json(&self, words: &str) -> Vec<Value> {
        let stdout = self.stdout(&format!("{words} --output json"));
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The only line.
    fn object(&self, words: &str) -> Value {
        let lines = self.json(words);
        let [line] = lines.as_slice() else { panic!("{words}: {lines:#?}") };
        line.clone()
    }

    /// Where the only dead letter with this code is.
    fn place(&self, code: &str) -> String {
        let line = self.object(&format!("list --code {code}"));
        format!("{}:{}", line["partition"], line["offset"])
    }

    /// All there is, by place.
    fn everything(&self) -> Vec<Stored> {
        let mut records = self.stage.records();
        records.sort_by_key(|one| (one.topic.clone(), one.partition, one.offset));
        records
    }

    fn records(&self, topic: &str) -> Vec<Stored> {
        let mut records = self.everything();
        records.retain(|record| record.topic == self.stage.topic(topic));
        records
    }

    /// Places by which receipts say that something was sent again and stored, in their order.
    fn receipts(&self) -> Vec<String> {
        let letters = self.records("dead-letters");
        let receipts = letters.iter().filter(|letter| letter.headers.len() == 1);
        receipts.map(|receipt| receipt.header("postrider-retried").unwrap().to_owned()).collect()
    }

    /// Each key's numbers in topic A, in their order.
    fn numbers(&self) -> BTreeMap<Vec<u8>, Vec<u32>> {
        let mut numbers: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        for record in self.records("A") {
            let number = String::from_utf8(record.value.unwrap()).unwrap().parse().unwrap();
            numbers.entry(record.key.unwrap()).or_default().push(number);
        }
        numbers
    }
}

/// One error with this exit code and code.
fn assert_refused(outcome: &Outcome, exit: i32, code: &str, words: &[&str]) {
    let log = outcome.log.join("\n");
    assert_eq!(outcome.status.code(), Some(exit), "{log}");
    for words in [&[&format!("\"code\":\"{code}\"")[..], "\"help\":\""], words].concat() {
        assert!(log.contains(words), "no `{words}` in: {log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

/// Each key's numbers as they were committed.
fn committed(count: u32) -> BTreeMap<Vec<u8>, Vec<u32>> {
    let of = |key: u32| (1..=count).filter(|n| n % 10 == key).collect();
    (0..10).map(|key| (key.to_string().into_bytes(), of(key))).collect()
}

#[test]
fn what_was_rejected_is_listed_and_found() {
    for broker in Broker::all() {
        let letters = Letters::new(broker, "listed");
        letters.deliver_one_of_each();
        let outcome = letters.run("list");
        assert_eq!(outcome.status.code(), Some(0));
        assert_eq!(outcome.stdout.lines().count(), 1 + 4, "{}", outcome.stdout);
        assert!(!outcome.stdout.contains(BODY), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("public.outbox  "), "{}", outcome.stdout);
        let summary = "4 dead letters: invalid_topic 1, invalid_value 1, no_route 1, too_large 1";
        assert_eq!(outcome.log, [summary]);

        let all = letters.json("list");
        assert_eq!(all.len(), 4);
        let bad = letters.object("list --code invalid_topic");
        let topic = letters.stage.topic("bad/topic");
        for (name, wanted) in [
            ("topic", json!(topic)),
            ("table", json!("public.outbox")),
            ("key", json!("a")),
            ("size", json!(BODY.len() + 2)),
            ("retried", json!(false)),
        ] {
            assert_eq!(bad[name], wanted, "{name}");
        }
        let id = bad["id"].as_str().unwrap();
        for (words, count) in [
            (format!("list --id {id}"), 1),
            (format!("list --topic {topic}"), 1),
            ("list --table public.outbox".into(), 4),
            ("list --table public.other".into(), 0),
            ("list --event-type A".into(), 2),
            ("list --event-type B".into(), 0),
            (format!("list --event-type A --id {id}"), 0),
            ("list --since 1h".into(), 4),
            ("list --since 0ms".into(), 0),
            ("list -n 3".into(), 3),
            (format!("list --code no_route --id {id}"), 0),
        ] {
            assert_eq!(letters.json(&words).len(), count, "{words}");
        }
        let last = letters.run("list -n 3").log;
        assert!(last[0].starts_with("the first 3 of 4 dead letters: "), "{last:?}");
        let nobody = letters.run("list --id nobody");
        assert_refused(&nobody, 1, "PR-D001", &["no dead letter with id `nobody`"]);
    }
}

#[test]
fn one_is_shown_whole() {
    let letters = Letters::new(Broker::embedded(), "shown");
    letters.deliver_one_of_each();
    let place = letters.place("invalid_value");
    let shown = letters.stdout(&format!("show {place}"));
    for words in
        ["postrider-error-code: invalid_value", "aggregate_type: t", "{\n  \"n\": 1.50\n}\n"]
    {
        assert!(shown.contains(words), "no `{words}` in: {shown}");
    }
    assert_eq!(letters.stdout(&format!("show {place} --raw")).trim_end(), "{\"n\": 1.50}");
    let whole = letters.object(&format!("show {place}"));
    assert_eq!((&whole["key"], &whole["value"]), (&json!("c"), &json!("{\"n\": 1.50}")));
    let headers = whole["headers"].as_array().unwrap();
    assert_eq!(headers[0], json!(["postrider-error-code", "invalid_value"]));
    let id = headers.iter().find(|header| header[0] == "id").unwrap()[1].as_str().unwrap();
    assert_eq!(letters.object(&format!("show {id}")), whole);

    let (partition, offset) = place.split_once(':').unwrap();
    let beyond = format!("show {partition}:{}", offset.parse::<i64>().unwrap() + 1_000);
    for absent in [beyond.as_str(), "show 99:0", "show nobody"] {
        assert_refused(&letters.run(absent), 1, "PR-D001", &["there is no dead letter"]);
    }
}

#[test]
fn a_plan_sends_nothing_and_says_what_cannot_be_sent() {
    let letters = Letters::new(Broker::embedded(), "planned");
    letters.deliver_one_of_each();
    let before = letters.everything();
    let plan = letters.stdout("retry");
    for words in
        ["to send again: 1\n", "cannot be sent: 3\n", "use --to TOPIC", "too large", "--execute"]
    {
        assert!(plan.contains(words), "no `{words}` in: {plan}");
    }
    assert_eq!(letters.object("retry --event-type A")["cannot"].as_array().unwrap().len(), 1);
    let plan = letters.object("retry");
    assert_eq!((&plan["executed"], &plan["sent"]), (&json!(false), &json!(0)));
    let topic = letters.stage.topic("A");
    assert_eq!(plan["to_send"], json!([{ "topic": topic, "records": 1 }]));
    assert_eq!(plan["cannot"].as_array().unwrap().len(), 3);
    assert_eq!(letters.everything(), before);

    // What was asked for by name and cannot be done is an error, and so is a retry of which nothing can be done.
    let large = letters.place("too_large");
    let outcome = letters.run(&format!("retry {large} --execute"));
    assert_refused(&outcome, 1, "PR-D003", &["1 of the dead letters that were asked for"]);
    assert_eq!(letters.everything(), before);
    let outcome = letters.run("retry --code too_large --execute");
    assert_refused(&outcome, 1, "PR-D003", &["1 of the dead letters that were asked for"]);
    assert_eq!(letters.everything(), before);
    let absent = letters.run("retry 0:9999 nobody --execute");
    assert_refused(&absent, 1, "PR-D001", &["at 0:9999", "with id `nobody`"]);
}

#[test]
fn another_topic_takes_what_had_no_legal_one() {
    let letters = Letters::new(Broker::embedded(), "another");
    letters.deliver_one_of_each();
    let place = letters.place("invalid_topic");
    let original = letters.object(&format!("show {place}"));
    let to = letters.stage.topic("repaired");
    let Some(Broker::Embedded(mock)) = &letters.broker else { panic!("it is embedded") };
    mock.create_topic(&to, 1, 1).unwrap();
    let outcome = letters.object(&format!("retry --code invalid_topic --to {to} --execute"));
    assert_eq!((&outcome["executed"], &outcome["sent"]), (&json!(true), &json!(1)));

    let records = letters.records("repaired");
    let [record] = records.as_slice() else { panic!("{records:?}") };
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap()).unwrap();
    assert_eq!(json!(text(&record.key)), original["key"]);
    assert_eq!(json!(text(&record.value)), original["value"]);
    let header = |name: &str| {
        let all = original["headers"].as_array().unwrap();
        all.iter().find(|header| header[0] == name).unwrap()[1].as_str().unwrap()
    };
    // The row's own time, not that of the dead letter.
    assert_eq!(record.timestamp_ms.unwrap().to_string(), header("postrider-timestamp"));
    let headers: Vec<(&str, &str)> = record
        .headers
        .iter()
        .map(|(name, _)| (name.as_str(), record.header(name).unwrap()))
        .collect();
    let wanted = [
        ("id", header("id")),
        ("event_type", "bad/topic"),
        ("aggregate_type", "t"),
        ("postrider-lsn", header("postrider-lsn")),
        ("postrider-retried", &place),
    ];
    assert_eq!(headers, wanted);

    let all = letters.records("dead-letters");
    let receipt = all.iter().find(|letter| letter.headers.len() == 1).unwrap();
    assert_eq!(receipt.header("postrider-retried"), Some(place.as_str()));
    assert_eq!((receipt.value.as_ref(), receipt.key.as_ref()), (None, record.key.as_ref()));
    assert!(place.starts_with(&format!("{}:", receipt.partition)));

    // It is dealt with, unless somebody insists.
    let listed = letters.run("list");
    assert_eq!(listed.stdout.lines().count(), 1 + 3);
    assert!(listed.log[0].contains("1 retried already"), "{:?}", listed.log);
    assert!(letters.stdout("list --all").contains("(retried) "));
    let plan = letters.object(&format!("retry {place} --to {to} --execute"));
    assert_eq!((&plan["sent"], &plan["retried_already"]), (&json!(0), &json!(1)));
    assert_eq!(letters.records("repaired").len(), 1);
    letters.stdout(&format!("retry {place} --to {to} --all --execute"));
    assert_eq!(letters.records("repaired").len(), 2);
}

#[test]
fn all_are_sent_once_in_the_order_of_their_keys() {
    for broker in Broker::all() {
        let name = broker.name();
        let letters = Letters::new(broker, "ordered");
        letters.deliver_timeless(200);
        let begun = Instant::now();
        let outcome = letters.object("retry --rate 400 --execute");
        assert_eq!(outcome["sent"], 200, "{outcome}");
        // The first goes at once, and a tenth of a second may be made up for.
        assert!(begun.elapsed() >= Duration::from_millis(395), "{:?}", begun.elapsed());
        assert_eq!(letters.numbers(), committed(200), "{name}");
        assert_eq!(letters.receipts().len(), 200);
        assert_eq!(letters.object("retry --rate 400 --execute")["sent"], 0);
        assert_eq!(letters.numbers(), committed(200), "{name}");
        assert_eq!(
            letters.run("list").log,
            ["no dead letters; 200 retried already (--all lists them)"]
        );
    }
}

#[test]
fn a_limit_leaves_the_rest_for_the_next_time() {
    let letters = Letters::new(Broker::embedded(), "limited");
    letters.deliver_timeless(12);
    for sent in [5, 5, 2, 0] {
        assert_eq!(letters.object("retry -n 5 --execute")["sent"], sent);
    }
    assert_eq!(letters.numbers().values().map(Vec::len).sum::<usize>(), 12);
}

/// A signal ends it between two records; kill -9 repeats what had no receipt, and loses nothing.
#[test]
fn an_interrupted_retry_goes_on_where_it_was() {
    // Half a minute's worth at this rate: a busy machine takes seconds to look into the topic.
    const LETTERS: u32 = 600;
    let all = LETTERS as usize;
    let letters = Letters::new(Broker::best(), "broken_off");
    letters.deliver_timeless(LETTERS);
    let start = || letters.relay.start(&["dead-letters", "retry", "--rate", "20", "--execute"]);
    let stored = |count: usize| {
        wait_for("records", || (letters.records("A").len() >= count).then_some(()));
    };
    let running = start();
    stored(5);
    running.signal(Signal::TERM);
    assert_eq!(running.outcome().status.code(), Some(0));
    let done = letters.receipts().len();
    assert!(done < all && done == letters.records("A").len(), "{done} receipts");

    let running = start();
    stored(done + 5);
    running.kill();
    let rest = letters.object("retry --execute --rate 1000")["sent"].as_u64().unwrap();
    assert!(rest < u64::from(LETTERS), "{rest}");
    let mut numbers = letters.numbers();
    let again: usize = numbers.values().map(Vec::len).sum::<usize>() - all;
    for numbers in numbers.values_mut() {
        // By the first time that each came: what had no receipt comes again behind it.
        let mut seen = BTreeSet::new();
        numbers.retain(|number| seen.insert(*number));
    }
    assert_eq!(numbers, committed(LETTERS));
    assert!(again <= 20, "{again} repeated, more than a second's worth");
    let receipts: BTreeSet<String> = letters.receipts().into_iter().collect();
    assert_eq!(receipts.len(), all);
}

#[test]
fn a_topic_that_is_missing_is_told_and_nothing_has_a_receipt() {
    let Some(kafka) = kafka::strict() else { return };
    let letters = Letters::at(&kafka.bootstrap(), "untopical");
    let name = |name: &str| letters.stage.topic(name);
    topic::create(&kafka.bootstrap(), &name("dead-letters"), 3, &[]);
    letters.deliver_timeless(3);
    let outcome = letters.run("retry --execute");
    let missing = format!("topic `{}` does not exist", name("A"));
    assert_refused(&outcome, 69, "PR-K005", &["is not confirmed: ", &missing, "kafka-topics.sh"]);
    assert!(outcome.stdout.contains("sent again and stored: 0 of 3\n"), "{}", outcome.stdout);
    assert_eq!(letters.receipts(), [""; 0]);
    topic::create(&kafka.bootstrap(), &name("A"), 3, &[]);
    assert_eq!(letters.object("retry --execute")["sent"], 3);
}

/// One partition, so that the order of sending is known.
#[test]
fn a_record_that_is_refused_stops_the_rest_and_is_named() {
    let Some(kafka) = kafka::shared() else { return };
    let letters = Letters::at(&kafka.bootstrap(), "oversize");
    let name = |name: &str| letters.stage.topic(name);
    topic::create(&kafka.bootstrap(), &name("dead-letters"), 1, &[]);
    topic::create(&kafka.bootstrap(), &name("A"), 1, &[("max.message.bytes", "2000")]);
    let row = |value: &str| format!("('t', 'k', 'A', {value}, 'infinity')");
    let large =
        row("to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) AS n))");
    letters.deliver(&format!("VALUES {}, {large}, {}", row("'1'"), row("'3'")));
    let outcome = letters.run("retry --execute --set kafka.compression=none");
    assert_refused(&outcome, 1, "PR-D006", &["the dead letter at 0:1 is refused"]);
    assert!(outcome.stdout.contains("sent again and stored: 1 of 3\n"), "{}", outcome.stdout);
    assert_eq!(letters.receipts(), ["0:0"]);
    // The operator may leave it out.
    assert_eq!(letters.object("retry 0:2 --execute")["sent"], 1);
    assert_eq!(letters.numbers()[&b"k".to_vec()], [1, 3]);
}

/// No file, no database, no topic of that name.
fn bare(words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().env("PGUSER", "nobody").current_dir("/");
    command.args(["dead-letters"]).args(words).output().unwrap()
}

#[test]
fn it_needs_brokers_and_a_topic_and_no_postgres() {
    let broker = Broker::embedded();
    let address = broker.bootstrap();
    let words =
        |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let absent = bare(&["list", "-b", &address, "--from", "absent"]);
    assert_eq!(absent.status.code(), Some(1), "{}", words(&absent));
    assert!(words(&absent).contains("PR-K005"), "{}", words(&absent));
    assert!(words(&absent).contains("--from"), "{}", words(&absent));
    let Broker::Embedded(mock) = &broker else { unreachable!() };
    mock.create_topic("empty", 3, 1).unwrap();
    let empty = bare(&["list", "-b", &address, "--from", "empty"]);
    assert_eq!((empty.status.code(), empty.stdout.len()), (Some(0), 0), "{}", words(&empty));
    assert_eq!(words(&empty), "no dead letters\n");
    let topic = ["--set", "dead_letters.topic=empty", "--execute"];
    let empty = bare(&[&["retry", "-b", &address], &topic[..]].concat());
    assert_eq!(empty.status.code(), Some(0), "{}", words(&empty));
    let nowhere = format!("127.0.0.1:{}", port::free().unwrap());
    let nobody = bare(&["list", "-b", &nowhere]);
    assert_eq!(nobody.status.code(), Some(69), "{}", words(&nobody));
    assert!(words(&nobody).contains("PR-K010"), "{}", words(&nobody));
}
