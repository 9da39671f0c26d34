//! A slot that was lost and made anew has not delivered what its predecessor missed: those rows stay until the
//! operator says that they were delivered.

use postrider::sandbox::postgres::Options;

use super::scene::{Pruned, Scene, prune};
use crate::doctor::Report;
use crate::tables::Writer;
use support::relay::{Relay, Running};
use support::{kafka, wait::wait_until};

const DEED: [&str; 3] = ["--older-than", "1d", "--execute"];
const PLAN: [&str; 2] = ["--older-than", "1d"];
/// What `at_least_once` makes of a slot that is ahead of its progress.
const GAP: &str = "if the slot was moved, rows committed between them are not delivered";

/// A database that `setup` has made ready, and a relay that keeps progress.
pub(super) struct Case {
    pub(super) scene: Scene,
    pub(super) relay: Relay,
}

impl Case {
    fn set_up(delivery: &str) -> Option<Self> {
        let scene = Scene::without_slot(&Options::default(), &kafka::shared()?.bootstrap());
        let relay = scene.relay().set("kafka.delivery", delivery).unprepared();
        let case = Self { relay: relay.set("progress.at_least_once", "true"), scene };
        case.make_slot(&[]);
        Some(case)
    }

    pub(super) fn make_slot(&self, arguments: &[&str]) {
        let topics = format!("--topics={}", self.scene.stage.topic("A"));
        let made = self.relay.start(&[&["setup", &topics], arguments].concat()).outcome();
        assert!(made.status.success(), "{:?}", made.log);
        assert!(made.stdout.contains("created: replication slot"), "{}", made.stdout);
    }

    fn prune(&self, arguments: &[&str]) -> Pruned {
        prune(&self.relay, arguments)
    }

    /// Lets a relay deliver what there is, and the slot pass it.
    fn deliver(&self, relay: &Relay) {
        let running = relay.run();
        self.pass(&running);
        running.stop();
    }

    /// Waits until a relay that runs has let the slot pass what has committed so far.
    fn pass(&self, _running: &Running) {
        let sql = self.scene.sql();
        let next = sql.value("SELECT txid_snapshot_xmax(txid_current_snapshot())");
        wait_until("the slot to pass", || {
            sql.run("CHECKPOINT");
            self.scene.stage.slot_value(&format!("catalog_xmin::text::bigint >= {next}")) == "t"
        });
    }

    /// Drops the slot with rows that it had not delivered, and makes it anew, as somebody does by hand.
    fn lose_slot(&self) {
        let slot = self.scene.stage.slot();
        self.scene.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
        self.scene.stage.create_slot();
    }
}

/// The slot, the progress and the log all move meanwhile.
#[test]
fn prune_and_doctor_find_nothing_wrong_beside_a_relay_that_delivers() {
    for delivery in ["exactly_once", "at_least_once"] {
        let Some(case) = Case::set_up(delivery) else { return };
        let mut running = case.relay.run();
        running.wait_for_log("\"streaming\"");
        case.scene.insert("first", 10, "2 days");
        case.pass(&running);
        let writer = Writer::start(&case.scene.stage, "A");
        for _ in 0..6 {
            assert_eq!(case.prune(&PLAN).counts().0, 10);
            let report = Report::asked(&case.relay, &["--only", "progress.position"]);
            let finding = report.finding("progress.position");
            assert_eq!(report.status("progress.position"), "pass", "{finding}");
        }
        writer.stop();
        running.stop();
    }
}

#[test]
fn g1_rows_that_a_lost_slot_has_not_delivered_stay_exactly_once() {
    let Some(case) = Case::set_up("exactly_once") else { return };
    // Before the first relay has ever run: the slot was there.
    case.scene.insert("first", 10, "2 days");
    case.deliver(&case.relay);
    assert_eq!(case.prune(&PLAN).counts(), (10, 0, vec![(0, 0)]));
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 0)]));
    case.scene.insert("delivered", 10, "2 days");
    let killed = case.relay.run();
    case.pass(&killed);
    killed.kill();
    case.scene.insert("missed", 10, "2 days");
    let sql = case.scene.sql();
    wait_until("the slot to be free", || case.scene.stage.slot_value("active") == "f");
    case.lose_slot();
    case.scene.insert("after", 10, "2 days");
    // The new slot has passed everything, as far as Postgres knows.
    case.scene.pass();
    for arguments in [&PLAN[..], &DEED, &[&DEED[..], &["--from-before-slot"]].concat()] {
        case.prune(arguments).assert_refused(70, &["PR-P063", "postrider adopt"]);
    }
    let adopted = case.relay.start(&["adopt", "--execute"]).wait();
    assert!(adopted.success());
    case.scene.insert("new", 10, "2 days");
    case.deliver(&case.relay);
    let pruned = case.prune(&DEED);
    assert_eq!(pruned.counts(), (10, 10, vec![(0, 30)]), "{}", pruned.log);
    assert_eq!((case.scene.count("missed"), case.scene.count("new")), (10, 0));
    // Now they are sent again.
    sql.run(
        "WITH again AS (DELETE FROM outbox WHERE aggregate_id = 'missed' RETURNING *) \
         INSERT INTO outbox SELECT * FROM again",
    );
    assert_eq!(case.prune(&DEED).counts(), (0, 0, vec![(10, 20)]));
    case.deliver(&case.relay);
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 20)]));
    let told = [&DEED[..], &["--from-before-slot"]].concat();
    assert_eq!(case.prune(&told).counts(), (20, 20, vec![(0, 0)]));
}

#[test]
fn g1_rows_that_a_lost_slot_has_not_delivered_stay_at_least_once() {
    let Some(case) = Case::set_up("at_least_once") else { return };
    case.scene.insert("first", 10, "2 days");
    case.deliver(&case.relay);
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 0)]));
    case.scene.insert("missed", 10, "2 days");
    case.lose_slot();
    case.prune(&DEED).assert_refused(70, &["PR-P063"]);
    // The relay goes on with a warning, and its progress then names the new slot's position.
    case.scene.insert("in between", 10, "2 days");
    let running = case.relay.clone().expect_log(GAP).run();
    case.pass(&running);
    case.scene.insert("new", 10, "2 days");
    case.pass(&running);
    running.stop();
    // Those between slot and relay were delivered, and cannot be told from those before.
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 20)]));
    case.scene.insert("newer", 10, "2 days");
    case.deliver(&case.relay);
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 20)]), "the beginning is handed on");
    assert_eq!(case.scene.count("missed"), 10);
}

#[test]
fn a_slot_that_is_replaced_before_its_first_row_was_delivered_is_noticed() {
    let Some(case) = Case::set_up("exactly_once") else { return };
    case.scene.insert("missed", 10, "2 days");
    case.lose_slot();
    case.scene.pass();
    case.prune(&DEED).assert_refused(70, &["PR-P063", "postrider repair"]);
    assert_eq!(case.scene.count("missed"), 10);
}

#[test]
fn rows_from_before_setup_are_kept_until_they_are_said_to_be_delivered() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::without_slot(&Options::default(), &kafka.bootstrap());
    scene.insert("before", 10, "2 days");
    let relay = scene.relay().set("kafka.delivery", "exactly_once").unprepared();
    let case = Case { scene, relay };
    case.make_slot(&["--from-now"]);
    case.scene.insert("behind", 10, "2 days");
    case.deliver(&case.relay);
    assert_eq!(case.prune(&DEED).counts(), (10, 10, vec![(0, 10)]));
    assert_eq!(case.scene.count("before"), 10);
}

#[test]
fn a_table_that_is_published_later_has_rows_that_were_never_sent() {
    let Some(case) = Case::set_up("exactly_once") else { return };
    case.scene.sql().run(
        "CREATE TABLE second (LIKE outbox INCLUDING ALL); \
         INSERT INTO second (aggregate_type, aggregate_id, event_type, created_at) \
         VALUES ('t', 'k', 'A', now() - interval '2 days')",
    );
    case.scene.insert("first", 10, "2 days");
    case.deliver(&case.relay);
    case.scene.sql().run("ALTER PUBLICATION postrider ADD TABLE second");
    let relay = case.relay.clone().set("source.tables", "public.outbox,public.second");
    let case = Case { relay, ..case };
    case.prune(&DEED).assert_refused(70, &["PR-P073", "tables or publication were changed"]);
    case.deliver(&case.relay);
    let pruned = case.prune(&DEED);
    assert_eq!(pruned.exit, 0, "{}", pruned.log);
    let before = |table: usize| pruned.tables[table]["slots"][0]["before_slot"].as_u64();
    assert_eq!((before(0), before(1)), (Some(10), Some(1)));
}

/// Each with a relay and progress of its own.
#[test]
fn a_second_slot_is_judged_by_its_own_progress() {
    let Some(case) = Case::set_up("exactly_once") else { return };
    let other_slot = format!("{}_other", case.scene.stage.slot());
    let other = case.relay.clone().set("source.slot", &other_slot);
    let topics = format!("--topics={}", case.scene.stage.topic("A"));
    let made = other.start(&["setup", &topics]).outcome();
    assert!(made.stdout.contains("created: replication slot"), "{} {:?}", made.stdout, made.log);
    case.scene.insert("rows", 10, "2 days");
    case.deliver(&case.relay);
    let both = ["--slot", case.scene.stage.slot(), "--slot", &other_slot];
    let deed = [&DEED[..], &both].concat();
    assert_eq!(case.prune(&deed).counts(), (0, 0, vec![(0, 0), (10, 0)]));
    other.run_once();
    wait_until("the other slot to pass", || {
        case.scene.sql().run("CHECKPOINT");
        other.run_once();
        case.prune(&[&PLAN[..], &both].concat()).counts().0 == 10
    });
    assert_eq!(case.prune(&deed).counts(), (10, 10, vec![(0, 0), (0, 0)]));
    case.scene.sql().run(&format!("SELECT pg_drop_replication_slot('{other_slot}')"));
}
