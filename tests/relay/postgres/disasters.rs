//! What happens to Postgres.

use std::process::Command;
use std::time::{Duration, Instant};

use postrider::sandbox::account::Account;
use postrider::sandbox::postgres::{Cluster, Options, Stop};

use crate::trial::{DELIVERIES, TOPIC, Trial, trials};
use support::freezing_proxy::FreezingProxy;
use support::postgres;
use support::sql::Sql;
use support::wait_for;

/// A trial for each manner of delivery on a cluster of its own; the server first, so that it outlives
/// the trial.
fn alone(stem: &str, options: &Options, test: impl Fn(&Trial, &mut Cluster)) {
    for delivery in DELIVERIES {
        let mut cluster = postgres::start(options);
        let trial = Trial::new(&cluster, stem, delivery);
        test(&trial, &mut cluster);
    }
}

#[test]
fn row_20_clean_restarts_of_postgres_cost_nothing() {
    for options in std::iter::once(Options::default()).chain(postgres::eighteen_options()) {
        alone("restarted", &options, |trial, cluster| {
            let mut running = trial.relay().allow_log("trying again").run();
            let load = trial.load(&[(200, 1), (300, 20)]);
            for _ in 0..3 {
                running.wait_for_log("\"streaming\"");
                load.wait_committed(150);
                cluster.restart(Stop::Fast).unwrap();
            }
            running.wait_for_log("\"streaming\"");
            load.stop();
            trial.wait_settled();
            running.stop();
            trial.assert_kept();
        });
    }
}

#[test]
fn row_28_a_slot_that_was_idle_for_too_long_is_refused() {
    let Some(options) = postgres::eighteen_options() else { return };
    let options = options.with("idle_replication_slot_timeout", "1s");
    alone("idle_too_long", &options, |trial, _| {
        trial.relay().run_once();
        trial.stage.insert(TOPIC, 1);
        wait_for("the slot to be invalidated", || {
            trial.stage.sql().run("CHECKPOINT");
            (trial.stage.slot_value("wal_status") == "lost").then_some(())
        });
        let relay = trial.relay().allow_log("");
        let outcome = relay.start(&["run", "--output", "json"]).outcome();
        let text = outcome.log.join("\n");
        assert_eq!(outcome.status.code(), Some(70), "{text}");
        assert!(text.contains("PR-P041") && text.contains("re-send"), "{text}");
    });
}

/// On a machine busy with other tests it may take longer than the second that it takes.
const RECONNECTED: Duration = Duration::from_secs(15);

#[test]
fn row_29_a_terminated_walsender_is_replaced_within_a_second() {
    for trial in trials("terminated") {
        let mut running = trial.relay().expect_log("trying again").run();
        running.wait_for_log("\"streaming\"");
        let load = trial.load(&[(200, 1), (300, 20)]);
        for _ in 0..3 {
            load.wait_committed(100);
            let begun = Instant::now();
            let holder = trial.stage.slot_value("active_pid");
            trial.stage.sql().run(&format!("SELECT pg_terminate_backend({holder})"));
            running.wait_for_log("\"streaming\"");
            let took = begun.elapsed();
            eprintln!("{}: streaming again after {took:?}", trial.delivery);
            assert!(took < RECONNECTED, "{took:?}");
        }
        load.stop();
        trial.wait_settled();
        running.stop();
        trial.assert_kept();
    }
}

#[test]
fn row_31_a_server_without_room_for_us_is_tried_again() {
    let options = Options::default().with("max_wal_senders", "1").with("max_connections", "12");
    alone("no_room", &options, |trial, cluster| {
        let other = Trial::new(cluster, "first_come", trial.delivery);
        trial.relay().prepare();
        let mut holder = other.relay().run();
        holder.wait_for_log("\"streaming\"");
        let mut running = trial.relay().expect_log("trying again").run();
        let told = running.wait_for_log("trying again");
        assert!(told.contains("ALTER SYSTEM SET max_wal_senders = 5;"), "{told}");
        holder.stop();
        running.wait_for_log("\"streaming\"");
        trial.stage.insert(TOPIC, 5);
        trial.wait_settled();
        // No session of any kind is left: what runs goes on, what ends waits.
        let sessions: Vec<Sql> = std::iter::from_fn(|| {
            Sql::try_connect(&trial.stage.database.address().unix_url()).ok()
        })
        .collect();
        let last = sessions.last().unwrap();
        last.run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', '1', 'A', '{}')",
        );
        last.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
        running.wait_for_log("trying again");
        drop(sessions);
        running.wait_for_log("\"streaming\"");
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_kept().delivered, 6);
    });
}

#[test]
fn row_41_what_a_crash_took_was_never_published() {
    let options =
        Options::default().with("synchronous_commit", "off").with("wal_writer_delay", "500ms");
    alone("forgotten", &options, |trial, cluster| {
        let mut running = trial.relay().allow_log("trying again").run();
        let load = trial.load(&[(600, 1), (600, 7)]);
        for _ in 0..2 {
            running.wait_for_log("\"streaming\"");
            load.wait_committed(800);
            cluster.restart(Stop::Kill).unwrap();
        }
        running.wait_for_log("\"streaming\"");
        let told = load.stop();
        trial.wait_settled();
        running.stop();
        // What was forgotten would be a phantom.
        let verdict = trial.assert_kept();
        let kept = verdict.committed as u64;
        eprintln!("{}: Postgres confirmed {told} rows and kept {kept}", trial.delivery);
    });
}

#[test]
fn row_42_without_its_synchronous_standby_a_commit_is_published_before_it_is_seen() {
    alone("ghost", &Options::default(), |trial, _| {
        let running = trial.relay().run();
        let sql = trial.stage.sql();
        sql.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        sql.run("SELECT pg_reload_conf()");
        let url = trial.stage.database.address().unix_url();
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                Sql::connect(&url).run(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                     VALUES ('t', '1', 'A', '{}')",
                );
            });
            trial.stage.wait_for_records(1);
            assert_eq!(sql.value("SELECT count(*) FROM outbox"), "0", "seen before its commit");
            assert!(!writer.is_finished());
            sql.run("ALTER SYSTEM RESET synchronous_standby_names");
            sql.run("SELECT pg_reload_conf()");
        });
        assert_eq!(sql.value("SELECT count(*) FROM outbox"), "1");
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_once().delivered, 1);
    });
}

/// From now on no file of this process grows beyond a page.
fn limit_files_of(pid: &str) {
    let mut limit = Command::new("prlimit");
    Account::unprivileged().unwrap().apply(&mut limit);
    let status = limit.args(["--pid", pid, "--fsize=4096:4096"]).current_dir("/").status();
    assert!(status.unwrap().success(), "prlimit");
}

/// What Postgres cannot keep in memory of a transaction it writes to disk before it sends it. The disk
/// of the walsender alone is full here: no file of its may grow beyond this.
#[test]
fn row_49_a_server_that_cannot_spill_is_tried_again() {
    let options = Options::default().with("logical_decoding_work_mem", "64kB");
    alone("spill", &options, |trial, _| {
        let relay = trial.relay().set("log.repeat_interval", "0s");
        let mut running = relay.expect_log("No space left").allow_log("could not write").run();
        for _ in 0..2 {
            running.wait_for_log("\"streaming\"");
            limit_files_of(&trial.stage.slot_value("active_pid"));
            trial.stage.insert(TOPIC, 5_000);
            let told = running.wait_for_log("trying again");
            assert!(told.contains("could not write to data file"), "{told}");
        }
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_kept().delivered, 10_000);
    });
}

/// The same to a session that begins: nobody else has its slot, so it is no standby.
#[test]
fn row_172_a_stream_that_dies_while_a_session_begins_is_told() {
    let options = Options::default().with("logical_decoding_work_mem", "64kB");
    alone("dying", &options, |trial, _| {
        trial.relay().prepare();
        trial.stage.insert(TOPIC, 5_000);
        let address = trial.tap.address();
        let proxy = FreezingProxy::start(&address);
        let sql = trial.stage.sql();
        proxy.before_start(move || {
            let walsender = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'";
            limit_files_of(&sql.value(walsender));
        });
        let relay = trial.relay().set("source.url", &proxy.url());
        let mut running = relay.expect_log("trying again").run();
        let told = running.wait_for_log("trying again");
        assert!(told.contains("could not write to data file"), "{told}");
        trial.wait_settled();
        running.stop();
        assert_eq!(trial.assert_kept().delivered, 5_000);
    });
}

/// Close to where the low half of a position overflows: segment 0xFC of log file 0, of 16 MiB each.
const LATE_SEGMENT: &str = "0000000100000000000000FC";
/// Where it has overflowed.
const OVERFLOWN: u64 = 1 << 32;

#[test]
fn row_74_positions_may_pass_four_gibibytes() {
    for delivery in DELIVERIES {
        let mut cluster = postgres::start(&Options::default());
        cluster.stop(Stop::Fast).unwrap();
        let mut reset = Command::new(cluster.binaries().join("pg_resetwal"));
        Account::unprivileged().unwrap().apply(&mut reset);
        let status = reset
            .args(["-l", LATE_SEGMENT])
            .arg(cluster.folder().join("data"))
            .current_dir(cluster.folder())
            .status()
            .unwrap();
        assert!(status.success(), "pg_resetwal: {status}");
        cluster.start_again().unwrap();
        let trial = Trial::new(&cluster, "overflow", delivery);
        assert!(trial.stage.log_end() < OVERFLOWN);
        let relay = trial.relay();
        while trial.stage.log_end() < OVERFLOWN + (1 << 24) {
            let running = relay.run();
            trial.stage.insert(TOPIC, 100);
            trial.stage.sql().run("SELECT pg_switch_wal()");
            trial.wait_settled();
            running.stop();
        }
        assert!(trial.stage.acknowledged() > OVERFLOWN);
        let flushes: Vec<u64> = trial.tap.statuses().iter().map(|it| it.flush).collect();
        assert!(flushes.iter().any(|it| *it < OVERFLOWN), "it began too late");
        trial.assert_once();
    }
}
