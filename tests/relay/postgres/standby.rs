//! Streaming from a standby (PostgreSQL 16 and later), by a slot of its own: how the slot is made, what the relay goes on
//! over, and what ends it.

use postrider::sandbox::postgres::{Cluster, Stop};

use super::pair::{delivered, rows};
use crate::stage::Stage;
use support::broker::Broker;
use support::relay::{Outcome, Relay};
use support::relay_http::RelayHttp;
use support::wait::wait_until;
use support::{kafka, postgres, topic, wait_for};

const ROWS: usize = 100;
const SNAPSHOT: &str = "SELECT pg_log_standby_snapshot()";

/// A primary, its standby, and the same database at both.
struct Source {
    primary: Cluster,
    standby: Cluster,
    at_primary: Stage,
    at_standby: Stage,
}

impl Source {
    /// `None` after saying what this machine lacks.
    fn start(bootstrap: &str, stem: &str) -> Option<Self> {
        let options = postgres::eighteen_options()?;
        let mut primary = postgres::start(&options);
        let at_primary = Stage::migrated(&primary, bootstrap, stem);
        let standby = postgres::standby_of(&mut primary, &options);
        let at_standby = Stage::before(at_primary.database.at(&standby), bootstrap);
        Some(Self { primary, standby, at_primary, at_standby })
    }

    /// The same, where the standby follows another one, which comes second.
    fn start_cascade(bootstrap: &str, stem: &str) -> Option<(Self, Cluster, Stage)> {
        let options = postgres::eighteen_options()?;
        let mut primary = postgres::start(&options);
        let at_primary = Stage::migrated(&primary, bootstrap, stem);
        let mut middle = postgres::standby_of(&mut primary, &options);
        let standby = postgres::standby_of(&mut middle, &options);
        let stage = |cluster| Stage::before(at_primary.database.at(cluster), bootstrap);
        let (at_middle, at_standby) = (stage(&middle), stage(&standby));
        Some((Self { primary, standby, at_primary, at_standby }, middle, at_middle))
    }

    /// A relay that names the standby alone.
    fn relay(&self) -> Relay {
        self.at_standby.relay().set("source.standby", "true").set("retry.max", "500ms").unprepared()
    }

    /// A command that makes the slot, and what its primary does meanwhile.
    fn slot_by(&self, relay: &Relay, words: &[&str], meanwhile: impl Fn()) {
        let mut command = relay.start(words);
        wait_until("the slot", || {
            meanwhile();
            self.at_primary.sql().run(SNAPSHOT);
            command.has_ended()
        });
        let outcome = command.outcome();
        assert!(outcome.status.success(), "{:?}", outcome.log);
    }

    /// As docs/operations/standby.md has it.
    fn set_up(&self, relay: &Relay) {
        self.slot_by(relay, &["setup"], || ());
        assert_eq!(self.at_standby.slot_value("database"), self.at_standby.slot());
    }

    fn set_at_standby(&self, setting: &str) {
        let sql = self.at_standby.sql();
        sql.run(&format!("ALTER SYSTEM SET {setting}"));
        sql.run("SELECT pg_reload_conf()");
    }
}

/// Waits until all rows of a server are delivered and acknowledged.
fn wait_delivered(stage: &Stage, delivery: &str) {
    let all = rows(stage);
    wait_for("every row", || delivered(stage).0.is_superset(&all).then_some(()));
    let (ids, records) = delivered(stage);
    assert_eq!(ids.len(), all.len(), "{delivery}");
    assert!(delivery == "at_least_once" || records == ids.len(), "{delivery}: {records}");
}

#[test]
fn g1_g6_a_stream_from_a_standby_goes_on_over_its_crash_its_primary_s_and_its_promotion() {
    let Some(kafka) = kafka::shared() else { return };
    for delivery in ["at_least_once", "exactly_once"] {
        let Some(mut source) = Source::start(&kafka.bootstrap(), "read") else { return };
        topic::create(&kafka.bootstrap(), &source.at_primary.topic("A"), 3, &[]);
        let relay = source.relay().set("kafka.delivery", delivery);
        source.set_up(&relay);
        source.at_primary.insert("A", ROWS);
        let mut running = relay.allow_log("trying again").allow_log("promoted").run();
        running.wait_for_log("\"streaming\"");
        wait_delivered(&source.at_primary, delivery);
        source.standby.stop(Stop::Kill).unwrap();
        source.at_primary.insert("A", ROWS);
        source.standby.start_again().unwrap();
        running.wait_for_log("\"streaming\"");
        wait_delivered(&source.at_primary, delivery);
        source.primary.stop(Stop::Kill).unwrap();
        source.primary.start_again().unwrap();
        source.at_primary.insert("A", ROWS);
        wait_delivered(&source.at_primary, delivery);
        source.primary.stop(Stop::Kill).unwrap();
        assert_eq!(source.at_standby.sql().value("SELECT pg_promote()"), "t");
        source.at_standby.insert("A", ROWS);
        running.wait_for_log("promoted");
        running.wait_for_log("\"streaming\"");
        wait_delivered(&source.at_standby, delivery);
        assert_eq!(rows(&source.at_standby).len(), 4 * ROWS);
        source.at_standby.wait_acknowledged(source.at_standby.log_end());
        running.stop();
    }
}

/// A standby of a standby: when that is promoted it goes on by itself, and its walsender never names the new timeline. After
/// a crash it names the one before, or has not replayed what was delivered, until it has read its WAL again.
#[test]
fn g1_g6_a_standby_that_followed_a_promotion_is_waited_for_after_its_crash() {
    let Some(kafka) = kafka::shared() else { return };
    // Progress names the new timeline if the relay was started again; the standby begins on it at a restart point.
    for (is_restarted, has_restart_point) in [(false, true), (true, false)] {
        let Some((mut source, _middle, promoted)) =
            Source::start_cascade(&kafka.bootstrap(), "followed")
        else {
            return;
        };
        topic::create(&kafka.bootstrap(), &promoted.topic("A"), 3, &[]);
        let relay = source.relay().set("kafka.delivery", "exactly_once").allow_log("trying again");
        source.set_up(&relay);
        // Nothing else moves the place from where it takes connections again.
        source.set_at_standby("bgwriter_lru_maxpages = 0");
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        source.at_primary.insert("A", ROWS);
        wait_delivered(&source.at_primary, "exactly_once");
        source.primary.stop(Stop::Kill).unwrap();
        assert_eq!(promoted.sql().value("SELECT pg_promote()"), "t");
        let deliver = || {
            promoted.insert("A", ROWS);
            wait_delivered(&promoted, "exactly_once");
        };
        deliver();
        if has_restart_point {
            promoted.sql().run("CHECKPOINT");
            deliver();
            source.at_standby.sql().run("CHECKPOINT");
        }
        if is_restarted {
            running.stop();
            running = relay.run();
            running.wait_for_log("\"streaming\"");
        }
        deliver();
        let delayed = "ALTER SYSTEM SET recovery_min_apply_delay = '1h'";
        source.at_standby.sql().run(delayed);
        source.standby.stop(Stop::Kill).unwrap();
        source.standby.start_again().unwrap();
        running.wait_for_log("the standby has replayed its log up to");
        source.set_at_standby("recovery_min_apply_delay = 0");
        running.wait_for_log("\"streaming\"");
        deliver();
        running.stop();
    }
}

/// What is not of the log comes from the standby's tables: the rows of before its slot, and those of one that was lost.
#[test]
fn g6_rows_of_before_the_slot_of_a_standby_come_once() {
    let Some(kafka) = kafka::shared() else { return };
    let Some(source) = Source::start(&kafka.bootstrap(), "earlier") else { return };
    for name in ["A", "dead-letters"] {
        topic::create(&kafka.bootstrap(), &source.at_primary.topic(name), 3, &[]);
    }
    let relay = source.relay().set("kafka.delivery", "exactly_once");
    source.at_primary.insert("A", ROWS);
    let outcome = relay.start(&["setup", "--existing", "send"]).outcome();
    assert!(outcome.status.success(), "{:?}", outcome.log);
    for words in [["backfill", "--execute"], ["repair", "--execute"]] {
        source.slot_by(&relay, &words, || source.at_primary.insert("A", 5));
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        source.at_primary.insert("A", ROWS);
        wait_delivered(&source.at_primary, "exactly_once");
        running.stop();
        let slot = source.at_standby.slot();
        source.at_standby.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
        source.at_primary.insert("A", ROWS);
    }
}

/// Rows wait for it, and the stream looks like one that is idle.
#[test]
fn a_standby_that_replays_nothing_is_told_with_the_fix() {
    let broker = Broker::embedded();
    let Some(source) = Source::start(&broker.bootstrap(), "halted") else { return };
    let relay = source.relay().allow_log("the standby that the relay streams from");
    source.set_up(&relay);
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    face.wait_ready(200);
    source.at_standby.sql().run("SELECT pg_wal_replay_pause()");
    source.at_primary.insert("A", ROWS);
    let warned = running.wait_for_log("its replay is paused");
    assert!(warned.contains("pg_wal_replay_resume()"), "{warned}");
    let health = face.wait_ready(503).to_string();
    assert!(health.contains("its replay is paused"), "{health}");
    assert!(source.at_standby.records().is_empty());
    source.at_standby.sql().run("SELECT pg_wal_replay_resume()");
    wait_delivered(&source.at_primary, "exactly_once");
    face.wait_ready(200);
    source.set_at_standby("primary_conninfo = ''");
    let warned = running.wait_for_log("receives nothing from its primary");
    assert!(warned.contains("pg_rewind"), "{warned}");
    face.wait_ready(503);
    running.stop();
}

/// The standby tells no more which rows of the catalogs it needs, and the primary removes them.
#[test]
fn g1_a_slot_that_a_standby_loses_to_its_primary_s_vacuum_ends_the_relay_with_the_fix() {
    let broker = Broker::embedded();
    let Some(source) = Source::start(&broker.bootstrap(), "removed") else { return };
    let relay = source.relay();
    source.set_up(&relay);
    source.set_at_standby("hot_standby_feedback = off");
    let kept = "SELECT count(*) FROM pg_replication_slots WHERE catalog_xmin IS NOT NULL";
    wait_until("no feedback", || source.at_primary.sql().value(kept) == "0");
    let mut running = relay.run();
    let warned = running.wait_for_log("hot_standby_feedback is off");
    assert!(warned.contains("ALTER SYSTEM SET hot_standby_feedback = on"), "{warned}");
    running.wait_for_log("\"streaming\"");
    let sql = source.at_primary.sql();
    wait_until("the end of the relay", || {
        sql.run("CREATE TABLE removed (n int)");
        sql.run("DROP TABLE removed");
        sql.run("VACUUM pg_class");
        running.has_ended()
    });
    assert_lost(&running.outcome(), "set hot_standby_feedback");
}

#[test]
fn g1_a_slot_that_a_standby_loses_to_its_primary_s_wal_level_ends_the_relay_with_the_fix() {
    let broker = Broker::embedded();
    let Some(mut source) = Source::start(&broker.bootstrap(), "leveled") else { return };
    let relay = source.relay();
    source.set_up(&relay);
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    source.at_primary.sql().run("ALTER SYSTEM SET wal_level = replica");
    source.primary.stop(Stop::Kill).unwrap();
    source.primary.start_again().unwrap();
    assert_lost(&running.outcome(), "keep wal_level = logical, on the primary too");
}

fn assert_lost(outcome: &Outcome, fix: &str) {
    assert_eq!(outcome.status.code(), Some(70), "{:?}", outcome.log);
    assert!(outcome.log.iter().any(|line| line.contains(fix)), "{:?}", outcome.log);
}

#[test]
fn what_cannot_be_made_where_it_is_asked_for_is_refused_with_the_fix() {
    let broker = Broker::embedded();
    let Some(source) = Source::start(&broker.bootstrap(), "refused") else { return };
    let says = |relay: &Relay, parts: [&str; 2]| {
        let outcome = relay.start(&["setup"]).outcome();
        let said = outcome.log.join("\n");
        assert!(!outcome.status.success(), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
    };
    says(&source.relay().set("source.standby", "false"), ["PR-P045", "source.standby = true"]);
    let at_primary = source.at_primary.relay().set("source.standby", "true").unprepared();
    says(&at_primary, ["PR-P118", "name the standby alone in source.url"]);
    let unpublished = source.relay().set("source.publication", "other");
    says(&unpublished, ["PR-P045", "at the primary `postrider setup --no-slot`"]);
    let open = source.at_primary.sql();
    open.run("BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'k', 'A', '{}')");
    source.at_primary.sql().run(SNAPSHOT);
    says(&source.relay(), ["PR-P119", "GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO"]);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'";
    for stage in [&source.at_primary, &source.at_standby] {
        assert_eq!(stage.sql().value(slots), "0");
    }
    open.run("ROLLBACK");
    source.set_up(&source.relay());
}
