//! A source that does not fit the progress in Kafka: exactly-once refuses it with exit code 70, says
//! what to do, and carries on when that is done.

use std::time::{Duration, Instant};

use postrider::sandbox::postgres::{Cluster, Options};

use super::attempt::{Refusal, refused};
use crate::doctor::Report;
use crate::stage::Stage;
use support::broker::Broker;
use support::kafka::Kafka;
use support::relay::Relay;
use support::{kafka, postgres, topic};

/// The check that asks what the gate would say.
const POSITION: &str = "progress.position";
/// Told where the publication is older than the slot.
const CREATED: &str = "created slot";

/// A stage before real Kafka, and a relay that delivers exactly once.
struct Case {
    stage: Stage,
    relay: Relay,
}

impl Case {
    /// The relay has created its slot and delivered ten rows, unless this machine has no Kafka.
    fn delivered(cluster: &Cluster, stem: &str) -> Option<Self> {
        let case = Self::fresh(cluster, kafka::shared()?, stem);
        case.relay.clone().expect_log(CREATED).run_once();
        case.stage.insert("A", 10);
        case.relay.run_once();
        assert_eq!(case.stage.records().len(), 10);
        Some(case)
    }

    fn fresh(cluster: &Cluster, kafka: &Kafka, stem: &str) -> Self {
        let stage = Stage::migrated(cluster, &kafka.bootstrap(), stem);
        let relay = stage.relay().set("kafka.delivery", "exactly_once").unprepared();
        Self { stage, relay: relay.creates_slot() }
    }

    /// What `run` refuses, in the words of `doctor` too.
    fn refused(&self) -> Refusal {
        let refusal = self.refused_by_the_log();
        let report = self.doctor();
        assert_eq!((report.status(POSITION), report.exit()), ("fail", Some(1)), "{}", refusal.text);
        assert_eq!(report.code(POSITION), refusal.code);
        assert!(refusal.text.starts_with(report.finding(POSITION)), "{}", report.finding(POSITION));
        refusal
    }

    /// What only a session finds that reads the log.
    fn refused_by_the_log(&self) -> Refusal {
        refused(&self.relay, &["run"], 70)
    }

    fn doctor(&self) -> Report {
        Report::asked(&self.relay, &["--only", POSITION])
    }

    /// Adopts the slot's position; what was printed.
    fn adopt(&self) -> String {
        let (status, printed) = self.relay.start(&["adopt", "--execute"]).wait_printed();
        assert!(status.success(), "{status}: {printed:?}");
        printed.join("\n")
    }

    /// What `postrider setup --topics` has made, delivering so.
    fn set_up(cluster: &Cluster, kafka: &Kafka, delivery: &str) -> Self {
        let stage = Stage::migrated(cluster, &kafka.bootstrap(), "setup");
        let relay = stage.relay().set("kafka.delivery", delivery).unprepared();
        let case = Self { relay: relay.set("progress.at_least_once", "true"), stage };
        case.set_up_again();
        case
    }

    fn set_up_again(&self) {
        let topics = format!("--topics={}", self.stage.topic("A"));
        let set_up = || self.relay.start(&["setup", &topics]).outcome();
        let mut made = set_up();
        // Other tests hold transactions open on the same server, and `setup` waits for them for ten seconds.
        while made.log.join("\n").contains("PR-P042") {
            made = set_up();
        }
        assert!(made.status.success(), "{:?}", made.log);
        assert!(made.stdout.contains("created: replication slot"), "{}", made.stdout);
    }

    /// Rows arrive again, each once.
    fn assert_goes_on(&self) {
        let before = self.stage.records().len();
        self.stage.insert("A", 10);
        self.relay.run_once();
        assert_eq!(self.stage.records().len(), before + 10);
    }

    fn drop_slot(&self) {
        let slot = self.stage.slot();
        self.stage.sql().run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
    }
}

#[test]
fn adopting_without_brokers_says_so_and_writes_nothing() {
    let stage = Stage::migrated(postgres::installed(), "127.0.0.1:1", "unreached");
    stage.create_slot();
    let relay = stage.relay().set("kafka.delivery", "exactly_once").unprepared();
    for execute in [&["adopt"][..], &["adopt", "--execute"]] {
        let begun = Instant::now();
        refused(&relay, execute, 69).assert(
            "PR-K034",
            &["cannot reach Kafka", "Connection refused", "nothing was written", "run it again"],
        );
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    }
}

#[test]
fn g6_a_relay_that_died_before_its_first_row_knows_its_own_slot() {
    let Some(kafka) = kafka::shared() else { return };
    let case = Case::fresh(postgres::installed(), kafka, "first");
    let mut running = case.relay.clone().allow_log(CREATED).run();
    running.wait_for_log(CREATED);
    running.kill();
    case.assert_goes_on();
}

#[test]
fn g1_a_slot_moved_before_the_first_run_is_a_gap() {
    let Some(kafka) = kafka::shared() else { return };
    let case = Case::fresh(postgres::installed(), kafka, "unread");
    let topics = format!("--topics={}", case.stage.topic("A"));
    let setup = case.relay.start(&["setup", &topics]).outcome();
    assert!(setup.status.success(), "{setup:?}");
    case.stage.insert("A", 3);
    case.drop_slot();
    case.stage.create_slot();
    case.refused().assert("PR-P063", &["begins at", case.stage.slot(), "postrider repair"]);
}

#[test]
fn g6_a_progress_topic_that_was_deleted_is_refused() {
    let Some(case) = Case::delivered(postgres::installed(), "forgotten") else { return };
    let name = format!("postrider.progress.{}", case.stage.slot());
    topic::delete(&Broker::best().bootstrap(), &name);
    case.refused().assert("PR-P064", &["Kafka holds no progress", "postrider adopt --execute"]);
    case.adopt();
    case.assert_goes_on();
}

#[test]
fn g1_a_restored_backup_is_refused() {
    let mut cluster = postgres::start(&Options::default());
    let Some(case) = Case::delivered(&cluster, "restored") else { return };
    let backup = postgres::back_up(&mut cluster);
    // More log than a start of the server writes.
    case.stage.insert("A", 2_000);
    case.relay.run_once();
    postgres::restore(&mut cluster, &backup);
    let refusal = case.refused();
    refusal.assert("PR-P061", &["older copy of the server", case.stage.slot(), "adopt --execute"]);
    // A slot remembers its position lazily, so that the rows before the backup may come again too.
    assert!(case.adopt().contains("a second time"));
    case.stage.insert("A", 10);
    case.relay.run_once();
    let records = case.stage.records().len();
    assert!((2_020..=2_030).contains(&records), "{records}");
}

/// The copy has the same identifier, timeline and slot; and rows of its own where others were delivered.
#[test]
fn g1_a_restored_copy_that_has_grown_past_what_was_delivered_is_refused() {
    for version in postgres::versions() {
        let options = match version.version() {
            18.. => postgres::eighteen_options().unwrap(),
            _ => Options::default(),
        };
        let mut cluster = postgres::start(&options);
        let Some(case) = Case::delivered(&cluster, "grown") else { return };
        let backup = postgres::back_up(&mut cluster);
        case.stage.insert("A", 10_000);
        case.relay.run_once();
        let delivered = case.stage.log_end();
        postgres::restore(&mut cluster, &backup);
        for _ in 0..100 {
            case.stage.insert("B", 10);
        }
        case.stage.sql().run("CREATE TABLE filler (text text)");
        while case.stage.log_end() <= delivered {
            case.stage.sql().run(
                "INSERT INTO filler SELECT repeat(md5(n::text), 30) FROM generate_series(1, 1000) n",
            );
        }
        let before = case.stage.acknowledged();
        for _ in 0..2 {
            let words = ["the commit of transaction", "another copy", "postrider adopt --execute"];
            case.refused_by_the_log().assert("PR-P061", &words);
            assert_eq!(case.stage.acknowledged(), before, "nothing is acknowledged");
            assert_eq!(case.stage.records().len(), 10_010, "nothing is sent");
        }
        case.adopt();
        case.relay.run_once();
        assert!(case.stage.records().len() >= 11_010);
        case.assert_goes_on();
    }
}

/// Nobody can tell what it published meanwhile, and most of what is altered is harmless.
#[test]
fn g1_a_publication_altered_while_the_relay_was_down_is_told() {
    for cluster in postgres::versions() {
        let Some(case) = Case::delivered(cluster, "altered") else { return };
        case.stage.sql().run("ALTER PUBLICATION postrider SET (publish = 'update')");
        case.stage.insert("A", 3);
        case.stage.sql().run("ALTER PUBLICATION postrider SET (publish = 'insert')");
        case.stage.insert("A", 10);
        let told = "publication `postrider` was altered since the session began that delivered";
        let report = case.doctor();
        assert_eq!(report.status(POSITION), "warn");
        assert!(report.finding(POSITION).starts_with(told), "{}", report.finding(POSITION));
        case.relay.clone().expect_log(told).run_once();
        assert_eq!(case.stage.records().len(), 20, "three were passed over");
        // The progress is of the publication as it is now.
        case.assert_goes_on();
    }
}

/// `setup` keeps what was published when it made the slot, so that the first session can tell.
#[test]
fn g1_what_is_published_is_compared_from_setup_on() {
    let Some(kafka) = kafka::shared() else { return };
    for cluster in postgres::versions() {
        for delivery in ["exactly_once", "at_least_once"] {
            let altered = Case::set_up(cluster, kafka, delivery);
            // While there is no slot, anything may be made anew.
            altered.drop_slot();
            altered.stage.sql().run(
                "DROP PUBLICATION postrider; \
                 CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')",
            );
            altered.set_up_again();
            altered.stage.sql().run("ALTER PUBLICATION postrider SET (publish = 'update')");
            altered.stage.insert("A", 3);
            altered.stage.sql().run("ALTER PUBLICATION postrider SET (publish = 'insert')");
            let told = format!("was altered since slot `{}` was made", altered.stage.slot());
            altered.relay.clone().expect_log(&told).run_once();
            altered.assert_goes_on();

            let member = Case::set_up(cluster, kafka, delivery);
            member.stage.sql().run("ALTER PUBLICATION postrider DROP TABLE outbox");
            member.stage.insert("A", 3);
            member.stage.sql().run("ALTER PUBLICATION postrider ADD TABLE outbox");
            member
                .refused()
                .assert("PR-P067", &["put in again since the slot was made", "re-send"]);
            member.adopt();
            member.assert_goes_on();
        }
    }
}

#[test]
fn g1_another_cluster_in_the_place_of_the_old_one_starts_a_stream_of_its_own() {
    let Some(kafka) = kafka::shared() else { return };
    let Some(first) = Case::delivered(postgres::installed(), "cluster") else { return };
    let other = postgres::start(&Options::default());
    let stage = Stage::named(&other, &kafka.bootstrap(), first.stage.slot());
    stage.create_slot();
    let relay = stage.relay().set("kafka.delivery", "exactly_once").unprepared();
    refused(&relay, &["run"], 70).assert("PR-P064", &["postrider adopt --execute"]);
}

#[test]
fn g1_a_failover_that_lost_rows_is_told_and_new_rows_arrive() {
    let mut cluster = postgres::start(&Options::default());
    let Some(case) = Case::delivered(&cluster, "tail") else { return };
    let backup = postgres::back_up(&mut cluster);
    case.stage.insert("A", 10);
    case.relay.run_once();
    assert_eq!(case.stage.records().len(), 20);
    postgres::restore(&mut cluster, &backup);
    postgres::promote(&mut cluster);
    case.stage.insert("A", 10);
    let relay = case.relay.clone().expect_log("is in Kafka and no longer in Postgres");
    relay.run_once();
    assert_eq!(case.stage.records().len(), 30);
    case.assert_goes_on();
}

#[test]
fn g6_a_failover_repeats_nothing() {
    let mut cluster = postgres::start(&Options::default());
    let Some(case) = Case::delivered(&cluster, "promoted") else { return };
    postgres::promote(&mut cluster);
    assert_eq!(case.doctor().status(POSITION), "pass", "its timeline descends from the one before");
    case.assert_goes_on();
    case.assert_goes_on();
}
