//! One message whose statements the database refuses, with errors that a missing table or a full disk gives
//! too: the others have their effects, and it becomes a dead letter.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::inbox::scene::{Draft, HANDLED, Outcome, Scene, TestEffects};
use support::{topic, unique};

/// How long the others may take.
const LIMIT: Duration = Duration::from_mins(1);

/// An error that says nothing of whose it is: what it takes to have it, the statement, and the reason.
struct Refusal {
    setup: &'static str,
    sql: &'static str,
    reason: &'static str,
}

/// Row-level security, which does not hold for the tests' own role.
const ROW_SECURITY: Refusal = Refusal {
    setup: "CREATE ROLE \"TENANT\"; CREATE TABLE ledger (tenant text); \
            ALTER TABLE ledger ENABLE ROW LEVEL SECURITY; \
            CREATE POLICY own ON ledger USING (tenant = 'acme'); \
            GRANT INSERT ON ledger TO \"TENANT\"; \
            GRANT CREATE, USAGE ON SCHEMA public TO \"TENANT\"; \
            CREATE FUNCTION post(tenant text) RETURNS void LANGUAGE sql SECURITY DEFINER \
            AS 'INSERT INTO ledger VALUES (tenant)'; \
            ALTER FUNCTION post OWNER TO \"TENANT\"",
    sql: "SELECT post('globex')",
    reason: "db error: SQLSTATE 42501",
};

const TENANTS_SEQUENCE: Refusal = Refusal {
    setup: "CREATE SEQUENCE seq_acme",
    sql: "SELECT nextval('seq_' || 'globex')",
    reason: "db error: SQLSTATE 42P01",
};

const BIG_SORT: Refusal = Refusal {
    setup: "",
    sql: "SET LOCAL work_mem = '64kB'; SET LOCAL temp_file_limit = '64kB'; \
          SELECT count(*) FROM (SELECT n FROM generate_series(1, 100000) AS n ORDER BY -n) AS sorted",
    reason: "db error: SQLSTATE 53400",
};

/// All messages are in one partition, which they reach in this order.
fn one_partition(stem: &str) -> Option<Scene> {
    let scene = Scene::new(stem)?;
    let topic = unique(stem);
    topic::create(&scene.bootstrap, &topic, 1, &[]);
    Some(Scene { topic, ..scene })
}

fn of_one_key(mut drafts: Vec<Draft>) -> Vec<Draft> {
    for draft in &mut drafts {
        draft.key = "account-0".into();
    }
    drafts
}

/// The culprits become dead letters, and all others have their effects.
fn assert_stops_nobody(scene: &Scene, refusal: &Refusal, drafts: &[Draft], culprits: &[i64]) {
    if !refusal.setup.is_empty() {
        scene.database.sql().run(&refusal.setup.replace("TENANT", &unique("tenant")));
    }
    scene.send(drafts);
    let (own, sql) = (culprits.to_vec(), refusal.sql);
    let begin = Instant::now();
    let running = scene.start(TestEffects::with(move |number, _| {
        if own.contains(&number) { Outcome::Run(sql) } else { Outcome::Succeed }
    }));
    scene.await_effects(drafts.len() - culprits.len());
    let dead = u64::try_from(culprits.len()).unwrap();
    running.await_counters("the dead letters", |now| now.dead_letters == dead);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    running.stop();
    let letters = scene.letters();
    assert_eq!(letters.len(), culprits.len());
    for letter in letters {
        let attempts = letter.failure().unwrap().attempts;
        assert_eq!((letter.code.as_str(), attempts), ("attempts_used_up", 5));
        assert_eq!(letter.reason, refusal.reason);
    }
}

#[test]
fn a_row_that_row_security_refuses_stops_no_other_message() {
    for culprit in [0, 1, 6] {
        let Some(scene) = one_partition("secured") else { return };
        assert_stops_nobody(&scene, &ROW_SECURITY, &Draft::many(7), &[culprit]);
    }
}

#[test]
fn a_relation_that_one_message_alone_misses_stops_no_other_message() {
    for culprit in [0, 1, 6] {
        let Some(scene) = one_partition("tenant") else { return };
        assert_stops_nobody(&scene, &TENANTS_SEQUENCE, &Draft::many(7), &[culprit]);
    }
}

#[test]
fn a_sort_that_exceeds_its_limit_stops_no_other_message() {
    for culprit in [0, 1, 6] {
        let Some(scene) = one_partition("sorted") else { return };
        assert_stops_nobody(&scene, &BIG_SORT, &Draft::many(7), &[culprit]);
    }
}

#[test]
fn a_refused_message_stops_none_of_its_own_key() {
    let Some(scene) = one_partition("sibling") else { return };
    assert_stops_nobody(&scene, &TENANTS_SEQUENCE, &of_one_key(Draft::many(7)), &[0]);
}

#[test]
fn three_refused_messages_of_a_hundred_stop_no_other() {
    let Some(scene) = Scene::new("three") else { return };
    assert_stops_nobody(&scene, &TENANTS_SEQUENCE, &Draft::many(100), &[0, 50, 99]);
}

#[test]
fn a_refused_message_that_is_alone_waits_until_another_has_its_effect() {
    let Some(scene) = one_partition("alone") else { return };
    scene.send(&[Draft::new(0)]);
    let running = scene.start(TestEffects::with(|number, _| {
        if number == 0 { Outcome::Run(TENANTS_SEQUENCE.sql) } else { Outcome::Succeed }
    }));
    running.await_counters("more retries than a message has", |now| now.retries > 6);
    assert_eq!(running.now().dead_letters, 0);
    scene.send(&[Draft::of(Uuid::now_v7(), HANDLED, 1)]);
    scene.await_effects(1);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.stop();
}
