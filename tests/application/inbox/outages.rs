//! Transient failures: slow databases, standbys, late migrations; and failures that only look transient.

use crate::inbox::scene::{Draft, Outcome, Scene, TestEffects};

/// As `statement_timeout` or `pg_cancel_backend` do it.
const CANCELLED: &str = "DO $$ BEGIN RAISE query_canceled; END $$";
/// A type that no migration will bring.
const NO_TYPE: &str = "SELECT 'x'::nothing";

#[test]
fn statements_that_are_cancelled_again_and_again_make_no_dead_letter() {
    let Some(scene) = Scene::new("cancelled") else { return };
    scene.send(&Draft::many(10));
    // More often than a message may fail.
    let effect_rows = TestEffects::with(|number, attempt| {
        if number == 3 && attempt <= 8 { Outcome::Run(CANCELLED) } else { Outcome::Succeed }
    });
    let running = scene.start(effect_rows);
    scene.await_effects(10);
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
    let running = scene.start(TestEffects::plain());
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    assert!(running.status().is_database_unavailable);
    sql.run(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only"));
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_late_migration_is_waited_for_and_makes_no_dead_letter() {
    let Some(scene) = Scene::new("late") else { return };
    let sql = scene.database.sql();
    sql.run("ALTER TABLE deeds RENAME COLUMN number TO digits");
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::with(|_, _| {
        Outcome::Run("INSERT INTO deeds (message_id, number) SELECT NULL, 0 WHERE false")
    }));
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    assert_eq!(
        running.status().not_ready_reason(),
        Some("the consumer is waiting for its database")
    );
    sql.run("ALTER TABLE deeds RENAME COLUMN digits TO number");
    scene.await_effects(10);
    assert_eq!(running.stop().dead_letters, 0);
}

#[test]
fn a_statement_that_no_migration_fixes_is_a_failure_of_the_message() {
    let Some(scene) = Scene::new("untyped") else { return };
    scene.send(&Draft::many(10));
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 3 { Outcome::Run(NO_TYPE) } else { Outcome::Succeed }
    }));
    scene.await_effects(9);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
    let letters = scene.letters();
    let letter = &letters[0];
    assert_eq!((letter.code.as_str(), letter.failure().unwrap().attempts), ("attempts_used_up", 5));
    assert_eq!(letter.reason, "db error: SQLSTATE 42704");
}
