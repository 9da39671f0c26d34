//! Tables of other forms: partitioned, inherited, with generated columns, of other encodings.

use super::{Scene, insert, records};
use crate::stage::Stage;
use support::postgres::Database;
use support::{kafka, postgres, topic};

#[test]
fn rows_of_partitions_are_rows_of_their_table() {
    let Some(kafka) = kafka::shared() else { return };
    let stage = Stage::empty(postgres::installed(), &kafka.bootstrap(), "poll_parts");
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 2, &[]);
    let settings = [("source.poll.mark", "status"), ("source.poll.batch", "9")];
    let scene = Scene::of(stage, &settings);
    let made = scene.owner(&settings).start(&["setup", "--partition", "day"]).outcome();
    assert!(made.status.success(), "{made:?}");
    scene.grant("outbox");
    insert(&scene.stage, 0..30);
    scene.stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 't', n % 10, 'A', to_jsonb(n), now() - n * interval '15 minutes' FROM generate_series(100, 129) AS n",
    );
    scene.relay.run_once();
    scene.wait_pending("status <> 'sent'", 0);
    assert_eq!(records(&scene.stage).len(), 60);
}

/// The table says which rows wait: none of them is lost.
#[test]
fn verify_knows_rows_that_wait_from_rows_that_are_lost() {
    let Some(kafka) = kafka::shared() else { return };
    for settings in
        [&[] as &[_], &[("source.poll.mark", "status")], &[("source.poll.mark", "delete")]]
    {
        let scene = Scene::new(&kafka.bootstrap(), "poll_verified", settings);
        insert(&scene.stage, 0..10);
        scene.relay.run_once();
        insert(&scene.stage, 10..17);
        let verify = || {
            let outcome =
                scene.relay.start(&["verify", "--output", "json", "--grace", "0s"]).outcome();
            serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
        };
        let found = verify();
        let numbers = (&found["lost"], &found["pending"], &found["clean"]);
        assert_eq!(numbers, (&0.into(), &7.into(), &true.into()), "{settings:?}: {found}");
        if settings.is_empty() {
            // Marked by somebody else.
            scene.stage.sql().run("UPDATE outbox SET processed_at = now() WHERE payload = '12'");
            assert_eq!(verify()["lost"], 1);
        }
    }
}

#[test]
fn generated_columns_are_read_and_others_are_not() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("route.headers", "twice")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_generated", &settings);
    // Whoever reads `trap` fails.
    scene.stage.sql().run(
        "ALTER TABLE outbox ADD COLUMN twice text GENERATED ALWAYS AS (aggregate_id || aggregate_id) STORED; \
         CREATE TYPE trap; \
         CREATE FUNCTION trap_in(cstring) RETURNS trap IMMUTABLE STRICT LANGUAGE internal AS 'textin'; \
         CREATE FUNCTION trap_out(trap) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'void_recv'; \
         CREATE TYPE trap (INPUT = trap_in, OUTPUT = trap_out, LIKE = text); \
         ALTER TABLE outbox ADD COLUMN trap trap DEFAULT 'x'",
    );
    insert(&scene.stage, 0..10);
    scene.relay.run_once();
    let stored = records(&scene.stage);
    assert_eq!(stored.len(), 10);
    for record in stored {
        let key = String::from_utf8(record.key.clone().unwrap()).unwrap();
        assert_eq!(record.header("twice"), Some(&*key.repeat(2)));
    }
}

#[test]
fn text_of_another_encoding_comes_as_utf_8() {
    let Some(kafka) = kafka::shared() else { return };
    let database = Database::encoded(postgres::installed(), "poll_encoded", "WIN1252");
    let stage = Stage::before(database, &kafka.bootstrap());
    topic::create(&kafka.bootstrap(), &stage.topic("A"), 1, &[]);
    stage.sql().run("ALTER TABLE outbox ADD COLUMN processed_at timestamptz");
    let scene = Scene::of(stage, &[]);
    scene.grant("outbox");
    scene.stage.sql().run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'Grüße', 'A', '\"€ö\"')",
    );
    scene.relay.run_once();
    let stored = records(&scene.stage);
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].key.as_deref(), Some("Grüße".as_bytes()));
    assert_eq!(stored[0].value.as_deref(), Some("\"€ö\"".as_bytes()));
}
