//! Sessions that read a backlog in windows beside their server: what it forgets, keeps and ends.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rustix::process::{Pid, Signal, kill_process};

use super::backlog::{WINDOWS, make_noise};
use super::idle::ALL;
use crate::doctor::Report;
use crate::stage::Stage;
use postrider::sandbox::postgres::{Options, Stop};
use support::broker::{Broker, take_down};
use support::sql::Sql;
use support::wait::{stays, wait_for, wait_until};
use support::{is_full, postgres};

/// A process that no server has.
const NOBODY: i32 = 2_000_000_000;

/// Rows of 2 kB: more than the sockets between a server and a relay hold.
fn insert_large(stage: &Stage, count: usize) {
    stage.sql().run(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', n % 10, 'A', to_jsonb((SELECT string_agg(md5(n::text || m), '') \
             FROM generate_series(1, 64) AS m)) FROM generate_series(1, {count}) AS n"
    ));
}

/// The processes of temporary slots.
fn copies(sql: &Sql) -> String {
    sql.value(
        "SELECT coalesce(string_agg(slot_name, ' '), '') FROM pg_replication_slots WHERE temporary",
    )
}

/// PostgreSQL 15 keeps the position of a slot in memory, and a clean stop does not write it. It writes it with the next
/// note of which transactions are open, every 15 s.
#[test]
fn a_restart_within_a_backlog_repeats_only_rows_in_flight() {
    // A crash of one process restarts the others, and keeps the server's start time.
    let mut stops = vec![("true", Some(Stop::Fast)), ("false", None)];
    if is_full() {
        stops.extend([("false", Some(Stop::Fast)), ("true", Some(Stop::Immediate))]);
    }
    for (catch_up, stop) in stops {
        let has_forgotten = (0..5).any(|_| forgets(catch_up, stop));
        assert!(has_forgotten, "the server has forgotten nothing");
    }
}

/// Kills a process of the server, and waits until the server has recovered.
fn crash_one_process(stage: &Stage) {
    let writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'";
    let killed = stage.sql().value(writer);
    let pid = Pid::from_raw(killed.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let url = stage.database.address().unix_url();
    wait_until("another background writer", || {
        let sql = Sql::try_connect(&url).ok();
        let rows = sql.and_then(|sql| sql.try_rows(writer).ok()).unwrap_or_default();
        rows.iter().flatten().flatten().any(|other| *other != killed)
    });
}

/// Restarts or crashes a server within a backlog whose end is not delivered. Whether it has forgotten what was acknowledged.
fn forgets(catch_up: &str, stop: Option<Stop>) -> bool {
    let mock = MockCluster::new(2).unwrap();
    let mut cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "forgets");
    let oracle = stage.oracle();
    let relay = stage.relay().allow_log("").set("source.catch_up", catch_up);
    let relay = relay.set("source.status_interval", "20ms").set("kafka.max_in_flight", "1MiB");
    // The second half waits for a broker of its own.
    for (name, leader) in [("A", 1), ("B", 2)] {
        let name = stage.topic(name);
        mock.create_topic(&name, 1, 1).unwrap();
        mock.partition_leader(&name, 0, Some(leader)).unwrap();
    }
    take_down(&mock, 2);
    let ends: Vec<u64> = (0..12)
        .map(|n| {
            stage.insert(if n < 6 { "A" } else { "B" }, 2_000);
            make_noise(&stage, 10);
            stage.log_end()
        })
        .collect();
    let mut running = relay.run();
    let first = if catch_up == "true" { WINDOWS } else { "\"mode\":\"backlog\"" };
    running.wait_for_log(first);
    wait_until("some of the rows", || stage.acknowledged() >= ends[3]);
    let before = stage.acknowledged();
    if let Some(stop) = stop {
        cluster.stop(stop).unwrap();
    }
    // A relay that reconnects may acknowledge before the look. A server that stops waits for its relay.
    running.signal(Signal::STOP);
    running.wait_frozen();
    match stop {
        Some(_) => cluster.start_again().unwrap(),
        None => crash_one_process(&stage),
    }
    let has_forgotten = stage.acknowledged() < before;
    running.signal(Signal::CONT);
    mock.broker_up(2).unwrap();
    if has_forgotten {
        running.wait_for_log("restarted with an older slot position");
    }
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &[]);
    verdict.assert_at_least_once();
    let repeated = verdict.duplicated.len();
    eprintln!("catch_up {catch_up}: {repeated} rows repeated");
    // Two transactions, and what was in flight.
    assert!(repeated <= 6_000, "{repeated}");
    has_forgotten
}

/// A relay that is frozen neither reads its copy of the slot nor closes it, and over a Unix socket the server waits for it.
#[test]
fn the_copy_of_a_frozen_relay_ends_by_the_server_alone() {
    let mock = MockCluster::new(1).unwrap();
    let cluster = postgres::start(&Options::default().with("wal_sender_timeout", "3s"));
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "frozen_copy");
    let relay = stage.relay().allow_log("").set("kafka.max_in_flight", "1MiB");
    let relay = relay.set("source.url", &stage.database.address().unix_url());
    take_down(&mock, ALL);
    for _ in 0..4 {
        insert_large(&stage, 4_000);
        make_noise(&stage, 20);
    }
    let mut running = relay.run();
    running.wait_for_log(WINDOWS);
    let sql = stage.sql();
    wait_until("a window that cannot be written", || {
        let sends = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND query LIKE 'COPY%'";
        running.signal(Signal::STOP);
        running.wait_frozen();
        let is_stuck = sql.value(sends) == "1";
        if !is_stuck {
            running.signal(Signal::CONT);
        }
        is_stuck
    });
    assert!(copies(&sql).starts_with("postrider_catch_up_"), "{}", copies(&sql));
    wait_until("the slot to be free", || stage.slot_value("active") == "f");
    wait_until("the copy to end", || copies(&sql).is_empty());
    running.kill_quietly();
}

/// What an earlier version's relay, or a server without a guard, has left. The copies of relays at work are theirs.
#[test]
fn a_relay_ends_only_copies_whose_stream_is_gone() {
    let broker = Broker::embedded();
    let cluster = postgres::start(&Options::default());
    let stage = Stage::new(&cluster, &broker.bootstrap(), "left");
    let mut other = stage.relay().run();
    other.wait_for_log("\"streaming\"");
    let stream: i32 = stage.slot_value("active_pid").parse().unwrap();
    let copy = |stream: i32| {
        let session = stage.sql();
        session.run(&format!(
            "SELECT pg_create_logical_replication_slot(\
                 format('postrider_catch_up_%s_%s', pg_backend_pid(), {stream}), 'pgoutput', true)"
        ));
        session
    };
    let (_left, _live) = (copy(NOBODY), copy(stream));
    let relay = stage.relay().set("source.slot", "second");
    stage.sql().run("SELECT pg_create_logical_replication_slot('second', 'pgoutput')");
    let report = Report::asked(&relay, &["--only", "slot.copies"]);
    report.demands("slot.copies", "warn", "SELECT pg_terminate_backend(");
    assert!(copies(&stage.sql()).contains(&format!("_{NOBODY}")));
    let mut running = relay.run();
    running.wait_for_log("ended the temporary slot of a stopped relay");
    let is_live_alone = || {
        let named = copies(&stage.sql());
        named.ends_with(&format!("_{stream}")) && !named.contains(' ')
    };
    wait_until("the copy that was left to end", is_live_alone);
    stays("the copy of a relay at work", Duration::from_secs(2), is_live_alone);
    let report = Report::asked(&relay, &["--only", "slot.copies"]);
    assert_eq!(report.status("slot.copies"), "pass");
    running.stop();
    other.stop();
    stage.sql().run("SELECT pg_drop_replication_slot('second')");
}

/// A stream of which nothing is read looks dead to the server's TCP.
#[test]
fn a_short_tcp_user_timeout_does_not_end_windows() {
    let mock = MockCluster::new(1).unwrap();
    let cluster = postgres::start(&Options::default().with("tcp_user_timeout", "3s"));
    let stage = Stage::new(&cluster, &mock.bootstrap_servers(), "tcp_timeout");
    let relay = stage.relay().allow_log("").set("kafka.max_in_flight", "1MiB");
    take_down(&mock, ALL);
    for _ in 0..4 {
        insert_large(&stage, 6_000);
        make_noise(&stage, 20);
    }
    let mut running = relay.run();
    running.wait_for_log(WINDOWS);
    let holder = stage.slot_value("active_pid");
    let (sql, slot) = (stage.sql(), stage.slot().to_owned());
    stays("the stream that holds the slot", Duration::from_secs(7), || {
        let held =
            format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}'");
        sql.value(&held) == holder
    });
    assert!(!copies(&sql).is_empty(), "the windows were over before the timeout");
    running.kill_quietly();
}

/// While a slot waits for a transaction that was open before it, nothing is lost.
#[test]
fn a_slot_under_creation_is_never_called_lost() {
    let broker = Broker::embedded();
    let cluster = postgres::start(&Options::default());
    let stage = Stage::migrated(&cluster, &broker.bootstrap(), "unfinished");
    let open = stage.sql();
    open.run("CREATE TABLE noise (text text)");
    open.run("BEGIN; INSERT INTO noise VALUES ('open')");
    let (database, slot) = (stage.database.address(), stage.slot().to_owned());
    let creating = std::thread::spawn(move || {
        Sql::connect(&database.url())
            .run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    });
    let (sql, slot) = (stage.sql(), stage.slot().to_owned());
    let creator = wait_for("a slot without a position", || {
        let rows = sql.rows(&format!(
            "SELECT s.active_pid::text FROM pg_replication_slots s JOIN pg_locks l ON l.pid = s.active_pid \
             WHERE slot_name = '{slot}' AND confirmed_flush_lsn IS NULL AND NOT l.granted"
        ));
        rows.into_iter().flatten().flatten().next()
    });
    let words =
        format!("is still being created by process {creator}, which waits for transaction ");
    let relay = stage.relay().unprepared().allow_log("");
    let mut running = relay.run();
    running.wait_for_log(&words);
    for command in
        [&["prune", "--older-than", "1h"][..], &["repair"], &["doctor"], &["status"], &["lag"]]
    {
        let outcome = relay.start(command).outcome();
        let said = outcome.stdout + &outcome.log.join("\n");
        assert!(said.contains("is still being created by process"), "{command:?}: {said}");
        for wrong in ["is lost", "pg_drop_replication_slot", "malformed"] {
            assert!(!said.contains(wrong), "{command:?}: {said}");
        }
    }
    assert!(!running.has_ended());
    open.run("COMMIT");
    creating.join().unwrap();
    running.wait_for_log("\"streaming\"");
    running.stop();
}
