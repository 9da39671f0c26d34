//! Rights and columns that marks need, beyond the rows of the register of unfit sources.

use super::{Scene, insert, records};
use support::kafka;

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
