//! Rows that cannot be delivered become dead letters, each once, and hold up nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::{Scene, records};
use crate::stage::Stage;
use postrider::sandbox::postgres::Options;
use support::postgres::Database;
use support::topic::Stored;
use support::{kafka, postgres, topic};

#[test]
fn g4_rows_that_brokers_refuse_become_one_dead_letter_each_and_good_rows_none() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.tables", "public.outbox,public.other"), ("source.poll.batch", "300")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_refused", &settings);
    scene.grant("other");
    let small = scene.stage.topic("S");
    topic::create(&kafka.bootstrap(), &small, 1, &[("max.message.bytes", "100000")]);
    let large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 14000) AS i)";
    for table in ["outbox", "other"] {
        // The same ids, keys and values in both.
        scene.stage.sql().run(&format!(
            "INSERT INTO {table} (id, aggregate_type, aggregate_id, event_type, payload) \
             SELECT md5(n::text)::uuid, '{table}', n % 10, 'S', \
                 CASE WHEN n IN (70, 150) THEN to_jsonb({large}) ELSE '\"same\"'::jsonb END \
             FROM generate_series(1, 400) AS n"
        ));
    }
    let relay = scene.relay.clone();
    let relay =
        relay.allow_log("refused a batch").allow_log("became a dead letter").allow_log("at most");
    relay.run_once();
    scene.wait_pending("processed_at IS NULL", 0);
    let table = |one: &Stored| one.header("aggregate_type").unwrap_or_default().to_owned();
    let good: BTreeSet<_> = records(&scene.stage)
        .iter()
        .map(|one| (table(one), one.header("id").unwrap().to_owned()))
        .collect();
    assert_eq!(good.len(), 2 * 398);
    let letters = topic::read(&kafka.bootstrap(), &[scene.stage.topic("dead-letters")]);
    let ids: BTreeSet<_> =
        letters.iter().map(|one| (table(one), one.header("id").unwrap().to_owned())).collect();
    assert_eq!(ids.len(), 4, "two of each table");
    assert!(ids.is_disjoint(&good), "no good row is suspected");
    assert!(letters.len() <= 8, "a letter may come again with its batch: {}", letters.len());
}

/// A row that was read from its table has no position in the log that anybody could look up.
#[test]
fn a_row_that_stops_the_relay_is_named_by_its_id() {
    let Some(kafka) = kafka::shared() else { return };
    let scene = Scene::new(&kafka.bootstrap(), "poll_named", &[("route.rejected", "stop")]);
    let id = "592fc5e2-73bc-4376-a0bc-62dcc5a1329d";
    scene.stage.sql().run(&format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{id}', 't', '1', 'no such topic!', '1')"
    ));
    let (code, said) =
        Scene::failure(&scene.relay.clone().allow_log("PR-R004"), &["run", "--once"]);
    assert_eq!(code, Some(65), "{said}");
    let words = format!("the row of public.outbox with id `{id}` cannot be delivered");
    assert!(said.contains(&words) && said.contains("PR-R004"), "{said}");
}

#[test]
fn g4_rows_of_a_bad_shape_become_dead_letters_between_the_others() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("route.partition", "partition"), ("source.poll.batch", "7")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_shape", &settings);
    scene.stage.sql().run(
        "ALTER TABLE outbox ALTER COLUMN event_type DROP NOT NULL, ADD COLUMN partition int; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, partition) \
         SELECT 't', n % 10, CASE WHEN n % 5 = 0 THEN NULL WHEN n % 5 = 1 THEN 'no such topic!' \
             WHEN n % 5 = 2 THEN 'B' ELSE 'A' END, to_jsonb(n), CASE WHEN n % 5 = 3 THEN 77 END \
         FROM generate_series(1, 100) AS n",
    );
    let relay = scene.relay.clone().allow_log("became a dead letter");
    relay.run_once();
    scene.wait_pending("processed_at IS NULL", 0);
    let letters = topic::read(&kafka.bootstrap(), &[scene.stage.topic("dead-letters")]);
    let ids: BTreeSet<_> = letters.iter().map(|one| one.header("id").unwrap()).collect();
    let codes: Vec<_> = letters.iter().map(|one| one.header("postrider-error-code")).collect();
    assert_eq!((letters.len(), ids.len()), (60, 60), "each once: {codes:?}");
    assert_eq!(records(&scene.stage).len(), 40);
}

#[test]
fn g4_a_row_that_is_too_large_to_be_held_becomes_a_dead_letter() {
    let Some(kafka) = kafka::shared() else { return };
    let settings = [("source.frame_max", "1MiB"), ("source.poll.batch", "50")];
    let scene = Scene::new(&kafka.bootstrap(), "poll_large", &settings);
    scene.stage.sql().run(
        "WITH large AS (SELECT string_agg(md5(i::text), '') AS text FROM generate_series(1, 100000) AS i) \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 't', n % 10, 'A', CASE n WHEN 60 THEN to_jsonb(text) ELSE to_jsonb(n) END \
         FROM large, generate_series(1, 100) AS n",
    );
    scene.relay.clone().allow_log("became a dead letter").run_once();
    scene.wait_pending("processed_at IS NULL", 0);
    assert_eq!(records(&scene.stage).len(), 99);
    let letters = topic::read(&kafka.bootstrap(), &[scene.stage.topic("dead-letters")]);
    let codes: Vec<_> = letters.iter().map(|one| one.header("postrider-error-code")).collect();
    assert_eq!(codes, [Some("too_large")]);
    assert!(letters[0].header("id").is_some());
}

/// Rows that cannot be decoded: bytes of no encoding, and NULL or a time without an instant in columns that are read.
const UNDECODABLE: &str = r"
    ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP NOT NULL, ALTER aggregate_type DROP NOT NULL,
        ALTER aggregate_id DROP NOT NULL, ALTER event_type DROP NOT NULL, ALTER created_at DROP NOT NULL,
        ALTER payload TYPE text, ALTER id TYPE text;
    INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES
        ('01', 't', 'k', 'A', '1', now()), ('02', 't', 'k', E'\351', '2', now()), ('03', 't', E'\351', 'A', '3', now()),
        ('04', E'\351', 'k', 'A', '4', now()), ('05', 't', 'k', 'A', E'\351', now()), (E'06\351', 't', 'k', 'A', '6', now()),
        ('07', 't', 'k', NULL, '7', now()), ('08', 't', NULL, 'A', '8', now()), ('09', NULL, 'k', 'A', '9', now()),
        (NULL, 't', 'k', 'A', '10', now()), ('11', 't', 'k', 'A', '11', NULL), ('12', 't', 'k', 'A', '12', 'infinity'),
        ('13', 't', 'k', 'A', '13', '4000-01-01 BC'), ('', 't', 'k', 'A', '14', now()), ('15', 't', 'k', '', '15', now()),
        ('16', 't', 'k', 'A', '16', now())";

/// Each record's topic without its prefix, and a dead letter's code, by the value.
fn outcomes(stage: &Stage) -> BTreeMap<Vec<u8>, (String, String)> {
    let names = topic::names(stage.bootstrap(), &stage.topic(""));
    let records = topic::read(stage.bootstrap(), &names);
    let of = |one: &Stored| {
        let code = one.header("postrider-error-code").unwrap_or_default().to_owned();
        (one.value.clone().unwrap_or_default(), (one.topic.replace(&stage.topic(""), ""), code))
    };
    records.iter().map(of).collect()
}

#[test]
fn g4_a_row_that_cannot_be_decoded_has_the_same_fate_polled_and_streamed() {
    let Some(kafka) = kafka::shared() else { return };
    let fates = [true, false].map(|is_polled| {
        let database = Database::encoded(postgres::installed(), "undecodable", "SQL_ASCII");
        let stage = Stage::before(database, &kafka.bootstrap());
        for name in ["A", "dead-letters"] {
            topic::create(&kafka.bootstrap(), &stage.topic(name), 1, &[]);
        }
        stage.sql().run("ALTER TABLE outbox ADD COLUMN processed_at timestamptz");
        if is_polled {
            let scene = Scene::of(stage, &[("source.poll.batch", "7"), ("outbox.order_by", "id")]);
            scene.grant("outbox");
            scene.stage.sql().run(UNDECODABLE);
            scene.relay.clone().allow_log("").run_once();
            scene.wait_pending("processed_at IS NULL", 0);
            outcomes(&scene.stage)
        } else {
            stage.create_slot();
            stage.sql().run(UNDECODABLE);
            stage.relay().allow_log("").run_once();
            outcomes(&stage)
        }
    });
    assert_eq!(fates[0].len(), 16);
    assert_eq!(fates[0], fates[1]);
}

#[test]
fn a_row_that_the_server_cannot_send_ends_the_poll() {
    let Some(kafka) = kafka::shared() else { return };
    let cluster = postgres::start(&Options::default());
    let stage = Stage::empty(&cluster, &kafka.bootstrap(), "poll_unsendable");
    let scene = Scene::on(stage, &[("route.headers", "other")]);
    scene.stage.sql().run(
        "ALTER TABLE outbox ADD COLUMN other bytea; \
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, other) \
         VALUES ('t', 'k', 'A', convert_to(repeat('x', 540000000), 'UTF8'))",
    );
    let (code, said) = Scene::failure(&scene.relay, &["run"]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("cannot take rows of table") && said.contains("1 GiB"), "{said}");
}
