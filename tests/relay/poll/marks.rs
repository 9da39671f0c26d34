//! Rows that cannot be taken or marked: one error with its remedy, at once, and next to nothing is sent.

use super::{Scene, insert, records};
use support::kafka;

/// What was done to the table, the options, the exit code, and what is said.
type Case = (&'static str, &'static [(&'static str, &'static str)], i32, &'static [&'static str]);

const CASES: [Case; 9] = [
    (
        "REVOKE UPDATE ON outbox FROM {role}",
        &[],
        77,
        &["PR-P111", "GRANT SELECT, UPDATE (\\\"processed_at\\\")"],
    ),
    ("REVOKE SELECT ON outbox FROM {role}", &[], 77, &["PR-P111"]),
    (
        "ALTER TABLE outbox ADD CHECK (processed_at IS NULL)",
        &[],
        78,
        &["PR-P112", "cannot mark rows", "constraint or trigger"],
    ),
    (
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; \
         CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()",
        &[],
        78,
        &["PR-P112", "not today"],
    ),
    (
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
         CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()",
        &[],
        78,
        &["PR-P113", "some were left out"],
    ),
    (
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN old; END $$; \
         CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()",
        &[],
        78,
        &["PR-P113", "what rows have that wait"],
    ),
    (
        "SELECT",
        &[("source.poll.processed_at", "sent_at")],
        78,
        &["PR-P114", "source.poll.processed_at"],
    ),
    (
        "ALTER TABLE outbox ALTER COLUMN processed_at SET DEFAULT '-infinity'; \
         UPDATE outbox SET processed_at = '-infinity'; ALTER TABLE outbox ALTER COLUMN processed_at SET NOT NULL",
        &[],
        78,
        &["PR-P115", "DROP NOT NULL"],
    ),
    (
        "ALTER TABLE outbox RENAME created_at TO made_at",
        &[("format.value", "cloudevents_structured")],
        78,
        &["PR-P116", "outbox.created_at"],
    ),
];

#[test]
fn what_marks_no_row_ends_the_relay_with_the_reason_before_a_second_row_is_sent() {
    let Some(kafka) = kafka::shared() else { return };
    for (sql, settings, code, words) in CASES {
        let scene = Scene::new(&kafka.bootstrap(), "poll_marks", &[]);
        insert(&scene.stage, 0..100);
        let role = format!("poller_{}", scene.stage.database.name());
        scene.stage.sql().run(&sql.replace("{role}", &role));
        let relay = settings
            .iter()
            .fold(scene.relay.clone(), |relay, (name, value)| relay.set(name, value));
        let (found, said) = Scene::failure(&relay, &["run"]);
        assert_eq!(found, Some(code), "{sql}: {said}");
        for word in words {
            assert!(said.contains(word), "{sql}: no `{word}` in {said}");
        }
        assert!(records(&scene.stage).len() <= 1, "{sql}");
    }
}

#[test]
fn the_role_needs_to_read_the_table_and_to_write_the_columns_of_the_mark() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.poll.retry_count", "tries")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_rights", &settings);
    let role = format!("poller_{}", scene.stage.database.name());
    scene.stage.sql().run(&format!(
        "REVOKE ALL ON outbox FROM {role}; GRANT SELECT, UPDATE (processed_at, tries) ON outbox TO {role}"
    ));
    insert(&scene.stage, 0..10);
    scene.relay.run_once();
    scene.wait_pending("tries = 1", 10);
}

#[test]
fn a_constraint_that_is_checked_late_is_told_of_like_any_other() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "poll_late", &[]);
    scene.stage.sql().run(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'late'; END $$; \
         CREATE CONSTRAINT TRIGGER no AFTER UPDATE ON outbox DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION no()",
    );
    insert(&scene.stage, 0..10);
    let (code, said) = Scene::failure(&scene.relay, &["run"]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("PR-P112") && said.contains("late"), "{said}");
    scene.wait_pending("processed_at IS NULL", 10);
}

#[test]
fn a_column_that_is_never_null_can_say_that_a_row_waits() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [
        ("source.poll.mark", "status"),
        ("source.poll.status", "processed_at"),
        ("source.poll.pending", "-infinity"),
        ("source.poll.sent", "now"),
    ];
    let stage = crate::stage::Stage::empty(
        support::postgres::installed(),
        &kafka.bootstrap(),
        "poll_never",
    );
    support::topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
    stage.sql().run(
        "CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, \
         payload jsonb, created_at timestamptz DEFAULT now(), processed_at timestamptz NOT NULL DEFAULT '-infinity')",
    );
    let scene = Scene::of(stage, &settings);
    scene.grant("outbox");
    insert(&scene.stage, 0..10);
    scene.relay.run_once();
    scene.wait_pending("processed_at = '-infinity'", 0);
    let recent = "processed_at BETWEEN now() - interval '10 minutes' AND now()";
    scene.wait_pending(recent, 10);
    assert_eq!(records(&scene.stage).len(), 10);
}
