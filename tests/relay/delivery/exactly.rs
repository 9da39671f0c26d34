//! Exactly once: records and progress in one Kafka transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::load::{Load, commit, prepare, prepare_at};
use crate::stage::Stage;
use support::broker::Broker;
use support::relay_http::RelayHttp;
use support::wait::let_pass;
use support::{kafka, postgres, topic, wait_for};

/// More than the sockets between the server and the relay hold, twice.
const ROWS_WITHIN: usize = 120_000;
/// `transaction.timeout.ms` of the relay.
const TRANSACTION_LIMIT: Duration = Duration::from_mins(1);
const KILLS: u32 = 8;
/// Rows per second and rows per transaction of each writer.
const WRITERS: [(u32, u32); 3] = [(300, 1), (600, 7), (900, 60)];

#[test]
fn g6_every_row_arrives_once_on_a_good_day() {
    for broker in Broker::all() {
        let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "exact");
        prepare(&stage, &broker);
        let (oracle, tap) = (stage.oracle(), stage.tap());
        let relay = stage.relay_at(&tap.address()).set("kafka.delivery", "exactly_once");
        let mut running = relay.run();
        running.wait_for_log("\"streaming\"");
        commit(&stage, 2_000, 1_000);
        stage.wait_acknowledged(stage.log_end());
        running.stop();
        stage.verdict(&oracle, &tap.statuses()).assert_exactly_once();
    }
}

/// Nothing else can come into a transaction that ends: without a flush each of these rows waits for a second.
/// On a busy machine some of them take as long for another reason.
#[test]
fn the_end_of_a_transaction_waits_for_no_further_records() {
    const ROWS: u32 = 20;
    const LINGER: Duration = Duration::from_secs(1);
    let broker = Broker::embedded();
    let stage = Stage::new(postgres::installed(), &broker.bootstrap(), "flushed");
    let relay = stage.relay().set("kafka.delivery", "exactly_once").set("kafka.linger", "1s");
    let mut running = relay.run();
    let face = RelayHttp::of(&mut running);
    running.wait_for_log("\"streaming\"");
    let took = (1..=ROWS).map(|row| {
        let began = Instant::now();
        stage.insert("A", 1);
        // Not for the end of the log, where rows of other tests may be: progress follows that after ten seconds.
        let is_committed = |confirmed| confirmed >= f64::from(row);
        face.wait_metric("postrider_records_confirmed_total", is_committed);
        began.elapsed()
    });
    let fastest = took.min().unwrap();
    assert!(fastest < LINGER, "{fastest:?}");
    running.stop();
}

/// A process of the server that stands still, as it would send the rest of a transaction for minutes.
struct Frozen(Pid);

impl Frozen {
    fn new(pid: &str) -> Self {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Of a transaction that is left off within, nothing was told to Postgres that it might not have heard: whether the
/// server hears of the end does not matter.
#[test]
fn g8_stops_within_one_transaction_are_clean_stops() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "within");
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    // So that it is carried in many pieces, of four times as much.
    let relay = relay.set("kafka.max_in_flight", "1MiB");
    relay.prepare();
    let oracle = stage.oracle();
    stage.insert("A", 10);
    relay.run_once();
    stage.insert("A", ROWS_WITHIN);
    for frames in [20_000, 40_000] {
        let place = format!("frame_taken=stop@{frames}");
        let relay = relay.clone().set("source.catch_up", "false").variable("FAILPOINT", &place);
        let mut running = relay.run();
        running.wait_frozen();
        let _walsender = Frozen::new(&stage.slot_value("active_pid"));
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        running.wait_for_log("closed the connection before Postgres ended the stream");
        let status = running.wait();
        assert!(status.success(), "{status}");
        assert!(stage.records().len() < ROWS_WITHIN, "all of it was delivered too soon");
    }
    relay.run_once();
    let verdict = stage.verdict(&oracle, &[]);
    verdict.assert_exactly_once();
}

/// Brokers hold no time against a record that has none, whatever the clock of the relay says.
#[test]
fn g6_progress_has_no_time_that_brokers_could_refuse() {
    let Some(kafka) = kafka::shared() else { return };
    if !kafka.is_since(kafka::TIMES_AHEAD, "progress in a topic with limits on times") {
        return;
    }
    for (delivery, kept) in [("exactly_once", "false"), ("at_least_once", "true")] {
        let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "clock");
        let progress = format!("postrider.progress.{}", stage.slot());
        // Less would refuse the markers that end Kafka's transactions.
        let limits = [
            ("cleanup.policy", "compact"),
            ("message.timestamp.before.max.ms", "60000"),
            ("message.timestamp.after.max.ms", "60000"),
        ];
        topic::create(&kafka.bootstrap(), &progress, 1, &limits);
        let relay = stage.relay().set("kafka.delivery", delivery);
        let relay = relay.set("progress.at_least_once", kept);
        for _ in 0..2 {
            stage.insert("A", 10);
            relay.run_once();
        }
        assert_eq!(stage.records().len(), 20);
        let times: Vec<_> = topic::read(&kafka.bootstrap(), &[progress])
            .into_iter()
            .map(|record| record.timestamp_ms)
            .collect();
        assert!(!times.is_empty() && times.iter().all(Option::is_none), "{times:?}");
    }
}

/// A Kafka transaction that was begun for a row which then was left out holds nothing that would end it.
#[test]
fn g5_g6_a_row_left_out_at_the_last_moment_holds_up_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "left_out");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
    let relay = stage
        .relay()
        .set("kafka.delivery", "exactly_once")
        .set("route.partition", "shard")
        .set("route.rejected", "skip")
        .expect_log("a row was skipped");
    stage.sql().run(
        "ALTER TABLE outbox ADD COLUMN shard int; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, shard) \
         VALUES ('t', '1', 'A', '{}', 99)",
    );
    relay.run_once();
    assert_eq!(stage.records().len(), 0);
    assert!(stage.acknowledged() > 0);
}

#[test]
fn g6_eight_kills_lose_nothing_and_repeat_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "exact_crash");
    prepare_at(&stage, &kafka.bootstrap());
    let (oracle, tap) = (stage.oracle(), stage.tap());
    let relay = stage
        .relay_at(&tap.address())
        .set("kafka.delivery", "exactly_once")
        .set("source.status_interval", "200ms");
    let load = Load::start(&stage, &WRITERS);
    for kill in 0..KILLS {
        let mut running = relay.run();
        running.wait_for_log("streaming");
        if kill % 4 != 3 {
            let enough = tap.statuses().len() + 2;
            wait_for("status updates", || (tap.statuses().len() >= enough).then_some(()));
        }
        let_pass(Duration::from_millis(u64::from(kill) * 37), "each dies at another moment");
        running.kill();
    }
    let committed = load.stop();
    let running = relay.run();
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    let verdict = stage.verdict(&oracle, &tap.statuses());
    eprintln!("{committed} rows over {KILLS} kills");
    verdict.assert_exactly_once();
    assert!(verdict.committed as u64 >= committed);
}

/// At least once, what it said can be said again.
#[test]
fn g1_a_progress_topic_that_is_deleted_at_least_once_is_made_again() {
    let options = kafka::Options { auto_create: false, ..kafka::Options::default() };
    let Some(kafka) = kafka::start(&options) else { return };
    let stage = Stage::new(postgres::installed(), &kafka.bootstrap(), "remade");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 3, &[]);
    let progress = format!("postrider.progress.{}", stage.slot());
    let relay = stage.relay().set("progress.at_least_once", "true").allow_log("does not exist");
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    topic::delete(&kafka.bootstrap(), &progress);
    stage.insert("A", 10);
    stage.wait_acknowledged(stage.log_end());
    running.stop();
    assert_eq!(topic::names(&kafka.bootstrap(), &progress), [progress]);
    // Once with the session that noticed it, and once with the next.
    let records = stage.records().len();
    assert!((20..=30).contains(&records), "{records}");
}

/// Within a Kafka transaction the library asks for a topic that is gone for as long as the transaction may
/// last, in some runs: a minute in which nobody's rows would come. Four relays, as one may be lucky.
#[test]
fn g4_a_topic_deleted_under_its_rows_is_noticed_before_they_time_out() {
    let Some(kafka) = kafka::strict() else { return };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| delete_under_rows(&kafka.bootstrap()));
        }
    });
}

fn delete_under_rows(bootstrap: &str) {
    let stage = Stage::new(postgres::installed(), bootstrap, "deleted");
    for name in ["A", "B", "dead-letters"] {
        topic::create(bootstrap, &stage.topic(name), 3, &[]);
    }
    let relay = stage.relay().set("kafka.delivery", "exactly_once").allow_log("");
    let mut running = relay.run();
    running.wait_for_log("\"streaming\"");
    let sql = stage.sql();
    let is_over = AtomicBool::new(false);
    // By the time and not by their number: on a busy machine a fixed number of rows takes a minute.
    let rows = || {
        let mut of_each = 0;
        while !is_over.load(Ordering::Relaxed) {
            for name in ["A", "B"] {
                sql.run(&format!(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                     VALUES ('t', 'k', '{name}', '{{}}')"
                ));
            }
            of_each += 1;
            let_pass(Duration::from_millis(20), "records are under way all the time");
        }
        of_each
    };
    let (gone, of_each) = std::thread::scope(|scope| {
        let rows = scope.spawn(rows);
        let_pass(Duration::from_secs(3), "rows flow");
        topic::delete(bootstrap, &stage.topic("B"));
        let gone = Instant::now();
        let_pass(Duration::from_secs(7), "rows flow on");
        is_over.store(true, Ordering::Relaxed);
        (gone, rows.join().unwrap())
    });
    stage.wait_acknowledged(stage.log_end());
    let took = gone.elapsed();
    eprintln!("{took:?}");
    assert!(took < TRANSACTION_LIMIT.mul_f64(0.75), "{took:?}");
    running.stop();
    let of_a = stage.records().iter().filter(|record| record.topic == stage.topic("A")).count();
    assert_eq!(of_a, of_each, "each once");
}
