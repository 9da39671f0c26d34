//! Cases that were observed with Debezium's router, from a real table through `run --debezium` to real
//! Kafka. All of them, without servers: `fixtures/routing`. Against Debezium itself: `tests/long/compare`.

use std::collections::BTreeMap;
use std::io::Write as _;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::case::Case;
use crate::stage::Stage;
use support::broker::Broker;
use support::relay::Relay;
use support::relay_http::RelayHttp;
use support::retention::now_ms;
use support::topic::{self, Stored};
use support::{kafka, postgres};

/// Those that come out as they do with Debezium.
const SAME: [&str; 27] = [
    "canSetTimestampByUserDefinedConfiguration",
    "canConfigureEveryTableField",
    "canSetSchemaVersionWhenMoreThanPayloadIsInEnvelope_1",
    "canSetFieldIntoTheEnvelopeWithMissingField",
    "canSetBinaryMessageKey",
    "canMarkAnEventAsDeleted_nonEmptyPayload",
    "noTombstoneIfNotConfigured_emptyPayload",
    "canExpandJsonPayloadIfConfigured",
    "shouldNotExpandJSONPayloadIfNotConfigured",
    "canExpandJsonPayloadWithAdditionalFieldInEnvelope",
    "canExpandJsonArrayWithComplexElements_2",
    "shouldConvertNullNodeToOptionalBytes",
    "shouldKeepNestedEmptyArrayFieldAsOptionalStringArray",
    "shouldConsumeRecordsFromInsert",
    "shouldNotProduceTombstoneEventForNullPayload",
    "shouldProduceTombstoneEventForNullPayload",
    "shouldConvertToCloudEventsInJsonWithMetadataAndIdAndTypeInHeadersAfterOutboxEventRouter",
    "outboxRouterOnLogicalDecodingMessage",
    "exampleTopicReplacement",
    "whitespacePayloadIsTombstone",
    "emptyByteaIsNotTombstone",
    "nullPayloadNoEnvelopeNoTombstoneOption",
    "regexNoMatchLeavesRouteValue",
    "expandScalarJsonNotExpanded",
    "expandByteaNotExpanded",
    "expandPadsHeterogeneousObjects",
    "headerTextForms",
];

/// Those that come out better; why is in docs/migration.md.
fn different() -> Vec<Case> {
    let user = |id: &str, members: Value| {
        let plain = json!({
            "topic": "outbox.event.User",
            "key": "10711fa5",
            "headers": [["id", "da8d6de6-3b77-45ff-8f44-57db55a7a06c"]],
            "value": {"kind": "raw", "utf8": "{}"},
        });
        let mut case = Case::load(id);
        for all in [plain, members] {
            for (name, value) in all.as_object().unwrap() {
                case = case.expecting(name, value.clone());
            }
        }
        case
    };
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let id = "da8d6de6-3b77-45ff-8f44-57db55a7a06c";
    vec![
        user("timestampBigintRejected", json!({"timestamp": 1_553_460_779_000_i64})),
        user(
            "sameVersionDifferentShape_2",
            json!({"value": {"kind": "json", "json": {"payload": {"b": 1}, "type": "UserCreated"}}}),
        ),
        user(
            "avroNameAdjustmentLosesValue",
            json!({"value": {"kind": "json", "json": {"a-b": 1, "c": 2}}}),
        ),
        user(
            "whenPropagationContextIsProvidedATraceIsCreated",
            json!({"headers": [["id", id], ["traceparent", traceparent]]}),
        ),
        user("whenPropagationContextIsNotProvidedAndContextIsRequiredNoTraceIsCreated", json!({})),
    ]
}

/// One case's database and relay.
struct Play<'a> {
    case: &'a Case,
    stage: Stage,
    connector: NamedTempFile,
    relay: Relay,
}

impl<'a> Play<'a> {
    /// Table, publication and slot are there; what is inserted from now on is delivered.
    fn prepare(case: &'a Case, bootstrap: &str) -> Self {
        let stage = Stage::empty(postgres::installed(), bootstrap, "case");
        let sql = stage.sql();
        case.create_table(&sql);
        if case.is_change() {
            sql.run(&case.insert());
        }
        stage.create_slot();
        let mut connector = NamedTempFile::new().unwrap();
        connector.write_all(case.connector(&stage.database).as_bytes()).unwrap();
        let relay = ["source.url", "source.slot", "route.topic", "dead_letters.topic"]
            .into_iter()
            .fold(stage.relay(), Relay::unset)
            .allow_log("debezium `")
            .allow_log("also publishes UPDATE, DELETE or TRUNCATE");
        Self { case, stage, connector, relay }
    }

    fn arguments(&self, flags: &[&'static str]) -> Vec<&str> {
        let file = self.connector.path().to_str().unwrap();
        [&["run", "--debezium", file], flags].concat()
    }

    fn deliver(&self) {
        self.stage.sql().run(&self.case.insert());
        let status = self.relay.start(&self.arguments(&["--once"])).wait();
        assert!(status.success(), "{}: {status}", self.case.id());
    }
}

/// Records of one topic and key, in their order.
type Places = BTreeMap<(String, Option<Vec<u8>>), Vec<Stored>>;

fn read(bootstrap: &str, topics: &[&str]) -> Places {
    let topics: Vec<String> = topics.iter().map(|&topic| topic.to_owned()).collect();
    let mut places = Places::new();
    for record in topic::read(bootstrap, &topics) {
        places.entry((record.topic.clone(), record.key.clone())).or_default().push(record);
    }
    places
}

const LETTERS: &str = "postrider.dead-letters";

const TOPICS: [&str; 6] = [
    "outbox.event.User",
    "outbox.event.UserEmail",
    "outbox.event.10711fa5",
    "Order.events",
    "User",
    LETTERS,
];

#[test]
fn cases_observed_with_debezium_come_out_of_real_servers_alike() {
    let Some(kafka) = kafka::shared() else { return };
    let bootstrap = kafka.bootstrap();
    for topic in TOPICS {
        // Times of these rows are long gone, or four hundred years ahead.
        let ahead = ("message.timestamp.after.max.ms", "9223372036854775807");
        let settings = [("retention.ms", "-1"), ahead];
        // Dead letters are of the commit's time.
        let settings = if topic == LETTERS { &[][..] } else { &settings };
        topic::create(&bootstrap, topic, 3, settings);
    }
    let cases: Vec<Case> = SAME.iter().map(|id| Case::load(id)).chain(different()).collect();
    let mut wanted = BTreeMap::new();
    for case in &cases {
        let play = Play::prepare(case, &bootstrap);
        play.deliver();
        let record = case.wanted(&play.stage.sql());
        wanted.entry(record.place()).or_insert_with(Vec::new).push(record);
    }
    let unsendable = Case::load("topicNameNotSanitised");
    let mut play = Play::prepare(&unsendable, &bootstrap);
    play.relay = play.relay.expect_log("became a dead letter");
    play.deliver();

    let mut found = read(&bootstrap, &TOPICS);
    let letters = found.remove(&(LETTERS.to_owned(), Some(b"10711fa5".to_vec()))).unwrap();
    assert_is_letter(&letters, "outbox.event.a b/c");
    assert!(found.keys().eq(wanted.keys()), "{:?} {:?}", found.keys(), wanted.keys());
    for (place, records) in &found {
        let wanted = &wanted[place];
        assert_eq!(records.len(), wanted.len(), "{place:?}: {records:#?}");
        for (record, wanted) in records.iter().zip(wanted) {
            wanted.assert_is(record, now_ms());
        }
    }
}

/// What Debezium's task would have died of.
fn assert_is_letter(letters: &[Stored], topic: &str) {
    let [letter] = letters else { panic!("{letters:#?}") };
    assert_eq!(letter.header("postrider-error-code"), Some("invalid_topic"));
    assert_eq!(letter.header("postrider-topic"), Some(topic));
    assert_eq!(letter.header("postrider-table"), Some("public.outbox"));
    assert_eq!(letter.header("id"), Some("da8d6de6-3b77-45ff-8f44-57db55a7a06c"));
    assert_eq!(letter.value.as_deref(), Some(&b"{}"[..]));
}

#[test]
fn changes_of_rows_are_counted_and_sent_nowhere() {
    let broker = Broker::embedded();
    for id in ["canSkipUpdates", "updateDroppedWithErrorLog", "canSkipDeletion"] {
        let case = Case::load(id);
        let play = Play::prepare(&case, &broker.bootstrap());
        let mut running = play.relay.start(&play.arguments(&[]));
        let face = RelayHttp::of(&mut running);
        play.stage.sql().run(case.change());
        let operation = if id == "canSkipDeletion" { "delete" } else { "update" };
        face.wait_count(&format!("postrider_ignored_rows_total{{operation=\"{operation}\"}}"), 1);
        play.stage.wait_acknowledged(play.stage.log_end());
        running.signal(Signal::TERM);
        let outcome = running.outcome();
        assert!(outcome.status.success(), "{id}: {}", outcome.log.join("\n"));
        let level = case.expect("log").as_str().unwrap().to_uppercase();
        let told = |line: &&String| line.contains("outbox rows were updated");
        let levels: Vec<Value> = outcome
            .log
            .iter()
            .filter(told)
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["level"].clone())
            .collect();
        // What Debezium says at DEBUG is not said: an outbox is emptied all the time.
        let wanted: &[&str] = if level == "DEBUG" { &[] } else { &[&level] };
        assert_eq!(levels, wanted, "{id}: {}", outcome.log.join("\n"));
        assert!(topic::names(&broker.bootstrap(), "").is_empty(), "{id}");
    }
}

#[test]
fn what_debezium_would_fail_at_later_is_refused_at_start() {
    for (id, code, words) in [
        ("timestampColumnMissing", "PR-P034", "nope"),
        ("shouldFailOnInvalidConfigurationForAdditionalFields", "PR-C009", "additional.placement"),
    ] {
        let case = Case::load(id);
        let play = Play::prepare(&case, "127.0.0.1:1");
        let before = play.stage.acknowledged();
        let outcome = play.relay.start(&play.arguments(&["--once"])).outcome();
        let log = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(78), "{id}: {log}");
        assert!(log.contains(code) && log.contains(words), "{id}: {log}");
        assert_eq!(play.stage.acknowledged(), before);
    }
}
