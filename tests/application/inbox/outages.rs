//! What passes by itself, and what only looks like it: slow databases, standbys, late migrations.

use crate::inbox::scene::{Deeds, Draft, Scene, Whim};

/// As `statement_timeout` or `pg_cancel_backend` do it.
const CANCELLED: &str = "DO $$ BEGIN RAISE query_canceled; END $$";
/// A type that no migration will bring.
const NO_TYPE: &str = "SELECT 'x'::nothing";

#[test]
fn statements_that_are_cancelled_again_and_again_make_no_dead_letter() {
    let Some(scene) = Scene::new("cancelled") else { return };
    scene.send(&Draft::many(10));
    // More often than a message may fail.
    let deeds =
        Deeds::with(
            |number, attempt| {
                if number == 3 && attempt <= 8 { Whim::Run(CANCELLED) } else { Whim::Work }
            },
        );
    let running = scene.start(deeds);
    scene.await_deeds(10);
    assert_eq!(running.stop().dead_letters, 0);
    assert_eq!(scene.committed().iter().sum::<i64>(), 10);
}

#[test]
fn a_session_that_reached_a_standby_is_left_for_a_new_one() {
    let Some(scene) = Scene::new("standby") else { return };
    let name = scene.database.name().to_owned();
    let sql = scene.database.sql();
    // As a session on a standby sees it, and for as long as the session lasts.
    sql.run(&format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on"));
    scene.send(&Draft::many(10));
    let running = scene.start(Deeds::plain());
    running.await_that("more retries than a message has", |now| now.retries > 6);
    assert!(running.standing().is_database_away);
    sql.run(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only"));
    scene.await_deeds(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_late_migration_is_waited_for_and_makes_no_dead_letter() {
    let Some(scene) = Scene::new("late") else { return };
    let sql = scene.database.sql();
    sql.run("ALTER TABLE deeds RENAME COLUMN number TO digits");
    scene.send(&Draft::many(10));
    let running = scene.start(Deeds::with(|_, _| {
        Whim::Run("INSERT INTO deeds (message_id, number) SELECT NULL, 0 WHERE false")
    }));
    running.await_that("more retries than a message has", |now| now.retries > 6);
    assert_eq!(running.standing().obstacle(), Some("the consumer waits for its database"));
    sql.run("ALTER TABLE deeds RENAME COLUMN digits TO number");
    scene.await_deeds(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_statement_that_no_migration_mends_is_the_messages_own_failure() {
    let Some(scene) = Scene::new("untyped") else { return };
    scene.send(&Draft::many(10));
    let running = scene
        .start(Deeds::with(|number, _| if number == 3 { Whim::Run(NO_TYPE) } else { Whim::Work }));
    scene.await_deeds(9);
    running.await_that("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let letters = scene.letters();
    let letter = &letters[0];
    assert_eq!((letter.code.as_str(), letter.failure().unwrap().attempts), ("attempts_used_up", 5));
    assert_eq!(letter.reason, "db error: SQLSTATE 42704");
}
