//! What goes wrong in the versions that articles publish, and what this one does in the same place:
//! `docs/patterns/evidence-services.md` names each test.

use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Claim, claim};
use postrider::sandbox::redis::Redis;
use redis::aio::MultiplexedConnection;

use crate::idempotency::fixture::{
    Database, command, guarded, lease, only_key, replayed, request, request_with_body, response,
    session, settings,
};
use support::setnx::{self, SetNxEx, Setnx, SetnxBegin};
use support::task::let_pass;

async fn naive(redis: &Redis) -> Setnx {
    Setnx { connection: session(redis).await }
}

/// Between the two commands of one request the other has its first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_then_set_lets_two_requests_work_at_once() {
    let (redis, guard) = guarded(&settings());
    let (mut one, mut other) = (session(&redis).await, session(&redis).await);
    let set = async |session: &mut MultiplexedConnection| -> String {
        redis::cmd("SET").arg(setnx::lock("k")).arg(1).query_async(session).await.unwrap()
    };
    let is_free = async |session: &mut MultiplexedConnection| {
        let lock: Option<Vec<u8>> =
            redis::cmd("GET").arg(setnx::lock("k")).query_async(session).await.unwrap();
        lock.is_none()
    };
    assert!(is_free(&mut one).await && is_free(&mut other).await, "both go on");
    assert_eq!([set(&mut one).await, set(&mut other).await], ["OK", "OK"], "and both have it");

    command(&redis, "FLUSHALL").await;
    let (one, other) = (request("k"), request("k"));
    let both = tokio::join!(guard.begin(&one), guard.begin(&other));
    assert!(
        matches!(
            both,
            (BeginOutcome::New(_), BeginOutcome::Pending { .. })
                | (BeginOutcome::Pending { .. }, BeginOutcome::New(_))
        ),
        "question and answer are one command: {both:?}"
    );
}

/// NX does not help where result and lock are two keys: the first completes between the two commands of
/// the second, and the lock that it deleted is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_then_set_nx_repeats_a_request_that_completes_in_between() {
    let (redis, guard) = guarded(&settings());
    let connect = async || SetNxEx { connection: session(&redis).await };
    let (mut first, mut second) = (connect().await, connect().await);
    assert_eq!(first.begin("k").await.unwrap(), SetnxBegin::New);
    assert_eq!(setnx::stored(&mut second.connection, "k").await.unwrap(), None);
    first.complete("k", b"done").await.unwrap();
    assert!(second.lock("k").await.unwrap(), "the second works, too");

    command(&redis, "FLUSHALL").await;
    let owner = lease(guard.begin(&request("k")).await);
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    guard.complete(&owner, &response("done")).await;
    assert_eq!(replayed(guard.begin(&request("k")).await), response("done"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setnx_and_a_crash_before_expire_lock_a_key_for_ever() {
    let (redis, guard) = guarded(&settings());
    let mut naive = naive(&redis).await;
    assert!(naive.lock("k").await.unwrap());
    // The process dies here.
    let ttl = async |key: &[u8]| -> i64 {
        redis::cmd("PTTL").arg(key).query_async(&mut session(&redis).await).await.unwrap()
    };
    assert_eq!(ttl(setnx::lock("k").as_bytes()).await, -1, "no end");
    assert_eq!(naive.begin("k").await.unwrap(), SetnxBegin::Locked);

    command(&redis, "FLUSHALL").await;
    let _owner = lease(guard.begin(&request("k")).await);
    assert!(ttl(&only_key(&redis).await).await > 0, "value and end are one command");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_a_token_is_released_by_a_former_owner() {
    let redis = Redis::start().unwrap();
    let (mut zombie, mut successor) = (naive(&redis).await, naive(&redis).await);
    assert_eq!(zombie.begin("k").await.unwrap(), SetnxBegin::New);
    command(&redis, &format!("DEL {}", setnx::lock("k"))).await; // The lock expires.
    assert_eq!(successor.begin("k").await.unwrap(), SetnxBegin::New);
    zombie.unlock("k").await.unwrap();
    assert_eq!(naive(&redis).await.begin("k").await.unwrap(), SetnxBegin::New, "a third works too");

    successor.complete("k", b"successor").await.unwrap();
    zombie.complete("k", b"zombie").await.unwrap();
    assert_eq!(
        naive(&redis).await.begin("k").await.unwrap(),
        SetnxBegin::Stored(b"zombie".to_vec())
    );
    // The guard in the same place: `zombies`.
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_fingerprint_a_request_gets_the_response_of_another() {
    let (redis, guard) = guarded(&settings());
    let mut naive = naive(&redis).await;
    let (cheap, expensive) =
        (request_with_body("k", "{\"cents\":1}"), request_with_body("k", "{\"cents\":100000}"));
    naive.begin("k").await.unwrap();
    naive.complete("k", b"charged 1 cent").await.unwrap();
    let for_the_expensive_one = naive.begin("k").await.unwrap();
    assert_eq!(
        for_the_expensive_one,
        SetnxBegin::Stored(b"charged 1 cent".to_vec()),
        "and never charged"
    );

    let owner = lease(guard.begin(&cheap).await);
    guard.complete(&owner, &response("charged 1 cent")).await;
    assert!(matches!(guard.begin(&expensive).await, BeginOutcome::Mismatch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_alone_a_flush_doubles_the_effect() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let client = database.client().await;
    let mut naive = naive(&redis).await;
    for _ in 0..2 {
        assert_eq!(naive.begin("k").await.unwrap(), SetnxBegin::New);
        client.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
        naive.complete("k", b"done").await.unwrap();
        command(&redis, "FLUSHALL").await;
    }
    assert_eq!(database.effects().await, 2, "two orders for one request");

    client.batch_execute("TRUNCATE effects").await.unwrap();
    for expected in [Claim::Won, Claim::Done(response("done"))] {
        let _owner = lease(guard.begin(&request("k")).await);
        assert_eq!(execute(&database).await, expected);
        command(&redis, "FLUSHALL").await;
    }
    assert_eq!(database.effects().await, 1);
}

/// The second request, which got a success, does not retry when the first has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_acknowledged_while_the_first_works_is_lost_with_it() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut naive = naive(&redis).await;
    assert_eq!(naive.begin("k").await.unwrap(), SetnxBegin::New);
    let acknowledged = naive.begin("k").await.unwrap() == SetnxBegin::Locked;
    naive.unlock("k").await.unwrap(); // The first fails.
    assert!(acknowledged && database.effects().await == 0, "the client goes away with nothing");

    let owner = lease(guard.begin(&request("k")).await);
    assert!(
        matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }),
        "retry later"
    );
    guard.release(&owner).await;
    let _owner = lease(guard.begin(&request("k")).await);
    assert_eq!(execute(&database).await, Claim::Won);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_live_shorter_than_the_work_lets_two_work() {
    let ttl = Duration::from_secs(4);
    let (_redis, guard) = guarded(&settings().pending_ttl(ttl));
    let _owner = lease(guard.begin(&request("not-renewed")).await);
    let_pass(ttl + ttl / 10, "the lease expires").await;
    let _owner = lease(guard.begin(&request("not-renewed")).await);

    let owner = lease(guard.begin(&request("renewed")).await);
    guard.run_renewing(&owner, let_pass(ttl + ttl / 10, "the same, renewed")).await;
    assert!(matches!(guard.begin(&request("renewed")).await, BeginOutcome::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completing_before_the_commit_replays_what_never_happened() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let owner = lease(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, &request("k"), &response("done")).await.unwrap();
    assert_eq!(claimed, Claim::Won);
    transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
    guard.complete(&owner, &response("done")).await;
    // Here the process dies, or the COMMIT fails.
    transaction.rollback().await.unwrap();
    assert_eq!(replayed(guard.begin(&request("k")).await), response("done"));
    assert_eq!(database.effects().await, 0, "the client is told of an order that does not exist");
    // The shop in the same place: `services::orders`.
}

/// The effect of request `k`, as the guard's users write it.
async fn execute(database: &Database) -> Claim {
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, &request("k"), &response("done")).await.unwrap();
    if claimed == Claim::Won {
        transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    claimed
}
