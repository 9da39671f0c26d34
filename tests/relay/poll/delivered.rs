//! Rows are delivered and marked, in whichever form their table has; what else an operator does with them.

use super::{Scene, insert, numbers_by_key, records};
use support::{kafka, wait_for};

/// How rows wait, and how they are marked.
const FORMS: [(&[(&str, &str)], &str); 3] = [
    (&[("source.poll.retry_count", "tries")], "processed_at IS NULL OR tries <> 1"),
    (
        &[
            ("source.poll.mark", "status"),
            ("source.poll.pending", "NEW,RETRY"),
            ("source.poll.sent", "it's sent"),
        ],
        "status <> 'it''s sent'",
    ),
    (&[("source.poll.mark", "delete")], "true"),
];

#[test]
fn rows_are_delivered_once_in_order_and_marked_in_each_form_without_replication() {
    let Some(kafka) = kafka::shared() else { return };
    for (settings, waits) in FORMS {
        let settings = [settings, &[("source.poll.batch", "70")]].concat();
        let scene = Scene::new(&kafka.bootstrap(), "poll", &settings);
        insert(&scene.stage, 0..250);
        scene.relay.run_once();
        scene.wait_pending(waits, 0);
        let stored = records(&scene.stage);
        let by_key = numbers_by_key(&stored);
        assert_eq!(stored.len(), 250, "none comes twice");
        for (key, numbers) in &by_key {
            let first: u64 = key.parse().unwrap();
            assert_eq!(*numbers, (first..250).step_by(10).collect::<Vec<_>>(), "{settings:?}");
        }
        for record in &stored {
            assert_eq!(record.header("postrider-lsn"), None);
            assert_eq!(record.header("postrider-origin"), None);
        }
        insert(&scene.stage, 250..260);
        let mut running = scene.relay.run();
        running.wait_for_log("polling");
        wait_for("records", || (records(&scene.stage).len() == 260).then_some(()));
        scene.wait_pending(waits, 0);
        insert(&scene.stage, 260..270);
        wait_for("records", || (records(&scene.stage).len() == 270).then_some(()));
        running.stop();
        scene.wait_pending(waits, 0);
    }
}

#[test]
fn a_record_has_the_time_at_which_its_row_was_written_however_late_it_is_sent() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("format.value", "cloudevents_binary")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_time", &settings);
    scene.stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES \
         ('t', 'k', 'A', '1', now() - interval '1 hour'), ('t', 'k', 'A', '2', 'infinity')",
    );
    let wanted = "SELECT floor(extract(epoch FROM created_at) * 1000)::bigint FROM outbox WHERE payload = '1'";
    let wanted = scene.stage.sql().value(wanted).parse().ok();
    scene.relay.run_once();
    scene.stage.sql().run("UPDATE outbox SET processed_at = NULL");
    scene.relay.run_once();
    let stored = records(&scene.stage);
    let of = |value: &[u8]| -> Vec<_> {
        let these = stored.iter().filter(|record| record.value.as_deref() == Some(value));
        these.map(|one| (one.timestamp_ms, one.header("ce_time"), one.header("ce_id"))).collect()
    };
    let first = of(b"1");
    assert_eq!(first.len(), 2);
    assert_eq!(first[0], first[1], "a row that comes again is the same event");
    assert_eq!(first[0].0, wanted);
    assert_eq!(of(b"2").len(), 2, "a time that is none holds up nobody");
}

#[test]
fn notifications_bring_rows_before_the_interval_is_over() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [
        ("source.poll.notify", "rows of it"),
        ("source.poll.interval", "1h"),
        ("source.poll.workers", "3"),
    ];
    let scene = Scene::new(&kafka.bootstrap(), "poll_notify", &settings);
    let mut running = scene.relay.run();
    for _ in 0..3 {
        running.wait_for_log("polling");
    }
    running.wait_for_log("caught up");
    for round in 1..=3 {
        insert(&scene.stage, round * 100..round * 100 + 40);
        let wanted = usize::try_from(round).unwrap() * 40;
        wait_for("records", || (records(&scene.stage).len() == wanted).then_some(()));
    }
    scene.wait_pending("processed_at IS NULL", 0);
    running.stop();
}

#[test]
fn setup_makes_what_is_missing_once_and_no_publication() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.notify", "outbox"), ("source.poll.retry_count", "tries")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_setup", &settings);
    let owner = scene.owner(&settings);
    let again = owner.start(&["setup"]).outcome();
    assert!(again.status.success(), "{again:?}");
    assert_eq!(again.stdout.matches("already exists: ").count(), 7, "{}", again.stdout);
    assert!(!again.stdout.contains("created: "), "{}", again.stdout);
    let sql = scene.stage.sql();
    assert_eq!(sql.value("SELECT count(*) FROM pg_publication"), "0");
    let index = "SELECT indexdef FROM pg_indexes WHERE indexname = 'outbox_pending'";
    let index = sql.value(index);
    assert!(index.ends_with("(sequence, id) WHERE (processed_at IS NULL)"), "{index}");
    let printed = owner.start(&["setup", "--print"]).outcome().stdout;
    sql.run("DROP TABLE outbox CASCADE; DROP FUNCTION outbox_notify");
    sql.run(&printed);
    assert_eq!(sql.value("SELECT count(*) FROM pg_trigger WHERE tgname = 'postrider_notify'"), "1");
    sql.run("CREATE TABLE own (id bigserial PRIMARY KEY, created_at timestamptz)");
    let own = owner.start(&["setup", "--table", "public.own"]).outcome();
    assert!(own.stdout.contains("created: column \"processed_at\" of table public.own"), "{own:?}");
    let index = sql.value("SELECT indexdef FROM pg_indexes WHERE indexname = 'own_pending'");
    assert!(index.ends_with("(id) WHERE (processed_at IS NULL)"), "{index}");
}

#[test]
fn what_is_about_a_slot_is_refused_and_the_rest_works() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "poll_commands", &[]);
    for command in [
        &["adopt"][..],
        &["backfill"],
        &["repair"],
        &["peek"],
        &["lag"],
        &["prune", "--older-than", "1d"],
        &["run", "--dry-run"],
        &["setup", "--from-now"],
        &["setup", "--existing", "send"],
    ] {
        let (code, said) = Scene::failure(&scene.relay, command);
        assert_eq!(code, Some(78), "{command:?}: {said}");
        assert!(said.contains("PR-P110") && said.contains("is about a replication slot"), "{said}");
    }
    let exactly_once = scene.relay.clone().set("kafka.delivery", "exactly_once");
    let (code, said) = Scene::failure(&exactly_once, &["run"]);
    assert_eq!(code, Some(78));
    assert!(said.contains("`kafka.delivery`") && said.contains("at least once"), "{said}");
    insert(&scene.stage, 0..30);
    scene.relay.run_once();
    let verified = scene.relay.start(&["verify"]).outcome();
    assert!(verified.status.success(), "{verified:?}");
    let replay = scene.relay.start(&["--output", "json", "replay", "--all", "--execute"]).outcome();
    assert!(replay.stdout.contains("\"confirmed\":30"), "{replay:?}");
    let letters = scene.relay.start(&["dead-letters", "list"]).outcome();
    assert!(letters.status.success(), "{letters:?}");
    let shown = scene.relay.start(&["status"]).outcome().stdout;
    assert!(shown.contains("the tables mark the delivered rows"), "{shown}");
    assert!(!shown.contains("the slot stores"), "{shown}");
}
