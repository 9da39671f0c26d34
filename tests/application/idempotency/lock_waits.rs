//! How long a request waits for a claim that another session holds.

use std::time::Duration;

use postrider::idempotency::{Attempt, Claim, Guard, Outcome, claim};
use tokio::sync::oneshot;
use tokio_postgres::Transaction;

use crate::idempotency::execute::{Failed, record};
use crate::idempotency::fixture::{Database, request, response};

/// A trigger that says what bounds the waits of the INSERT.
const WITNESS: &str = "
    CREATE TABLE seen (lock_timeout text);
    CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen VALUES (current_setting('lock_timeout')); RETURN NEW; END $$;
    CREATE TRIGGER look BEFORE INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION look()";

async fn shown(client: &impl tokio_postgres::GenericClient) -> String {
    client.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claim_waits_for_the_shorter_limit_and_the_effect_for_the_sessions() {
    let database = Database::migrated().await;
    let witness = database.client().await;
    witness.batch_execute(WITNESS).await.unwrap();
    let default = Guard::without_redis();
    for (guard, session, claim) in [
        (default.clone(), "0", "5s"),
        (default.clone(), "1ms", "1ms"),
        (default.clone(), "4999ms", "4999ms"),
        (default.clone(), "1h", "5s"),
        (default.clone().with_lock_timeout(Duration::from_millis(70)), "2s", "70ms"),
        (default.clone().with_lock_timeout(Duration::MAX), "7s", "7s"),
        (default.with_lock_timeout(Duration::ZERO), "8s", "8s"),
    ] {
        let mut client = database.client().await;
        client.batch_execute(&format!("SET lock_timeout = '{session}'")).await.unwrap();
        let key = request(session);
        let work = |attempt: Attempt| async move {
            let effect = async |transaction: &Transaction<'_>| {
                assert_eq!(shown(transaction).await, session, "in the effect");
                Ok::<_, Failed>(response("{}"))
            };
            let outcome = attempt.run(&mut client, effect).await;
            assert_eq!(shown(&client).await, session, "after it");
            outcome
        };
        let _outcome = guard.execute(&key, work).await.unwrap();
        let seen = "DELETE FROM seen RETURNING lock_timeout";
        let seen: String = witness.query_one(seen, &[]).await.unwrap().get(0);
        assert_eq!(seen, claim, "{session}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effects_transaction_ends_when_it_is_idle_too_long() {
    const SHOW: &str = "SHOW idle_in_transaction_session_timeout";
    let database = Database::migrated().await;
    let guard = Guard::without_redis();
    let waits_for_ever = guard.clone().with_lock_timeout(Duration::ZERO);
    for (guard, key, session, effect_has) in [
        (&guard, "none", "0", "30s"),
        (&waits_for_ever, "no limit of locks", "0", "30s"),
        (&guard, "shorter", "7s", "7s"),
        (&guard, "longer", "5min", "5min"),
    ] {
        let mut client = database.client().await;
        let set = format!("SET idle_in_transaction_session_timeout = '{session}'");
        client.batch_execute(&set).await.unwrap();
        let work = |attempt: Attempt| async move {
            let effect = async |transaction: &Transaction<'_>| {
                let shown: String = transaction.query_one(SHOW, &[]).await?.get(0);
                assert_eq!(shown, effect_has, "{key}");
                Ok::<_, Failed>(response("{}"))
            };
            let outcome = attempt.run(&mut client, effect).await;
            let shown: String = client.query_one(SHOW, &[]).await.unwrap().get(0);
            assert_eq!(shown, session, "after it");
            outcome
        };
        let outcome = guard.execute(&request(&key.replace(' ', "-")), work).await.unwrap();
        assert!(matches!(outcome, Outcome::Executed(_)), "{outcome:?}");
    }
}

/// Its session has a shorter limit than that of the guard, which this test would wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_owner_loses_its_key_when_its_transaction_is_idle() {
    let database = Database::migrated().await;
    let (mut frozen, mut other) = (database.client().await, database.client().await);
    let limit = "SET idle_in_transaction_session_timeout = '500ms'";
    frozen.batch_execute(limit).await.unwrap();
    let (thaw, thawed) = oneshot::channel::<()>();
    let (begun, has_begun) = oneshot::channel::<()>();
    let owner = tokio::spawn(async move {
        let work = |attempt: Attempt| async move {
            let effect = async |transaction: &Transaction<'_>| {
                record(transaction, attempt.request().unwrap()).await?;
                begun.send(()).unwrap();
                thawed.await.unwrap();
                record(transaction, attempt.request().unwrap()).await?;
                Ok::<_, Failed>(response("late"))
            };
            attempt.run(&mut frozen, effect).await
        };
        Guard::without_redis().execute(&request("k"), work).await
    });
    has_begun.await.unwrap();
    let guard = Guard::without_redis().with_lock_timeout(Duration::from_mins(1));
    let work = |attempt: Attempt| async move {
        let effect = async |transaction: &Transaction<'_>| {
            record(transaction, attempt.request().unwrap()).await?;
            Ok::<_, Failed>(response("{}"))
        };
        attempt.run(&mut other, effect).await
    };
    let successor = guard.execute(&request("k"), work).await.unwrap();
    assert_eq!(successor, Outcome::Executed(response("{}")));
    thaw.send(()).unwrap();
    let late = owner.await.unwrap();
    assert!(late.is_err(), "{late:?}");
    assert_eq!(database.effects().await, 1);
}

/// The session itself sets no limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_key_another_session_holds_is_told_to_retry_when_the_limit_is_over() {
    let database = Database::migrated().await;
    let (mut holder, mut client) = (database.client().await, database.client().await);
    let held = holder.transaction().await.unwrap();
    assert_eq!(claim(&held, &request("k"), &response("{}")).await.unwrap(), Claim::Won);
    let guard = Guard::without_redis().with_lock_timeout(Duration::from_millis(50));
    let work = |attempt: Attempt| async move {
        let effect = async |_: &Transaction<'_>| Ok::<_, Failed>(response("never stored"));
        attempt.run(&mut client, effect).await
    };
    let outcome = guard.execute(&request("k"), work).await.unwrap();
    assert!(matches!(outcome, Outcome::Pending { .. }), "{outcome:?}");
}

/// Which the page advises to set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_wait_the_statement_timeout_ends_is_told_to_retry() {
    let database = Database::migrated().await;
    let (mut holder, mut client) = (database.client().await, database.client().await);
    let held = holder.transaction().await.unwrap();
    assert_eq!(claim(&held, &request("k"), &response("{}")).await.unwrap(), Claim::Won);
    // No other statement takes as long, and the guard's own limit comes later.
    client.batch_execute("SET statement_timeout = '3s'").await.unwrap();
    let guard = Guard::without_redis().with_lock_timeout(Duration::from_mins(1));
    let work = |attempt: Attempt| async move {
        let effect = async |_: &Transaction<'_>| Ok::<_, Failed>(response("never stored"));
        attempt.run(&mut client, effect).await
    };
    let outcome = guard.execute(&request("k"), work).await.unwrap();
    assert!(matches!(outcome, Outcome::Pending { .. }), "{outcome:?}");
}
