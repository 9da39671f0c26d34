//! What the saga library does besides events: timers, deadlines, operators' actions, cleaning up.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::cell::Cell;
use std::time::Duration;

use postrider::saga::{self, Cause, Emitted, OperatorAction, Saga, SagaError, Timer};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use crate::database::{Stage, client, count};

/// A parcel that is asked after each hour until it has arrived, and given up at the deadline.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Delivery {
    asked: u32,
    insured: bool,
    arrived: bool,
    given_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fact {
    AskDue,
    Insured,
    Arrived,
    DeadlinePassed,
}

impl Saga for Delivery {
    const KIND: &'static str = "delivery";
    type Event = Fact;

    fn apply(&mut self, fact: &Fact) -> Vec<Emitted> {
        match fact {
            Fact::AskDue => {
                self.asked += 1;
                vec![Emitted::new("CarrierAsked", json!({})).of_aggregate("carrier", "c-1")]
            }
            Fact::Insured => {
                self.insured = true;
                vec![]
            }
            Fact::Arrived => {
                self.arrived = true;
                vec![]
            }
            Fact::DeadlinePassed => {
                self.given_up = true;
                vec![Emitted::new("DeliveryGivenUp", json!({}))]
            }
        }
    }

    fn name(fact: &Fact) -> &'static str {
        match fact {
            Fact::AskDue => "AskDue",
            Fact::Insured => "Insured",
            Fact::Arrived => "Arrived",
            Fact::DeadlinePassed => "DeadlinePassed",
        }
    }

    fn status(&self) -> &'static str {
        match (self.arrived, self.given_up) {
            (true, _) => "ARRIVED",
            (_, true) => "GIVEN_UP",
            _ => "ON_ITS_WAY",
        }
    }

    fn has_ended(&self) -> bool {
        self.arrived
    }

    fn deadline_passed() -> Fact {
        Fact::DeadlinePassed
    }

    fn timers(&self) -> Vec<Timer> {
        let mut timers = vec![Timer { name: "ask", after: HOUR }];
        if self.insured {
            timers.push(Timer { name: "claim", after: HOUR * 2 });
        }
        timers
    }

    fn timer_fired(name: &str) -> Option<Fact> {
        (name == "ask").then_some(Fact::AskDue)
    }
}

const HOUR: Duration = Duration::from_hours(1);

async fn start(client: &mut Client, id: &str, timeout: Duration) {
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, id, &Delivery::default(), &[], timeout).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn apply(client: &mut Client, id: &str, fact: Fact) {
    let transaction = client.transaction().await.unwrap();
    saga::advance::<Delivery>(&transaction, id, &fact, Uuid::nil()).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn timers(client: &Client) -> Vec<(String, i64)> {
    let sql = "SELECT id || ' ' || name,
                   round(extract(epoch FROM due - statement_timestamp()) / 60)::bigint
               FROM saga_timers ORDER BY 1";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn running(timers: &[(&str, i64)]) -> Vec<(String, i64)> {
    timers.iter().map(|(name, minutes)| ((*name).to_owned(), *minutes)).collect()
}

#[tokio::test]
async fn timers_follow_the_state_and_each_fires_once() {
    let (stage, mut client) = Stage::set().await;
    start(&mut client, "a", HOUR * 100).await;
    assert_eq!(timers(&client).await, running(&[("a ask", 60)]));
    client.execute("UPDATE saga_timers SET due = due - interval '20 min'", &[]).await.unwrap();
    apply(&mut client, "a", Fact::Insured).await;
    let both = running(&[("a ask", 40), ("a claim", 120)]);
    assert_eq!(timers(&client).await, both, "the first keeps its time");
    assert_eq!(
        saga::fire_due::<Delivery>(&mut client, HOUR).await.unwrap(),
        saga::DueRound::default()
    );

    client.execute("UPDATE saga_timers SET due = now() WHERE name = 'ask'", &[]).await.unwrap();
    // Two processes at once.
    let mut other = stage.connect().await;
    let (one, two) = tokio::join!(
        saga::fire_due::<Delivery>(&mut client, HOUR),
        saga::fire_due::<Delivery>(&mut other, HOUR),
    );
    assert_eq!(one.unwrap().timers + two.unwrap().timers, 1);
    assert_eq!(timers(&client).await, running(&[("a ask", 60), ("a claim", 120)]), "set again");
    let asked = "SELECT count(*) FROM outbox WHERE event_type = 'CarrierAsked'
                 AND aggregate_type = 'carrier' AND aggregate_id = 'c-1'";
    assert_eq!(count(&client, asked).await, 1);
    let history = saga::history::<Delivery>(&client, "a").await.unwrap();
    let entries: Vec<_> =
        history.iter().map(|entry| (entry.event.as_str(), entry.cause.is_some())).collect();
    assert_eq!(entries, [("", false), ("Insured", true), ("AskDue", false)]);

    apply(&mut client, "a", Fact::Arrived).await;
    assert_eq!(timers(&client).await, [], "what has ended has no timers");
}

#[tokio::test]
async fn a_timer_of_an_earlier_version_is_deleted_and_one_that_failed_is_tried_later() {
    let (_stage, mut client) = client().await;
    for id in ["a", "b", "broken"] {
        start(&mut client, id, HOUR * 100).await;
    }
    client
        .batch_execute(
            "UPDATE sagas SET state = '[]' WHERE id = 'broken';
             UPDATE saga_timers SET due = now() WHERE id <> 'b';
             INSERT INTO saga_timers (kind, id, name, due) VALUES ('delivery', 'b', 'old', now())",
        )
        .await
        .unwrap();
    let failed = saga::fire_due::<Delivery>(&mut client, HOUR).await.unwrap_err();
    assert!(matches!(&failed, SagaError::State { id, .. } if id == "broken"), "{failed:?}");
    let left = running(&[("a ask", 60), ("b ask", 60), ("broken ask", 0)]);
    assert_eq!(timers(&client).await, left);
    let sql = "SELECT count(*) FROM saga_timers WHERE id = 'broken' AND tries = 1 AND due > now()";
    assert_eq!(count(&client, sql).await, 1);
}

#[tokio::test]
async fn a_deadline_comes_again_until_the_saga_ends() {
    let (_stage, mut client) = client().await;
    start(&mut client, "a", Duration::ZERO).await;
    for round in 1..=3 {
        let found = saga::fire_due::<Delivery>(&mut client, HOUR).await.unwrap();
        assert_eq!(found.deadlines, 1);
        let told = "SELECT count(*) FROM outbox WHERE event_type = 'DeliveryGivenUp'";
        assert_eq!(count(&client, told).await, round);
        let found = saga::fire_due::<Delivery>(&mut client, HOUR).await.unwrap();
        assert_eq!(found.deadlines, 0, "postponed");
        client.execute("UPDATE sagas SET deadline = now()", &[]).await.unwrap();
    }
    let open = saga::count_open::<Delivery>(&client).await.unwrap();
    assert_eq!((open.open, open.overdue), (1, 1));
    apply(&mut client, "a", Fact::Arrived).await;
    let open = saga::count_open::<Delivery>(&client).await.unwrap();
    assert_eq!((open.open, open.overdue), (0, 0));
}

#[tokio::test]
async fn the_loop_goes_on_after_an_error() {
    let (stage, mut client) = Stage::set().await;
    start(&mut client, "a", Duration::ZERO).await;
    let (rounds, errors, fired) = (Cell::new(0), Cell::new(0), Notify::new());
    let round = || async {
        let number = rounds.replace(rounds.get() + 1);
        let mut client = stage.connect().await;
        if number == 0 {
            client.execute("ALTER TABLE saga_timers RENAME TO elsewhere", &[]).await?;
        } else {
            let back = "ALTER TABLE IF EXISTS elsewhere RENAME TO saga_timers";
            client.execute(back, &[]).await?;
        }
        let found = saga::fire_due::<Delivery>(&mut client, HOUR).await?;
        if found.deadlines == 1 {
            fired.notify_one();
        }
        Ok(found)
    };
    let on_error = |error: &SagaError| {
        assert!(matches!(error, SagaError::Missing(_)), "{error:?}");
        errors.set(errors.get() + 1);
    };
    tokio::select! {
        () = saga::run_deadlines(Duration::from_millis(20), round, on_error) => {}
        () = fired.notified() => {}
    }
    assert_eq!(errors.get(), 1);
}

#[tokio::test]
async fn an_action_is_planned_by_doing_it_and_rolling_back() {
    let (_stage, mut client) = client().await;
    start(&mut client, "a", HOUR).await;
    for (execute, events) in [(false, 0), (false, 0), (true, 1), (true, 2)] {
        let step = saga::act::<Delivery>(&mut client, "a", OperatorAction::Advance, execute);
        let step = step.await.unwrap();
        assert_eq!((step.to, step.emitted), ("GIVEN_UP", vec!["DeliveryGivenUp"]));
        assert_eq!(step.changed, events < 2, "the second time it is a repeat");
        assert_eq!(count(&client, "SELECT count(*) FROM outbox").await, events);
    }
    let unknown = saga::act::<Delivery>(&mut client, "b", OperatorAction::Compensate, true).await;
    assert!(matches!(unknown, Err(SagaError::Unknown { .. })), "{unknown:?}");
    let listed = saga::list::<Delivery>(&client, false, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].status.as_str()), (1, "GIVEN_UP"));
    assert_eq!(saga::list::<Delivery>(&client, true, 10).await.unwrap(), []);
    let details = saga::show::<Delivery>(&client, "a").await.unwrap().unwrap();
    assert_eq!((details.timers[0].name.as_str(), details.history.len()), ("ask", 2));
    assert_eq!(saga::show::<Delivery>(&client, "b").await.unwrap(), None);
}

#[tokio::test]
async fn the_trace_of_the_message_goes_on_in_what_the_saga_emits() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let (_stage, mut client) = client().await;
    start(&mut client, "a", HOUR).await;
    let transaction = client.transaction().await.unwrap();
    let cause = Cause::from(Uuid::nil()).with_traceparent(Some(TRACE.parse().unwrap()));
    saga::advance::<Delivery>(&transaction, "a", &Fact::AskDue, cause).await.unwrap();
    transaction.commit().await.unwrap();
    let sql = format!("SELECT count(*) FROM outbox WHERE traceparent = '{TRACE}'");
    assert_eq!(count(&client, &sql).await, 1);
}

/// Its own statement fails.
#[derive(Debug, Serialize, Deserialize)]
struct Misspelt(bool);

impl Saga for Misspelt {
    const KIND: &'static str = "misspelt";
    type Event = ();

    fn apply(&mut self, (): &()) -> Vec<Emitted> {
        self.0 = true;
        vec![]
    }

    fn name((): &()) -> &'static str {
        "Happened"
    }

    fn status(&self) -> &'static str {
        if self.0 { "DONE" } else { "OPEN" }
    }

    fn has_ended(&self) -> bool {
        self.0
    }

    fn deadline_passed() {}

    async fn status_changed(
        transaction: &Transaction<'_>,
        _: &str,
        _: &'static str,
    ) -> Result<(), SagaError> {
        Ok(transaction.batch_execute("INSERT INTO my_tabel VALUES (1)").await?)
    }
}

#[tokio::test]
async fn a_failure_of_the_applications_own_statement_is_not_blamed_on_the_sagas_tables() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, "a", &Misspelt(false), &[], HOUR).await.unwrap();
    let error =
        saga::advance::<Misspelt>(&transaction, "a", &(), Cause::default()).await.unwrap_err();
    assert!(matches!(error, SagaError::Application(_)), "{error:?}");
    assert_eq!(error.hint(), None);
}

/// Ends, and goes on with the next event.
#[derive(Debug, Serialize, Deserialize)]
struct Restless(u32);

impl Saga for Restless {
    const KIND: &'static str = "restless";
    type Event = ();

    fn apply(&mut self, (): &()) -> Vec<Emitted> {
        self.0 += 1;
        vec![]
    }

    fn name((): &()) -> &'static str {
        "Happened"
    }

    fn status(&self) -> &'static str {
        if self.has_ended() { "DONE" } else { "OPEN" }
    }

    fn has_ended(&self) -> bool {
        self.0 == 1
    }

    fn deadline_passed() {}
}

/// It would have no deadline, and be in no list of open ones.
#[tokio::test]
async fn a_saga_that_has_ended_is_not_reopened() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, "a", &Restless(0), &[], HOUR).await.unwrap();
    let ended = saga::advance::<Restless>(&transaction, "a", &(), Cause::default()).await.unwrap();
    assert!(ended.ended);
    let error =
        saga::advance::<Restless>(&transaction, "a", &(), Cause::default()).await.unwrap_err();
    assert!(matches!(error, SagaError::Reopened { event: "Happened", .. }), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("Saga::has_ended")));
    let kept = saga::view::<Restless>(&transaction, "a").await.unwrap().unwrap();
    assert_eq!((kept.status.as_str(), kept.state.0), ("DONE", 1));
}

#[tokio::test]
async fn sagas_that_ended_long_ago_are_deleted_in_bounded_transactions() {
    let (_stage, mut client) = client().await;
    for id in ["old-1", "old-2", "old-3", "young", "open"] {
        start(&mut client, id, HOUR).await;
        apply(&mut client, id, Fact::DeadlinePassed).await;
        if id != "open" {
            apply(&mut client, id, Fact::Arrived).await;
        }
    }
    let aged = "UPDATE sagas SET ended_at = now() - interval '2 hours' WHERE id LIKE 'old%'";
    client.execute(aged, &[]).await.unwrap();
    let mut deleted = Vec::new();
    for _ in 0..3 {
        let cleaned = saga::clean_ended::<Delivery>(&client, HOUR, 2).await.unwrap();
        deleted.push((cleaned.sagas, cleaned.history));
    }
    assert_eq!(deleted, [(2, 6), (1, 3), (0, 0)]);
    for table in ["sagas", "saga_history", "outbox_sequences"] {
        let column = if table == "outbox_sequences" { "aggregate_id" } else { "id" };
        let left = format!("SELECT count(DISTINCT {column}) FROM {table}");
        assert_eq!(count(&client, &left).await, 2, "{table}");
        let old = format!("SELECT count(*) FROM {table} WHERE {column} LIKE 'old%'");
        assert_eq!(count(&client, &old).await, 0, "{table}");
    }
}
