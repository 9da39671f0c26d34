//! Sagas that an earlier version of the program has stored, and sagas that one of them fails among.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::time::Duration;

use postrider::saga::{self, Cause, Emitted, Saga, SagaError, Timer};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Transaction};

use crate::database::{client, count};

const HOUR: Duration = Duration::from_hours(1);

/// Counts; version `V` of it has ended from 2 on, or, where `V` is 1, never.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counter<const V: u8> {
    count: u32,
}

impl<const V: u8> Saga for Counter<V> {
    const KIND: &'static str = "counter";
    type Event = u32;

    fn apply(&mut self, more: &u32) -> Vec<Emitted> {
        if !self.has_ended() {
            self.count += more;
        }
        vec![]
    }

    fn name(_: &u32) -> &'static str {
        "Counted"
    }

    fn status(&self) -> &'static str {
        if self.has_ended() { "ENDED" } else { "OPEN" }
    }

    fn has_ended(&self) -> bool {
        V > 1 && self.count >= 2
    }

    fn deadline_passed() -> u32 {
        1
    }

    /// The second version has one more.
    fn timers(&self) -> Vec<Timer> {
        let all = ["first", "second"].map(|name| Timer { name, after: HOUR });
        all.into_iter().take(V.into()).collect()
    }

    async fn status_changed(
        transaction: &Transaction<'_>,
        id: &str,
        _: &'static str,
    ) -> Result<(), SagaError> {
        Ok(transaction.execute("INSERT INTO checked VALUES ($1)", &[&id]).await.map(drop)?)
    }
}

async fn start<S: Saga>(client: &mut Client, id: &str, state: &S, timeout: Duration) {
    let transaction = client.transaction().await.unwrap();
    saga::start(&transaction, id, state, &[], timeout).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn advance<S: Saga>(client: &mut Client, event: &S::Event) -> Result<(), SagaError> {
    let transaction = client.transaction().await.unwrap();
    saga::advance::<S>(&transaction, "a", event, Cause::default()).await?;
    transaction.commit().await.unwrap();
    Ok(())
}

/// Its event succeeds, and its COMMIT does not.
#[tokio::test]
async fn a_saga_whose_commit_fails_does_not_block_the_others() {
    let (_stage, mut client) = client().await;
    client
        .batch_execute(
            "CREATE TABLE allowed (id text PRIMARY KEY);
             INSERT INTO allowed SELECT 'good-' || n FROM generate_series(1, 4) AS n;
             CREATE TABLE checked (id text REFERENCES allowed DEFERRABLE INITIALLY DEFERRED)",
        )
        .await
        .unwrap();
    for id in ["good-1", "good-2", "bad", "good-3", "good-4"] {
        start(&mut client, id, &Counter::<2> { count: 1 }, Duration::ZERO).await;
    }
    saga::fire_due::<Counter<2>>(&mut client, HOUR).await.unwrap_err();
    assert_eq!(count(&client, "SELECT count(*) FROM checked").await, 4);
}

/// Without an end in its row it would be counted as open, and its deadline come again, for ever.
#[tokio::test]
async fn a_saga_that_has_ended_by_its_state_has_ended_in_its_row() {
    let (_stage, mut client) = client().await;
    client.batch_execute("CREATE TABLE checked (id text)").await.unwrap();
    start(&mut client, "b", &Counter::<2> { count: 2 }, HOUR).await;
    assert_eq!(saga::count_open::<Counter<2>>(&client).await.unwrap().open, 0);

    start(&mut client, "a", &Counter::<1> { count: 2 }, Duration::ZERO).await;
    assert_eq!(saga::fire_due::<Counter<2>>(&mut client, HOUR).await.unwrap().deadlines, 1);
    assert_eq!(saga::count_open::<Counter<2>>(&client).await.unwrap().open, 0);
    let ended = "SELECT count(*) FROM sagas WHERE ended_at IS NOT NULL AND status = 'ENDED'";
    assert_eq!(count(&client, ended).await, 2);
    assert_eq!(count(&client, "SELECT count(*) FROM saga_timers").await, 0);
}

/// It has no deadline any more.
#[tokio::test]
async fn a_saga_that_an_earlier_version_ended_is_not_reopened() {
    let (_stage, mut client) = client().await;
    client.batch_execute("CREATE TABLE checked (id text)").await.unwrap();
    start(&mut client, "a", &Counter::<2> { count: 1 }, HOUR).await;
    advance::<Counter<2>>(&mut client, &1).await.unwrap();
    let error = advance::<Counter<1>>(&mut client, &1).await.unwrap_err();
    assert!(matches!(error, SagaError::Reopened { .. }), "{error:?}");
}

#[tokio::test]
async fn a_timer_that_a_new_version_adds_is_set_by_the_next_event() {
    let (_stage, mut client) = client().await;
    start(&mut client, "a", &Counter::<1> { count: 0 }, HOUR).await;
    let timers = "SELECT count(*) FROM saga_timers";
    assert_eq!(count(&client, timers).await, 1);
    advance::<Counter<2>>(&mut client, &1).await.unwrap();
    assert_eq!(count(&client, timers).await, 2);
}

/// As an earlier version of [`Counter`] that does not know what it counts.
macro_rules! earlier {
    ($name:ident $(, $attribute:meta)?) => {
        #[derive(Debug, Default, Serialize, Deserialize)]
        $(#[$attribute])?
        struct $name {
            seen: Option<bool>,
        }

        impl Saga for $name {
            const KIND: &'static str = "counter";
            type Event = ();

            fn apply(&mut self, (): &()) -> Vec<Emitted> {
                self.seen = Some(true);
                vec![]
            }

            fn name((): &()) -> &'static str {
                "Seen"
            }

            fn status(&self) -> &'static str {
                "OPEN"
            }

            fn has_ended(&self) -> bool {
                false
            }

            fn deadline_passed() {}
        }
    };
}

earlier!(Lenient);
earlier!(Strict, serde(deny_unknown_fields));

#[tokio::test]
async fn a_version_that_knows_fewer_fields_drops_them_unless_it_denies_them() {
    let (_stage, mut client) = client().await;
    start(&mut client, "a", &Counter::<1> { count: 1 }, HOUR).await;
    let error = advance::<Strict>(&mut client, &()).await.unwrap_err();
    assert!(matches!(error, SagaError::State { .. }), "{error:?}");
    let fields = "SELECT count(*) FROM sagas WHERE state ? 'count'";
    assert_eq!(count(&client, fields).await, 1);
    advance::<Lenient>(&mut client, &()).await.unwrap();
    assert_eq!(count(&client, fields).await, 0);
}
