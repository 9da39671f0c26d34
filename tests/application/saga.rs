//! Sagas advance under a lock, keep a history, and are found when they are overdue.

use std::time::Duration;

use postrider::outbox_writer::{Event, append};
use postrider::saga::{self, Cause, Emitted, NewSaga, Saga, SagaError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::database::{Stage, client, count};

/// Counts to three, then emits an event.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Three {
    steps: u32,
}

impl Saga for Three {
    const KIND: &'static str = "three";
    type Event = &'static str;

    fn apply(&mut self, _: &&'static str) -> Vec<Emitted> {
        self.steps += 1;
        let ends = self.steps == 3;
        let done = Emitted::new("Done", json!({ "steps": 3 }));
        ends.then_some(done).into_iter().collect()
    }

    fn name(event: &&'static str) -> &'static str {
        event
    }

    fn status(&self) -> &'static str {
        if self.has_ended() { "DONE" } else { "COUNTING" }
    }

    fn has_ended(&self) -> bool {
        self.steps >= 3
    }

    fn deadline_passed() -> &'static str {
        "late"
    }
}

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_saga_advances_event_by_event_and_keeps_its_history() {
    let (stage, mut client) = Stage::set().await;
    let begun = Emitted::new("Begun", json!({}));
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, "a", &Three::default(), &[begun], HOUR).await.unwrap();
    transaction.commit().await.unwrap();

    // Concurrently: the row lock serializes them.
    let mut steps = tokio::task::JoinSet::new();
    for event in ["x", "y", "z"] {
        let mut client = stage.connect().await;
        steps.spawn(async move {
            let transaction = client.transaction().await.unwrap();
            let step =
                saga::advance::<Three>(&transaction, "a", &event, Cause::default()).await.unwrap();
            transaction.commit().await.unwrap();
            step.ended
        });
    }
    assert_eq!(steps.join_all().await.iter().filter(|ended| **ended).count(), 1);
    let view = saga::view::<Three>(&client, "a").await.unwrap().unwrap();
    assert_eq!((view.state, view.status.as_str()), (Three { steps: 3 }, "DONE"));
    let history = saga::history::<Three>(&client, "a").await.unwrap();
    let statuses: Vec<_> = history.iter().map(|entry| entry.status.as_str()).collect();
    assert_eq!(statuses, ["COUNTING", "COUNTING", "COUNTING", "DONE"]);
    assert_eq!(history[0].event, "Begun");
    assert_eq!(count(&client, "SELECT count(*) FROM outbox WHERE event_type = 'Done'").await, 1);
    assert_eq!(saga::view::<Three>(&client, "b").await.unwrap(), None);
}

#[tokio::test]
async fn an_unknown_saga_and_an_invalid_state_are_different_errors() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    let error =
        saga::advance::<Three>(&transaction, "a", &"x", Cause::default()).await.unwrap_err();
    assert!(matches!(error, SagaError::Unknown { .. }), "{error:?}");
    let sql = "INSERT INTO sagas (kind, id, state, status) VALUES ('three', 'a', '[]', '')";
    transaction.execute(sql, &[]).await.unwrap();
    let error =
        saga::advance::<Three>(&transaction, "a", &"x", Cause::default()).await.unwrap_err();
    assert!(matches!(error, SagaError::State { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("sagas"));
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn overdue_sagas_are_found_by_one_caller_and_postponed() {
    let (stage, mut client) = Stage::set().await;
    let transaction = client.transaction().await.unwrap();
    for (id, timeout) in [("late", Duration::ZERO), ("later", Duration::ZERO), ("early", HOUR)] {
        saga::start(&transaction, id, &Three::default(), &[], timeout).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let mut found = saga::overdue::<Three>(&transaction, HOUR, 10).await.unwrap();
    found.sort();
    assert_eq!(found, ["late", "later"]);
    let mut other = stage.connect().await;
    let other = other.transaction().await.unwrap();
    let second = saga::overdue::<Three>(&other, HOUR, 10).await.unwrap();
    assert_eq!(second, Vec::<String>::new(), "the first one has them");
    transaction.commit().await.unwrap();
    other.rollback().await.unwrap();
    let third = client.transaction().await.unwrap();
    let again = saga::overdue::<Three>(&third, HOUR, 10).await.unwrap();
    assert_eq!(again, Vec::<String>::new(), "they were put off");
    third.commit().await.unwrap();
    for _ in 0..3 {
        let step = client.transaction().await.unwrap();
        saga::advance::<Three>(&step, "late", &"x", Cause::default()).await.unwrap();
        step.commit().await.unwrap();
    }
    let sql = "SELECT count(*) FROM sagas WHERE deadline IS NOT NULL";
    assert_eq!(count(&client, sql).await, 2, "what has ended has no deadline");
}

#[tokio::test]
async fn each_deadline_is_twice_as_far_away_as_the_one_before_up_to_a_limit() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, "a", &Three::default(), &[], HOUR).await.unwrap();
    transaction.commit().await.unwrap();
    let hours = "SELECT round(extract(epoch FROM deadline - now()) / 3600)::bigint FROM sagas";
    let mut pauses = vec![count(&client, hours).await];
    for _ in 0..9 {
        client.execute("UPDATE sagas SET deadline = now()", &[]).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        assert_eq!(saga::overdue::<Three>(&transaction, HOUR, 10).await.unwrap(), ["a"]);
        transaction.commit().await.unwrap();
        pauses.push(count(&client, hours).await);
    }
    assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
}

/// The well-known mistake: the handler writes the event of the failure, and then fails.
#[tokio::test]
async fn a_failure_event_of_a_handler_that_fails_is_rolled_back_with_it() {
    let (_stage, mut client) = client().await;
    let failed = || Event::new("payment", "7", "PaymentFailed", json!({}));
    let declined: Result<(), &str> = async {
        let transaction = client.transaction().await.unwrap();
        append(&transaction, &failed()).await.unwrap();
        // Dropped without a commit, as an exception would.
        Err("the card was declined")
    }
    .await;
    assert!(declined.is_err());
    let events = "SELECT count(*) FROM outbox";
    assert_eq!(count(&client, events).await, 0, "nobody will ever hear of it: the saga hangs");

    // A refusal is a result: it commits, and its event with it.
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &failed()).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(count(&client, events).await, 1);
}

#[tokio::test]
async fn starting_a_saga_twice_writes_nothing() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    let begun = || [Emitted::new("Begun", json!({}))];
    saga::start(&transaction, "a", &Three::default(), &begun(), HOUR).await.unwrap();
    let error = saga::start(&transaction, "a", &Three { steps: 2 }, &begun(), HOUR).await;
    let error = error.unwrap_err();
    assert!(matches!(&error, SagaError::Exists { kind: "three", id } if id == "a"), "{error:?}");
    assert!(error.hint().is_some() && error.database().is_none());
    // The transaction goes on.
    saga::start(&transaction, "b", &Three::default(), &begun(), HOUR).await.unwrap();
    transaction.commit().await.unwrap();
    let view = saga::view::<Three>(&client, "a").await.unwrap().unwrap();
    assert_eq!(view.state, Three { steps: 0 });
    assert_eq!(count(&client, "SELECT count(*) FROM outbox WHERE event_type = 'Begun'").await, 2);
}

#[tokio::test]
async fn whichever_event_comes_first_starts_the_saga_once() {
    let (stage, client) = Stage::set().await;
    // At once, from four sessions: one of them starts it, and each of three counts.
    let mut steps = tokio::task::JoinSet::new();
    for event in ["x", "y", "z"] {
        let mut client = stage.connect().await;
        steps.spawn(async move {
            let transaction = client.transaction().await.unwrap();
            let new = NewSaga::new(Three::default(), HOUR);
            let step = saga::start_or_advance(&transaction, "a", new, &event, Cause::default());
            let step = step.await.unwrap();
            transaction.commit().await.unwrap();
            step
        });
    }
    let steps = steps.join_all().await;
    assert_eq!(steps.iter().filter(|step| step.started).count(), 1, "{steps:?}");
    assert_eq!(steps.iter().filter(|step| step.ended).count(), 1, "{steps:?}");
    let view = saga::view::<Three>(&client, "a").await.unwrap().unwrap();
    assert_eq!((view.state, view.status.as_str()), (Three { steps: 3 }, "DONE"));
    let history = saga::history::<Three>(&client, "a").await.unwrap();
    let statuses: Vec<_> = history.iter().map(|entry| entry.status.as_str()).collect();
    assert_eq!(statuses, ["COUNTING", "COUNTING", "DONE"]);
    let open = "SELECT count(*) FROM sagas WHERE deadline IS NOT NULL";
    assert_eq!(count(&client, open).await, 0);
}

/// Nothing but its deadline changes it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Patient(bool);

impl Saga for Patient {
    const KIND: &'static str = "patient";
    type Event = &'static str;

    fn apply(&mut self, event: &&'static str) -> Vec<Emitted> {
        self.0 |= *event == "late";
        Vec::new()
    }

    fn name(event: &&'static str) -> &'static str {
        event
    }

    fn status(&self) -> &'static str {
        if self.0 { "OVER" } else { "WAITING" }
    }

    fn has_ended(&self) -> bool {
        self.0
    }

    fn deadline_passed() -> &'static str {
        "late"
    }
}

#[tokio::test]
async fn an_event_without_changes_starts_a_saga_with_a_deadline() {
    let (_stage, mut client) = client().await;
    for is_first in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let new = NewSaga::new(Patient::default(), Duration::ZERO);
        let step = saga::start_or_advance(&transaction, "a", new, &"noted", Cause::default());
        let step = step.await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!((step.started, step.changed), (is_first, false));
    }
    let history = saga::history::<Patient>(&client, "a").await.unwrap();
    assert_eq!(history.iter().map(|entry| entry.event.as_str()).collect::<Vec<_>>(), ["noted"]);
    saga::fire_due::<Patient>(&mut client, HOUR).await.unwrap();
    let view = saga::view::<Patient>(&client, "a").await.unwrap().unwrap();
    assert_eq!(view.status, "OVER");
}
