//! How a relay that polls ends, and what its sessions leave.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rustix::process::Signal;

use super::{Scene, insert, numbers_by_key, records};
use crate::delivery::idle::ALL;
use crate::stage::Stage;
use support::broker::take_down;
use support::wait::let_pass;
use support::{kafka, postgres, wait_for};

/// Ends the sessions of the stage's role, as an administrator does.
fn terminate(stage: &Stage) {
    let role = format!("poller_{}", stage.database.name());
    stage.sql().run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    ));
}

#[test]
fn g8_a_stop_in_the_middle_of_a_batch_leaves_nothing_to_repeat() {
    let Some(kafka) = kafka::shared() else { return };
    // All rows are one batch, but for the first.
    let settings = [("source.poll.batch", "50000"), ("kafka.max_in_flight", "1MiB")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_stop", &settings);
    insert(&scene.stage, 0..40_000);
    let marked =
        || scene.stage.sql().value("SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL");
    // A row is three of them.
    for at in [2, 16, 1_200, 3_000, 3_005, 4_000] {
        let place = format!("frame_taken=stop@{at}");
        let running = scene.relay.clone().variable("FAILPOINT", &place).run();
        running.wait_frozen();
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        let status = running.wait();
        assert!(status.success(), "{place}: {status}");
        assert_eq!(
            records(&scene.stage).len().to_string(),
            marked(),
            "{place}: what is stored is marked"
        );
    }
    let marked_then = marked().parse::<usize>().unwrap();
    assert!(
        (100..40_000).contains(&marked_then),
        "a stop does not wait for the batch: {marked_then}"
    );
    scene.relay.run_once();
    assert_eq!((records(&scene.stage).len(), marked().as_str()), (40_000, "40000"));
}

#[test]
fn g1_a_kill_repeats_a_batch_at_most_and_loses_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.batch", "100"), ("source.poll.workers", "2")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_kill", &settings);
    for round in 0..8_u64 {
        insert(&scene.stage, round * 1_000..round * 1_000 + 1_000);
        let running = scene.relay.run();
        let_pass(Duration::from_millis(60 + round * 25), "each dies at another moment");
        running.kill();
    }
    scene.relay.run_once();
    scene.wait_pending("processed_at IS NULL", 0);
    let stored = records(&scene.stage);
    let by_key = numbers_by_key(&stored);
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), 8_000);
    assert!(by_key.values().all(|numbers| numbers.is_sorted()), "{by_key:?}");
    assert!(stored.len() <= 8_000 + 8 * 2 * 100, "{}", stored.len());
}

/// A relay that has sent 7 records without an answer, and lost its session.
fn stranded(
    mock: &MockCluster<'_, impl rdkafka::ClientContext>,
) -> (Scene, support::relay::Running) {
    let settings =
        [("source.poll.interval", "50ms"), ("retry.initial", "1s"), ("shutdown.grace", "2m")];
    let stage = Stage::empty(postgres::installed(), &mock.bootstrap_servers(), "poll_owed");
    let scene = Scene::of(stage, &settings);
    let made = scene.owner(&settings).start(&["setup"]).outcome();
    assert!(made.status.success(), "{made:?}");
    scene.grant("outbox");
    let relay = scene.relay.clone().allow_log("trying again").allow_log("cannot reach Kafka");
    let running = relay.allow_log("brokers").run();
    insert(&scene.stage, 0..10);
    scene.stage.wait_for_records(10);
    scene.wait_pending("processed_at IS NULL", 0);
    take_down(mock, ALL);
    insert(&scene.stage, 10..17);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND usename LIKE 'poller%' \
                AND datname = current_database()";
    wait_for("an open batch", || (scene.stage.sql().value(open) == "1").then_some(()));
    let_pass(Duration::from_millis(300), "records are handed over");
    terminate(&scene.stage);
    (scene, running)
}

#[test]
fn g8_what_a_broken_session_left_is_delivered_before_a_stop() {
    let mock = MockCluster::new(1).unwrap();
    let (scene, mut running) = stranded(&mock);
    running.wait_for_log("trying again");
    running.signal(Signal::TERM);
    mock.broker_up(ALL).unwrap();
    let status = running.wait();
    assert!(status.success(), "{status}");
    scene.wait_pending("processed_at IS NULL", 0);
    let ids: BTreeSet<_> =
        scene.stage.records().iter().map(|one| one.header("id").unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 17);
}

#[test]
fn g8_what_a_broken_session_left_and_nobody_has_any_more_is_not_waited_for() {
    let mock = MockCluster::new(1).unwrap();
    let (scene, mut running) = stranded(&mock);
    running.wait_for_log("trying again");
    scene.stage.sql().run("DELETE FROM outbox WHERE processed_at IS NULL");
    mock.broker_up(ALL).unwrap();
    let begun = Instant::now();
    running.signal(Signal::TERM);
    let status = running.wait();
    assert!(
        status.success() && begun.elapsed() < Duration::from_mins(1),
        "{status} {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_run_that_waits_for_another_relay_names_its_session() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "poll_other", &[("source.poll.workers", "2")]);
    insert(&scene.stage, 0..1_000);
    let busy = scene.relay.clone().set("source.poll.workers", "1");
    // Its session may be ended while it stands still.
    let busy = busy.allow_log("trying again").variable("FAILPOINT", "frame_taken=stop@100").run();
    busy.wait_frozen();
    let holder = scene.stage.sql().value(
        "SELECT DISTINCT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
         WHERE l.locktype = 'advisory' AND d.datname = current_database()",
    );
    let mut run = scene.relay.start(&["run", "--once"]);
    let told = run.wait_for_log("waiting for another relay");
    assert!(told.contains(&format!("process {holder}, application postrider")), "{told}");
    busy.signal(Signal::CONT);
    busy.stop();
    let status = run.wait();
    assert!(status.success(), "{status}");
    scene.wait_pending("processed_at IS NULL", 0);
}

#[test]
fn an_idle_worker_asks_once_in_an_interval_and_never_without_end() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.notify", "outbox"), ("source.poll.interval", "1s")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_idle", &settings);
    let mut running = scene.relay.run();
    running.wait_for_log("caught up");
    let role = format!("poller_{}", scene.stage.database.name());
    let sql = scene.stage.sql();
    let query = format!(
        "SELECT coalesce(max(query_start)::text, '') FROM pg_stat_activity WHERE usename = '{role}' \
         AND query NOT LIKE 'LISTEN%'"
    );
    let mut starts = BTreeSet::new();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        starts.insert(sql.value(&query));
        let_pass(Duration::from_millis(2), "another query would have begun");
    }
    // A poll, and its end.
    assert!((3..=12).contains(&starts.len()), "{starts:?}");
    let begun = Instant::now();
    running.stop();
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn readiness_and_metrics_are_those_of_all_workers() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [
        ("source.poll.workers", "3"),
        ("source.poll.interval", "50ms"),
        // Long enough to be seen.
        ("retry.initial", "10s"),
    ];
    let scene = Scene::new(&kafka.bootstrap(), "poll_metrics", &settings);
    let mut running = scene.relay.clone().allow_log("trying again").run();
    let face = support::relay_http::RelayHttp::of(&mut running);
    face.wait_ready(200);
    insert(&scene.stage, 0..500);
    face.wait_count("postrider_records_confirmed_total", 500);
    face.wait_count("postrider_transactions_settled_total", 500);
    terminate(&scene.stage);
    wait_for("three sessions more", || {
        let count = face.count("postrider_restarts_total{reason=\"postgres\"}")?;
        (count >= 3).then_some(())
    });
    let health = face.wait_ready(503);
    let state = health["checks"].as_array().unwrap().iter().find(|it| it["name"] == "state");
    let detail = state.unwrap()["detail"].as_str().unwrap();
    assert!(detail.starts_with("retrying: "), "the cause is named: {health}");
    face.wait_ready(200);
    insert(&scene.stage, 500..510);
    wait_for("the rest", || (records(&scene.stage).len() == 510).then_some(()));
    running.stop();
}
