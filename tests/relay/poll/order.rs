//! The order of one key, whoever has its rows: workers, processes, and those who lock rows.

use std::time::Duration;

use super::{Scene, insert, numbers_by_key, records};
use support::wait::stays;
use support::{kafka, wait_for};

#[test]
fn g2_workers_of_two_processes_keep_the_order_of_keys_and_repeat_nothing() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [
        ("source.poll.notify", "outbox"),
        ("source.poll.workers", "4"),
        ("source.poll.batch", "50"),
        ("source.poll.interval", "200ms"),
    ];
    let scene = Scene::new(&kafka.bootstrap(), "poll_workers", &settings);
    let running = [scene.relay.run(), scene.relay.run()];
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let sql = scene.stage.sql();
            std::thread::spawn(move || {
                for round in 0..100 {
                    // Keys of its own, so that numbers are in the order of commits.
                    sql.run(&format!(
                        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                         SELECT 't', {writer} || '.' || n % 7, 'A', to_jsonb({round} * 100 + n) \
                         FROM generate_series(1, 10) AS n"
                    ));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    scene.wait_pending("processed_at IS NULL", 0);
    let stored = records(&scene.stage);
    assert_eq!(stored.len(), 4_000, "nothing came to pass that repeats a row");
    for (key, numbers) in numbers_by_key(&stored) {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    for one in running {
        one.stop();
    }
}

#[test]
fn g2_a_row_that_somebody_has_locked_holds_back_its_key_and_no_other() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.batch", "4"), ("source.poll.interval", "100ms")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_locked", &settings);
    insert(&scene.stage, 0..100);
    let null = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 't', '', 'A', to_jsonb(n) FROM generate_series(1000, 1004) AS n";
    scene.stage.sql().run("ALTER TABLE outbox ALTER COLUMN aggregate_id DROP NOT NULL");
    scene.stage.sql().run(&null.replace("''", "NULL"));
    let owner = scene.stage.sql();
    // More than a batch, and behind a row of the same key.
    owner.run(
        "BEGIN; SELECT FROM outbox WHERE aggregate_id = '3' AND payload <> '3' FOR UPDATE; \
         SELECT FROM outbox WHERE payload = '1000' FOR UPDATE",
    );
    let running = scene.relay.run();
    scene.wait_pending("processed_at IS NULL", 9 + 1);
    let held = || scene.stage.sql().value("SELECT count(*) FROM outbox WHERE processed_at IS NULL");
    stays("rows behind a lock", Duration::from_millis(500), || held() == "10");
    let by_key = numbers_by_key(&records(&scene.stage));
    assert_eq!(by_key["3"], [3], "the one before is delivered");
    let mut without = by_key[""].clone();
    without.sort_unstable();
    assert_eq!(without, [1001, 1002, 1003, 1004], "rows without a key do not wait for each other");
    owner.run("UPDATE outbox SET payload = '33' WHERE payload = '13'; COMMIT");
    scene.wait_pending("processed_at IS NULL", 0);
    let numbers = &numbers_by_key(&records(&scene.stage))["3"];
    assert_eq!(*numbers, [3, 33, 23, 33, 43, 53, 63, 73, 83, 93], "with what was committed");
    running.stop();
}

#[test]
fn g2_a_rule_with_a_key_of_its_own_keeps_the_order_of_all_rows() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [
        ("route.rules.0.column", "aggregate_type"),
        ("route.rules.0.glob", "t"),
        ("route.rules.0.key", "event_type"),
        ("source.poll.interval", "50ms"),
        ("source.poll.batch", "5"),
    ];
    let scene = Scene::new(&kafka.bootstrap(), "poll_rules", &settings);
    let running = [scene.relay.run(), scene.relay.run()];
    for round in 0..20 {
        insert(&scene.stage, round * 10..round * 10 + 10);
    }
    wait_for("records", || (records(&scene.stage).len() == 200).then_some(()));
    let by_key = numbers_by_key(&records(&scene.stage));
    assert_eq!(by_key["A"], (0..200).collect::<Vec<_>>());
    for one in running {
        one.stop();
    }
}
