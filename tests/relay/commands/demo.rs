//! `postrider demo` on a database that was there before and stays.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use support::postgres::{self, Database};
use support::relay_http::RelayHttp;
use support::wait::wait_until;
use support::{kafka, wait_for};

const LEFT_BEHIND: &str = "SELECT (SELECT count(*) FROM pg_replication_slots
                                    WHERE database = current_database())
                                + (SELECT count(*) FROM pg_publication
                                    WHERE pubname = 'postrider_demo')";

fn demo(database: &Database, count: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    let url = database.address().unix_url();
    command.args(["demo", "--output", "json", "--database-url", &url, "--count"]);
    command.arg(count.to_string()).stdin(Stdio::null());
    command
}

#[test]
fn a_database_that_stays_is_left_as_it_was() {
    let database = Database::create(postgres::installed(), "demo");
    // Slots are the cluster's, so two demos at once must not take each other's.
    let neighbour = Database::create(postgres::installed(), "demo_neighbour");
    for _ in 0..2 {
        let mut beside = demo(&neighbour, 200).stdout(Stdio::null()).spawn().unwrap();
        let output = demo(&database, 200).output().unwrap();
        assert!(beside.wait().unwrap().success());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&figures["delivered"], &figures["lost"]), (&200.into(), &0.into()));
        let shop = serde_json::json!({
            "orders": 24, "repeated_requests": 6, "confirmed": 14, "cancelled": 10, "refunded": 6,
            "stuck": 0,
        });
        assert_eq!(figures["shop"], shop);
        assert_eq!(database.sql().value(LEFT_BEHIND), "0");
    }
    // The last is what a terminal sends that is closed.
    for signal in [Signal::INT, Signal::HUP] {
        ends_and_leaves_nothing(&database, signal);
    }
}

fn ends_and_leaves_nothing(database: &Database, signal: Signal) {
    let mut interrupted = demo(database, 1_000_000).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the demo to stream", || {
        // A slot is active, and has no position yet, while it is made.
        let sql = "SELECT count(*) FROM pg_replication_slots
                    WHERE database = current_database() AND active AND confirmed_flush_lsn IS NOT NULL";
        (database.sql().value(sql) == "1").then_some(())
    });
    let delivered = || {
        let sql = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots
                    WHERE database = current_database()";
        database.sql().value(sql).parse::<u64>().unwrap()
    };
    let before = delivered();
    wait_until("rows to be delivered", || delivered() > before);
    let pid = i32::try_from(interrupted.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
    assert!(!interrupted.wait().unwrap().success());
    assert_eq!(database.sql().value(LEFT_BEHIND), "0");
}

#[test]
fn a_demo_that_stays_keeps_its_dashboard_until_it_is_told_to_go() {
    let database = Database::create(postgres::installed(), "demo_stays");
    let mut staying = demo(&database, 200)
        .arg("--stay")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(staying.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.contains("until Ctrl-C")).unwrap();
    let address = told.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let drained = std::thread::spawn(move || lines.for_each(drop));
    let confirmed = || {
        let (head, body) = RelayHttp::at(&address).ask("/api/v1/state", &[]);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let state: serde_json::Value = serde_json::from_str(&body).unwrap();
        state["numbers"]["confirmed"].as_u64().unwrap()
    };
    let before = confirmed();
    wait_until("further orders", || confirmed() > before);
    let pid = i32::try_from(staying.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let output = staying.wait_with_output().unwrap();
    drained.join().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&figures["delivered"], &figures["lost"]), (&200.into(), &0.into()));
    assert_eq!(database.sql().value(LEFT_BEHIND), "0");
}

#[test]
fn a_database_that_others_read_is_refused() {
    let database = Database::create(postgres::installed(), "demo_taken");
    let slot = database.name();
    let sql = database.sql();
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    let output = demo(&database, 200).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains(slot), "{errors}");
    assert_eq!(sql.value("SELECT count(*) FROM pg_class WHERE relname = 'outbox'"), "0");
    sql.run(&format!("SELECT pg_drop_replication_slot('{slot}')"));
}

#[test]
fn orders_reach_a_real_kafka_over_topics_that_the_demo_creates() {
    let Some(kafka) = kafka::start(&kafka::Options::default()) else { return };
    let database = Database::create(postgres::installed(), "demo_kafka");
    let exactly_once = ["--kill-every", "1s", "--delivery", "exactly_once"];
    for cruelty in [&[] as &[&str], &["--kill-every", "1s"], &exactly_once] {
        let mut demo = demo(&database, 3_000);
        let output = demo.args(["--brokers", &kafka.bootstrap()]).args(cruelty).output().unwrap();
        eprintln!(
            "{}",
            String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat())
        );
        assert!(output.status.success());
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(figures["delivered"], 3_000);
        for never in ["lost", "phantom", "out_of_order"] {
            assert_eq!(figures[never], 0, "{never}");
        }
        assert_eq!(figures["kills"].as_u64().unwrap() == 0, cruelty.is_empty());
        // What was killed sends again what was in flight, unless it was told not to.
        assert!(figures["duplicated"] == 0 || cruelty.len() == 2, "{figures}");
    }
}
