//! The mistakes that published consumers make, each shown as one beside what is right. The database
//! is real; the rest is as small as the mistake.

use uuid::Uuid;

use crate::inbox::scene::{Draft, Outcome, Running, Scene, TestEffects};
use support::postgres::{self, Database};
use support::sql::Sql;

/// Where a consumer dies. Everything after it is left undone; what is open is rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Never,
    /// Between the first and the second thing that it commits.
    Between,
}

/// A consumer that commits marker and effect apart, or together, and acknowledges at the end.
struct Naive {
    sql: Sql,
    steps: &'static [&'static str],
}

impl Naive {
    /// Delivers until it is acknowledged; the first delivery dies as told. Effects at the end.
    fn deliver(&self, first: Death) -> usize {
        let id = Uuid::now_v7();
        let mut death = first;
        loop {
            let known =
                format!("SELECT count(*) FROM processed_messages WHERE message_id = '{id}'");
            if self.sql.value(&known) == "1" {
                break;
            }
            let mut is_alive = true;
            for step in self.steps {
                if is_alive {
                    self.sql.run(&step.replace("ID", &id.to_string()));
                }
                is_alive = is_alive && death == Death::Never;
            }
            if is_alive {
                break;
            }
            death = Death::Never;
        }
        let count = format!("SELECT count(*) FROM deeds WHERE message_id = '{id}'");
        self.sql.value(&count).parse().unwrap()
    }
}

const INSERT_MARKERS: &str = "INSERT INTO processed_messages VALUES ('naive', 'ID')";
const ACT: &str = "INSERT INTO deeds VALUES ('ID')";
const BOTH: &str = "BEGIN; INSERT INTO processed_messages VALUES ('naive', 'ID'); \
                    INSERT INTO deeds VALUES ('ID'); COMMIT";

fn naive(steps: &'static [&'static str]) -> Naive {
    let sql = Database::migrated(postgres::installed(), "naive").sql();
    sql.run("CREATE TABLE deeds (message_id uuid)");
    Naive { sql, steps }
}

#[test]
fn a_marker_committed_before_the_effect_loses_the_message() {
    let mistake = naive(&[INSERT_MARKERS, ACT]);
    assert_eq!(mistake.deliver(Death::Never), 1);
    assert_eq!(mistake.deliver(Death::Between), 0);
}

#[test]
fn a_marker_committed_after_the_effect_doubles_it() {
    let mistake = naive(&[ACT, INSERT_MARKERS]);
    assert_eq!(mistake.deliver(Death::Never), 1);
    assert_eq!(mistake.deliver(Death::Between), 2);
}

#[test]
fn a_marker_in_the_transaction_of_the_effect_does_neither() {
    let right = naive(&[BOTH, "SELECT 1"]);
    assert_eq!(right.deliver(Death::Never), 1);
    assert_eq!(right.deliver(Death::Between), 1);
}

#[test]
fn the_marker_goes_with_the_effect_that_failed() {
    let Some(scene) = Scene::new("marker") else { return };
    scene.send(&Draft::many(1));
    let observer = scene.database.clone();
    let name = scene.name.clone();
    // Looked at from outside, between two attempts.
    let effect_rows = TestEffects::with(move |_, attempt| {
        let (observer, name) = (observer.clone(), name.clone());
        let seen = std::thread::spawn(move || {
            observer.sql().value(&format!(
                "SELECT (SELECT count(*) FROM deeds) + \
                 (SELECT count(*) FROM processed_messages WHERE consumer = '{name}')"
            ))
        });
        assert_eq!(seen.join().unwrap(), "0");
        if attempt < 4 { Outcome::Fail } else { Outcome::Succeed }
    });
    let running = scene.start(effect_rows.clone());
    scene.await_effects(1);
    running.stop();
    assert_eq!((effect_rows.attempts(0), scene.markers()), (4, 1));
}

#[test]
fn a_refusal_that_is_thrown_is_rolled_back_with_the_event_that_tells_of_it() {
    let Some(scene) = Scene::new("refused") else { return };
    scene.send(&Draft::many(2));
    // Number 0 writes the row of its refusal and then fails, as published; number 1 lets it stand.
    let mut spec = scene.spec();
    spec.attempts_max = 2;
    let thrown =
        TestEffects::with(|number, _| if number == 0 { Outcome::Fail } else { Outcome::Succeed });
    let running = Running::start(spec, thrown);
    running.await_counters("the dead letter", |now| now.dead_letters == 1);
    running.await_counters("the other", |now| now.processed == 1);
    running.stop();
    let outcome = scene.database.sql().rows("SELECT number FROM deeds");
    assert_eq!(outcome, [[Some("1".to_owned())]]);
}
