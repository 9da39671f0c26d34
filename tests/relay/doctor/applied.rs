//! `postrider doctor --fix`: a plan first, what is absent on request, and nothing else.

use std::time::Duration;

use serde_json::Value;

use crate::stage::Stage;
use postrider::sandbox::postgres::{Cluster, Options};
use support::kafka::{self, Kafka};
use support::relay::{Outcome, Relay};
use support::wait::{let_pass, wait_until};
use support::{postgres, topic};

/// How far apart the kills of one test are.
const KILL_STEP: Duration = Duration::from_millis(60);
const KILLS: u32 = 20;

/// What it said of what it fixes.
struct Fixed {
    fix: Value,
    exit: Option<i32>,
    report: Value,
}

impl Fixed {
    fn of(relay: &Relay, arguments: &[&str]) -> Self {
        let arguments = [&["doctor", "--output", "json", "--fix"], arguments].concat();
        let Outcome { status, stdout, log } = relay.start(&arguments).outcome();
        let report: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|error| panic!("{error}: {stdout}\n{}", log.join("\n")));
        Self { fix: report["fix"].clone(), exit: status.code(), report }
    }

    fn words(&self, list: &str) -> Vec<String> {
        let words = self.fix[list].as_array().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    fn status(&self, id: &str) -> &str {
        let mut checks = self.report["checks"].as_array().unwrap().iter();
        checks.find(|check| check["id"] == id).unwrap()["status"].as_str().unwrap()
    }
}

/// Executes the fixes until the slot is created. Open transactions of other tests on the server hold up its creation.
fn fix_until_there_is_a_slot(stage: &Stage, relay: &Relay) -> Fixed {
    let mut fixed = None;
    wait_until("doctor to create the slot", || {
        let now = fixed.insert(Fixed::of(relay, &["--execute"]));
        slots(stage) == "1" && now.status("slot.exists") == "pass"
    });
    fixed.unwrap()
}

/// Nothing is there but the database.
fn bare(kafka: &Kafka) -> (Stage, Relay) {
    bare_on(postgres::installed(), kafka)
}

fn bare_on(cluster: &Cluster, kafka: &Kafka) -> (Stage, Relay) {
    let stage = Stage::empty(cluster, &kafka.bootstrap(), "doctor_fix");
    let relay = stage
        .relay()
        .set("kafka.delivery", "exactly_once")
        .set("progress.topic", &stage.topic("progress"))
        .unprepared();
    (stage, relay)
}

fn slots(stage: &Stage) -> String {
    let slot = stage.slot();
    stage
        .sql()
        .value(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'"))
}

/// One row is delivered, once.
fn delivers(stage: &Stage, relay: &Relay) {
    stage.insert("A", 1);
    let fixed = Fixed::of(relay, &["--execute"]);
    assert_eq!(fixed.words("created"), [format!("topic `{}`", stage.topic("A"))]);
    let outcome = relay.start(&["run", "--once"]).outcome();
    assert!(outcome.status.success(), "{}", outcome.log.join("\n"));
    let records = stage.records();
    let rows = records.iter().filter(|record| record.topic == stage.topic("A"));
    assert_eq!(rows.count(), 1);
}

#[test]
fn the_plan_changes_nothing_and_the_deed_creates_what_is_absent() {
    let Some(kafka) = kafka::strict() else { return };
    // A cluster of its own: open transactions of other tests would hold up the slot for longer than doctor waits.
    let cluster = postgres::start(&Options::default());
    let (stage, relay) = bare_on(&cluster, kafka);
    let plan = Fixed::of(&relay, &[]);
    let mut planned = plan.words("creates");
    for object in [
        "table public.outbox".to_owned(),
        "publication `postrider`".to_owned(),
        format!("replication slot `{}`", stage.slot()),
        format!("topic `{}`", stage.topic("dead-letters")),
        format!("topic `{}`", stage.topic("progress")),
    ] {
        assert!(planned.contains(&object), "{object} is not in {planned:?}");
    }
    assert_eq!((&plan.fix["executed"], plan.exit), (&false.into(), Some(1)));
    assert_eq!(stage.sql().rows("SELECT FROM pg_class WHERE relname = 'outbox'").len(), 0);
    assert_eq!(slots(&stage), "0");
    assert!(topic::names(stage.bootstrap(), &stage.topic("")).is_empty());

    let mut created = Fixed::of(&relay, &["--execute"]).words("created");
    created.sort_unstable();
    planned.sort_unstable();
    assert_eq!(created, planned);
    let again = Fixed::of(&relay, &["--execute"]);
    assert!(again.words("created").is_empty() && again.words("creates").is_empty());
    for id in ["table.exists", "publication.exists", "slot.exists", "progress.position"] {
        assert_eq!(again.status(id), "pass", "{id}");
    }
    // What it does not do is named.
    assert!(again.words("left").contains(&"slot.limit".to_owned()), "{:?}", again.words("left"));
    delivers(&stage, &relay);
}

#[test]
fn a_deed_that_was_killed_at_any_time_is_completed_by_the_next() {
    let Some(kafka) = kafka::strict() else { return };
    let (stage, relay) = bare(kafka);
    let mut completed = 0;
    for kill in 1..=KILLS {
        let mut running = relay.start(&["doctor", "--fix", "--execute"]);
        let_pass(KILL_STEP * kill, "a kill at another moment each time");
        completed += u32::from(running.has_ended());
        running.kill_quietly();
    }
    let fixed = fix_until_there_is_a_slot(&stage, &relay);
    for id in ["table.exists", "publication.exists", "slot.exists", "progress.position"] {
        assert_eq!(fixed.status(id), "pass", "{id}: {:#}", fixed.report);
    }
    assert_eq!(slots(&stage), "1");
    println!("{completed} of {KILLS} had ended before they were killed");
    delivers(&stage, &relay);
}

#[test]
fn a_slot_that_would_leave_rows_behind_is_left_to_a_person() {
    let Some(kafka) = kafka::strict() else { return };
    let (stage, relay) = bare(kafka);
    fix_until_there_is_a_slot(&stage, &relay);
    stage.insert("A", 3);
    Fixed::of(&relay, &["--execute"]);
    let drop_slot = format!("SELECT pg_drop_replication_slot('{}')", stage.slot());
    // Rows that no slot has passed.
    stage.sql().run(&drop_slot);
    let slot = "slot.exists".to_owned();
    assert!(Fixed::of(&relay, &[]).words("left").contains(&slot), "the plan says it too");
    let fixed = Fixed::of(&relay, &["--execute"]);
    assert!(fixed.words("left").contains(&slot), "{:?}", fixed.words("left"));
    assert!(fixed.words("created").is_empty() && slots(&stage) == "0");
    assert!(fixed.words("refused")[0].contains("which a new slot does not deliver"));
    // An earlier slot that delivered rows, of which the table knows nothing any more.
    stage.sql().run("DELETE FROM outbox");
    fix_until_there_is_a_slot(&stage, &relay);
    stage.insert("A", 3);
    assert!(relay.start(&["run", "--once"]).outcome().status.success());
    stage.sql().run(&format!("DELETE FROM outbox; {drop_slot}"));
    let fixed = Fixed::of(&relay, &["--execute"]);
    assert!(fixed.words("created").is_empty() && slots(&stage) == "0", "{:#}", fixed.report);
    assert!(fixed.words("refused")[0].contains("postrider repair"), "{:?}", fixed.words("refused"));
}

/// A table that was renamed is none that is absent.
#[test]
fn a_table_that_is_missing_beside_its_slot_is_left_to_a_person() {
    let Some(kafka) = kafka::strict() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "doctor_renamed");
    stage.sql().run("ALTER TABLE outbox RENAME TO events");
    let fixed = Fixed::of(&stage.relay(), &["--only", "table", "--only", "slot", "--execute"]);
    assert!(fixed.words("created").is_empty() && fixed.words("creates").is_empty());
    assert_eq!(stage.sql().rows("SELECT FROM pg_class WHERE relname = 'outbox'").len(), 0);
}

#[test]
fn days_to_come_get_their_partitions() {
    let Some(kafka) = kafka::strict() else { return };
    let (stage, relay) = bare(kafka);
    let setup = relay.start(&["setup", "--partition", "day"]).outcome();
    assert!(setup.status.success(), "{}", setup.log.join("\n"));
    let parts = "SELECT inhrelid::regclass::text FROM pg_inherits \
                 WHERE inhparent = 'outbox'::regclass AND inhrelid::regclass::text <> 'outbox_default' ORDER BY 1";
    let before = stage.sql().rows(parts);
    for part in before.iter().skip(2) {
        stage.sql().run(&format!("DROP TABLE {}", part[0].as_ref().unwrap()));
    }
    let only = ["--only", "table.days", "--execute"];
    let fixed = Fixed::of(&relay, &only);
    assert_eq!(fixed.words("created").len(), before.len() - 2, "{:?}", fixed.fix);
    assert_eq!((fixed.status("table.days"), stage.sql().rows(parts)), ("pass", before));
}
