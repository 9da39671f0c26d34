//! Told to end when a session is over that left records unconfirmed: they are confirmed first, by whoever
//! can, or the exit code says that they are not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rustix::process::Signal;

use crate::delivery::idle::{ALL, impatient};
use crate::stage::Stage;
use support::freezing_proxy::{FreezingProxy, Kind};
use support::relay::Running;
use support::wait::within;
use support::{kafka, postgres, topic, wait_for};

/// A pause between two sessions that outlasts a takeover.
const PAUSE: &str = "10s";
/// A grace period that a busy machine does not outlast where it is not the subject.
const LONG_GRACE: &str = "2m";
/// How long the markers of a transaction's end may take; brokers end one by themselves after a minute.
const MARKERS: Duration = Duration::from_secs(30);
/// What a relay says that is told to end while it has no session, and has something to confirm.
const GOES_ON: &str = "told to stop while no session runs";

/// Ends the session that has the slot, as an administrator does.
fn terminate(stage: &Stage) {
    let slot = stage.slot();
    stage.sql().run(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    ));
}

/// A relay that has sent 7 records without an answer and lost its slot to another one, which sends them
/// too: both. The first one waits so long for what it owes.
fn ousted(
    stage: &Stage,
    mock: &MockCluster<'_, impl rdkafka::ClientContext>,
    grace: &str,
) -> [Running; 2] {
    let relay = impatient(stage.relay()).allow_log("cannot reach Kafka");
    let slow = relay.clone().set("retry.initial", PAUSE).set("retry.max", PAUSE);
    let first = slow.set("shutdown.grace", grace).expect_log("trying again").allow_log("PR-X011");
    let first = first.start(&["--output", "json", "run"]);
    stage.strand(mock, 7);
    let mut second = relay.run();
    second.wait_for_log("standby:");
    terminate(stage);
    second.wait_for_log("\"streaming\"");
    [first, second]
}

#[test]
fn g8_a_relay_that_lost_its_slot_ends_cleanly_when_the_other_one_has_delivered() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ousted");
    let oracle = stage.oracle();
    let [mut first, second] = ousted(&stage, &mock, LONG_GRACE);
    first.signal(Signal::TERM);
    let told = first.wait_for_log(GOES_ON);
    assert!(told.contains("\"unconfirmed\":7"), "{told}");
    mock.broker_up(ALL).unwrap();
    let status = first.wait();
    assert!(status.success(), "{status}");
    second.stop();
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

#[test]
fn g8_a_relay_that_lost_its_slot_says_so_when_the_other_one_does_not_deliver() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "ousted");
    let [mut first, second] = ousted(&stage, &mock, "5s");
    let begun = Instant::now();
    first.signal(Signal::TERM);
    let error = first.wait_for_log("PR-X011");
    assert!(error.contains("7 records unconfirmed"), "{error}");
    assert_eq!(first.wait().code(), Some(69));
    let took = begun.elapsed();
    assert!((5..30).contains(&took.as_secs()), "{took:?}");
    mock.broker_up(ALL).unwrap();
    stage.wait_acknowledged(stage.log_end());
    second.stop();
}

#[test]
fn g8_a_drain_whose_connection_breaks_goes_on_over_another_one() {
    let mock = MockCluster::new(1).unwrap();
    let stage = Stage::new(postgres::installed(), &mock.bootstrap_servers(), "severed");
    // A third of it is how often the relay writes, by which it finds nobody at the other end.
    let set = format!("ALTER DATABASE {} SET wal_sender_timeout = '3s'", stage.slot());
    stage.sql().run(&set);
    let oracle = stage.oracle();
    let proxy = FreezingProxy::start(&stage.database.address());
    let relay = stage.relay_at(proxy.address()).set("source.url", &proxy.url());
    let relay = impatient(relay).expect_log("cannot reach Kafka").expect_log("trying again");
    let mut running = relay.set("shutdown.grace", LONG_GRACE).run();
    stage.strand(&mock, 7);
    running.wait_for_log("cannot reach Kafka");
    running.signal(Signal::TERM);
    running.wait_for_log("\"unconfirmed\":7");
    proxy.cut(Kind::Stream);
    running.wait_for_log("\"streaming\"");
    mock.broker_up(ALL).unwrap();
    let status = running.wait();
    assert!(status.success(), "{status}");
    stage.verdict(&oracle, &[]).assert_at_least_once();
}

/// The records of the open transaction are nobody's debt once it is over, and it is over at the end:
/// readers of committed records would wait for it.
#[test]
fn g8_a_transaction_that_a_lost_session_left_open_is_over_after_sigterm() {
    let Some(kafka) = kafka::shared() else { return };
    let bootstrap = kafka.bootstrap();
    let stage = Stage::new(postgres::installed(), &bootstrap, "open");
    let oracle = stage.oracle();
    topic::create(&bootstrap, &stage.topic("A"), 1, &[]);
    let relay = stage.relay().set("kafka.delivery", "exactly_once");
    let slow = relay.clone().set("retry.initial", PAUSE).set("retry.max", PAUSE);
    let mut running = slow.set("kafka.transaction_age", "1s").expect_log("trying again").run();
    running.wait_for_log("caught up");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // While rows come there is an open transaction at almost any moment.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                stage.insert("A", 1);
            }
        });
        wait_for("a transaction", || (lead(&bootstrap, &stage.topic("A")) > 0).then_some(()));
        terminate(&stage);
        is_over.store(true, Ordering::Relaxed);
        running.wait_for_log("trying again");
        running.signal(Signal::TERM);
    });
    running.wait_for_log(GOES_ON);
    let status = running.wait();
    assert!(status.success(), "{status}");
    // An abort is answered before its markers are written. Otherwise it is open for a minute.
    let is_over = || (lead(&bootstrap, &stage.topic("A")) == 0).then_some(());
    assert!(within(MARKERS, is_over).is_some(), "the transaction is open");
    relay.run_once();
    stage.verdict(&oracle, &[]).assert_exactly_once();
}

/// How many records of the topic's only partition are in a transaction that is not over.
fn lead(bootstrap: &str, topic: &str) -> i64 {
    let end = |isolation| {
        let consumer = topic::client(bootstrap).set("isolation.level", isolation).create();
        let (_, end) = topic::ends(&consumer.unwrap(), topic)[0];
        end
    };
    let committed = end("read_committed");
    end("read_uncommitted") - committed
}

/// More than can be sent within 3 s, each in a Kafka transaction of its own.
const ROWS: u32 = 250;

/// A record that spoils its batch costs a session, and the next one sends record by record: told to end
/// in the midst of that, it has something left of the batch.
#[test]
fn g8_sigterm_while_a_refused_batch_is_sent_again_is_a_clean_stop() {
    let Some(kafka) = kafka::shared() else { return };
    let bootstrap = kafka.bootstrap();
    for (delivery, grace) in [("at_least_once", LONG_GRACE), ("exactly_once", "3s")] {
        let stage = Stage::new(postgres::installed(), &bootstrap, "spoiled");
        let oracle = stage.oracle();
        topic::create(&bootstrap, &stage.topic("A"), 1, &[("max.message.bytes", "10000")]);
        let relay = stage.relay().set("kafka.delivery", delivery).set("kafka.compression", "none");
        let relay =
            relay.allow_log("became a dead letter").allow_log("refuse").allow_log("batches");
        relay.prepare();
        // One transaction: delivered exactly once it is carried in pieces, and left off between two.
        stage.sql().run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 't', 'k', 'A', to_jsonb(repeat('x', CASE n WHEN {ROWS} THEN 20000 ELSE 1 END))
             FROM generate_series(1, {ROWS}) AS n"
        ));
        let mut running = relay.clone().set("shutdown.grace", grace).run();
        running.wait_for_log("trying again");
        running.signal(Signal::TERM);
        let status = running.wait();
        assert!(status.success(), "{delivery}: {status}");
        relay.run_once();
        let verdict = stage.verdict(&oracle, &[]);
        if delivery == "exactly_once" {
            verdict.assert_exactly_once();
        } else {
            verdict.assert_at_least_once();
        }
    }
}
