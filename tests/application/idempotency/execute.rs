//! The whole flow in one call: one effect, one response, and no key that stays locked by a failure.

use std::sync::Arc;
use std::time::Duration;

use postrider::idempotency::{
    Attempt, Claim, Guard, IdempotencyError, Outcome, Request, StoredResponse, claim, find_claim,
};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Transaction};

use crate::idempotency::dropped::lasting;
use crate::idempotency::fixture::{
    Database, command, guarded, request, request_with_body, response, settings,
};

const REQUESTS: usize = 200;
const SESSIONS: usize = 8;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_mins(1);

/// Sessions with a database, shared like those of a pool.
pub(crate) struct Pool(Vec<Mutex<Client>>);

impl Pool {
    pub(crate) async fn of(database: &Database, sessions: usize) -> Arc<Self> {
        let mut clients = Vec::new();
        for _ in 0..sessions {
            clients.push(Mutex::new(database.client().await));
        }
        Arc::new(Self(clients))
    }

    pub(crate) fn session(&self, number: usize) -> &Mutex<Client> {
        &self.0[number % self.0.len()]
    }
}

/// What can go wrong in a service.
#[derive(Debug)]
pub(crate) enum Failed {
    Guard(IdempotencyError),
    Effect,
}

impl From<IdempotencyError> for Failed {
    fn from(error: IdempotencyError) -> Self {
        Self::Guard(error)
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Guard(error.into())
    }
}

/// Records the effect of a key.
pub(crate) async fn record(transaction: &Transaction<'_>, request: &Request) -> Result<(), Failed> {
    let insert = "INSERT INTO effects VALUES ($1)";
    transaction.execute(insert, &[&request.key().as_str()]).await?;
    Ok(())
}

/// Its response says who made it.
async fn place(guard: &Guard, pool: &Arc<Pool>, number: usize, request: &Request) -> Outcome {
    let pool = Arc::clone(pool);
    let work = |attempt: Attempt| async move {
        let mut client = pool.session(number).lock().await;
        let effect = async |transaction: &Transaction<'_>| {
            record(transaction, attempt.request().unwrap()).await?;
            Ok::<_, Failed>(response(&format!("{{\"by\":{number}}}")))
        };
        attempt.run(&mut client, effect).await
    };
    guard.execute(request, work).await.unwrap()
}

async fn storm(guard: &Guard, pool: &Arc<Pool>) -> Vec<Outcome> {
    let mut tasks = JoinSet::new();
    for number in 0..REQUESTS {
        let (guard, pool) = (guard.clone(), Arc::clone(pool));
        tasks.spawn(async move { place(&guard, &pool, number, &request("storm")).await });
    }
    tasks.join_all().await
}

/// The response of the one that was executed, which all others have that have one; and how many were
/// told to wait.
fn judged(outcomes: &[Outcome]) -> (StoredResponse, usize) {
    let executed = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Executed(response) => Some(response.clone()),
        _ => None,
    });
    let [response] = executed.collect::<Vec<_>>().try_into().unwrap();
    let replay = Outcome::Replayed(response.clone());
    let is_replay = |outcome: &&Outcome| **outcome == replay;
    let replays = outcomes.iter().filter(is_replay).count();
    let pending = |outcome: &&Outcome| matches!(outcome, Outcome::Pending { .. });
    let waiting = outcomes.iter().filter(pending).count();
    assert_eq!(1 + replays + waiting, outcomes.len(), "{outcomes:?}");
    (response, waiting)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_that_do_not_wait_one_is_executed_and_none_has_another_response() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let pool = Pool::of(&database, SESSIONS).await;
    let (response, _) = judged(&storm(&guard, &pool).await);
    assert_eq!(database.effects().await, 1);
    let again = place(&guard, &pool, 0, &request("storm")).await;
    assert_eq!(again, Outcome::Replayed(response));
}

/// In two processes, which a second guard stands for: there those that wait ask Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_that_wait_all_get_the_response_of_the_one_that_is_executed() {
    let (redis, guard) = guarded(&settings());
    let other = Guard::connect(&redis.url(), &settings()).unwrap();
    let [one, two] = [guard, other].map(|guard| guard.with_waiting(PATIENCE, REQUESTS));
    let database = Database::migrated().await;
    let pool = Pool::of(&database, SESSIONS).await;
    let (mut outcomes, others) = tokio::join!(storm(&one, &pool), storm(&two, &pool));
    outcomes.extend(others);
    assert_eq!(judged(&outcomes).1, 0, "none is told to retry");
    assert_eq!(database.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_requests_that_wait_all_get_the_response_while_redis_is_down() {
    let (mut redis, guard) = guarded(&settings());
    redis.kill().unwrap();
    let guard = guard.with_waiting(PATIENCE, REQUESTS);
    let database = Database::migrated().await;
    let pool = Pool::of(&database, SESSIONS).await;
    assert_eq!(judged(&storm(&guard, &pool).await).1, 0, "none is told to retry");
    assert_eq!(database.effects().await, 1);
}

/// The first of them looks the response up in Postgres; the others wait for that, and not for an effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_200_repeats_get_the_response_while_redis_is_down() {
    let (mut redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let pool = Pool::of(&database, SESSIONS).await;
    let Outcome::Executed(response) = place(&guard, &pool, 0, &request("storm")).await else {
        panic!("it is the first");
    };
    redis.kill().unwrap();
    let other = Guard::connect(&redis.url(), &settings()).unwrap();
    let (one, two) = tokio::join!(storm(&guard, &pool), storm(&other, &pool));
    let replay = Outcome::Replayed(response);
    for outcome in one.iter().chain(&two) {
        assert_eq!(*outcome, replay);
    }
    assert_eq!(database.effects().await, 1);
}

/// How the work of a request fails.
#[derive(Debug, Clone, Copy)]
enum Failure {
    /// Before it has a transaction.
    Session,
    Effect,
    /// A statement fails, and the effect goes on as if nothing had happened.
    Ignored,
    Panic,
    /// By a constraint that is checked at COMMIT.
    Commit,
}

/// Its next attempt follows at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_failure_before_commit_the_next_attempt_is_executed_at_once() {
    let (_redis, guard) = guarded(&lasting());
    let database = Database::migrated().await;
    let deferred = "CREATE TABLE parents (id int PRIMARY KEY);
                    CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)";
    database.client().await.batch_execute(deferred).await.unwrap();
    let pool = Pool::of(&database, SESSIONS).await;
    let all =
        [Failure::Session, Failure::Effect, Failure::Ignored, Failure::Panic, Failure::Commit];
    for round in 0..20 {
        for failure in all {
            let request = request(&format!("{failure:?}-{round}"));
            let failed = tokio::spawn({
                let (guard, pool, request) = (guard.clone(), Arc::clone(&pool), request.clone());
                async move { fail(&guard, pool, &request, failure).await }
            });
            assert!(failed.await.map_or(true, |outcome| outcome.is_err()), "{failure:?}");
            let next = place(&guard, &pool, round, &request).await;
            assert!(matches!(next, Outcome::Executed(_)), "{failure:?}: {next:?}");
        }
    }
    assert_eq!(database.effects().await, 100);
}

async fn fail(
    guard: &Guard,
    pool: Arc<Pool>,
    request: &Request,
    failure: Failure,
) -> Result<Outcome, Failed> {
    let work = |attempt: Attempt| async move {
        let mut client = pool.session(0).lock().await;
        if matches!(failure, Failure::Session) {
            return Err(Failed::Effect);
        }
        let effect = async |transaction: &Transaction<'_>| {
            record(transaction, attempt.request().unwrap()).await?;
            match failure {
                Failure::Session | Failure::Effect => return Err(Failed::Effect),
                Failure::Ignored => assert!(transaction.execute("SELECT 1/0", &[]).await.is_err()),
                Failure::Panic => panic!("in the effect"),
                Failure::Commit => {
                    transaction.execute("INSERT INTO children VALUES (1)", &[]).await?;
                }
            }
            Ok(response("never stored"))
        };
        attempt.run(&mut client, effect).await
    };
    guard.execute(request, work).await
}

/// The server ends the session at COMMIT: whether it has committed, the guard cannot know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_decides_the_attempt_after_an_unknown_commit() {
    let (redis, guard) = guarded(&lasting());
    let database = Database::migrated().await;
    let deferred = "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
                    CREATE CONSTRAINT TRIGGER die AFTER INSERT ON effects
                        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()";
    database.client().await.batch_execute(deferred).await.unwrap();
    let pool = Pool::of(&database, 1).await;
    let work = |attempt: Attempt| async move {
        let mut client = pool.session(0).lock().await;
        let effect = async |transaction: &Transaction<'_>| {
            record(transaction, attempt.request().unwrap()).await?;
            Ok::<_, Failed>(response("{}"))
        };
        attempt.run(&mut client, effect).await
    };
    let failed = guard.execute(&request("k"), work).await.unwrap_err();
    assert!(matches!(failed, Failed::Guard(IdempotencyError::CommitUnknown(_))), "{failed:?}");
    assert_eq!(command(&redis, "DBSIZE").await, redis::Value::Int(0), "the key is free");
    database.client().await.batch_execute("DROP TRIGGER die ON effects").await.unwrap();
    let pool = Pool::of(&database, 1).await;
    let next = place(&guard, &pool, 0, &request("k")).await;
    assert!(matches!(next, Outcome::Executed(_)), "it was rolled back: {next:?}");
    assert_eq!(database.effects().await, 1);
}

/// The work goes on, and those that wait get its response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_caller_is_dropped_goes_on_and_the_next_attempt_has_its_response() {
    let (_redis, guard) = guarded(&lasting());
    let guard = guard.with_waiting(PATIENCE, 1);
    let database = Database::migrated().await;
    let pool = Pool::of(&database, SESSIONS).await;
    let (go_on, told) = oneshot::channel::<()>();
    let (begun, has_begun) = oneshot::channel::<()>();
    let caller = tokio::spawn({
        let (guard, pool) = (guard.clone(), Arc::clone(&pool));
        let work = |attempt: Attempt| async move {
            let mut client = pool.session(0).lock().await;
            let effect = async |transaction: &Transaction<'_>| {
                record(transaction, attempt.request().unwrap()).await?;
                begun.send(()).unwrap();
                told.await.unwrap();
                Ok::<_, Failed>(response("{\"by\":\"the first\"}"))
            };
            attempt.run(&mut client, effect).await
        };
        async move { guard.execute(&request("k"), work).await.unwrap() }
    });
    has_begun.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    // There is one place to wait.
    let mut next = JoinSet::new();
    for number in 1..=2 {
        let (guard, pool) = (guard.clone(), Arc::clone(&pool));
        next.spawn(async move { place(&guard, &pool, number, &request("k")).await });
    }
    let turned_away = next.join_next().await.unwrap().unwrap();
    assert!(matches!(turned_away, Outcome::Pending { .. }), "{turned_away:?}");
    go_on.send(()).unwrap();
    let expected = Outcome::Replayed(response("{\"by\":\"the first\"}"));
    assert_eq!(next.join_next().await.unwrap().unwrap(), expected);
    assert_eq!(database.effects().await, 1);
}

/// By whoever claims it, with the guard's parts or another program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_claimed_elsewhere_is_replayed_and_another_request_is_a_mismatch() {
    let guard = Guard::without_redis();
    let database = Database::migrated().await;
    let pool = Pool::of(&database, 1).await;
    {
        let mut client = pool.session(0).lock().await;
        let transaction = client.transaction().await.unwrap();
        let claimed = claim(&transaction, &request("k"), &response("1")).await.unwrap();
        assert_eq!(claimed, Claim::Won);
        transaction.commit().await.unwrap();
    }
    let again = place(&guard, &pool, 0, &request("k")).await;
    assert_eq!(again, Outcome::Replayed(response("1")));
    let other = place(&guard, &pool, 0, &request_with_body("k", "{\"item\":2}")).await;
    assert_eq!(other, Outcome::Mismatch);
    let former = *request("k").fingerprint();
    let changed = request_with_body("k", "{\"item\":1.0}").with_former_fingerprint(former);
    assert_eq!(place(&guard, &pool, 0, &changed).await, Outcome::Replayed(response("1")));
    assert_eq!(database.effects().await, 0);
}

/// The row is not visible before it has its response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_its_response_is_never_seen() {
    let guard = Guard::without_redis();
    let database = Database::migrated().await;
    let (mut client, witness) = (database.client().await, database.client().await);
    let work = |attempt: Attempt| async move {
        let effect = async |_: &Transaction<'_>| {
            assert_eq!(find_claim(&witness, attempt.request().unwrap()).await?, None);
            Ok::<_, IdempotencyError>(response("late"))
        };
        attempt.run(&mut client, effect).await
    };
    let outcome = guard.execute(&request("k"), work).await.unwrap();
    assert_eq!(outcome, Outcome::Executed(response("late")));
    let client = database.client().await;
    let row = client.query_one("SELECT status, body FROM idempotency_keys", &[]).await.unwrap();
    assert_eq!((row.get::<_, i16>(0), row.get::<_, &[u8]>(1)), (201, b"late".as_slice()));
}

/// Its effect would be taken for the first one, and skipped without a word.
#[tokio::test]
async fn an_attempt_that_has_its_response_is_not_run_again() {
    let database = Database::migrated().await;
    let guard = Guard::without_redis();
    let mut client = database.client().await;
    let mut other = database.client().await;
    let request = request("two-effects");
    let work = async move |attempt: Attempt| {
        let effect = async |transaction: &Transaction<'_>| {
            record(transaction, attempt.request().unwrap()).await?;
            Ok::<_, Failed>(response("{}"))
        };
        let failed = async |_: &Transaction<'_>| Err::<StoredResponse, _>(Failed::Effect);
        assert!(matches!(attempt.run(&mut client, failed).await, Err(Failed::Effect)));
        let first = attempt.run(&mut client, effect).await;
        assert!(matches!(first, Ok(Outcome::Executed(_))), "an error may be retried");
        attempt.run(&mut client, effect).await
    };
    let again = guard.execute(&request, work).await;
    let Err(Failed::Guard(error @ IdempotencyError::RunAgain)) = again else {
        panic!("the second effect was skipped in silence: {again:?}");
    };
    assert!(error.hint().is_some_and(|hint| hint.contains("one `Attempt::run`")));
    let retried = guard.execute(&request, async move |attempt: Attempt| {
        let effect = async |_: &Transaction<'_>| Err::<StoredResponse, _>(Failed::Effect);
        attempt.run(&mut other, effect).await
    });
    assert_eq!(retried.await.unwrap(), Outcome::Replayed(response("{}")));
}

/// The second would wait for the first one's claim, and be taken for its repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_not_run_twice_at_once() {
    let database = Database::migrated().await;
    let pool = Pool::of(&database, 2).await;
    let work = |attempt: Attempt| async move {
        let run = async |number: usize| {
            let mut client = pool.session(number).lock().await;
            let effect = async |transaction: &Transaction<'_>| {
                record(transaction, attempt.request().unwrap()).await?;
                Ok::<_, Failed>(response(&format!("{{\"by\":{number}}}")))
            };
            attempt.run(&mut client, effect).await
        };
        let (one, other) = tokio::join!(run(0), run(1));
        let error = other.unwrap_err();
        assert!(matches!(error, Failed::Guard(IdempotencyError::RunAgain)), "{error:?}");
        one
    };
    let outcome = Guard::without_redis().execute(&request("k"), work).await.unwrap();
    assert_eq!(outcome, Outcome::Executed(response("{\"by\":0}")));
    assert_eq!(database.effects().await, 1);
}
