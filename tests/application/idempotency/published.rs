//! What goes wrong in the versions that articles publish, and what this one does in the same place:
//! `docs/patterns/idempotency-key.md` names each test.

use std::time::Duration;

use postrider::idempotency::{Begun, Claim, Settings, claim};
use postrider::sandbox::redis::Redis;

use crate::idempotency::fixture::{
    Database, answer, asking, guarded, only_key, permit, replayed, request, session, settings, tell,
};
use support::setnx::{self, Setnx, Tried};
use support::task::let_pass;

async fn usual(redis: &Redis) -> Setnx {
    Setnx { connection: session(redis).await }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setnx_and_a_crash_before_expire_lock_a_key_for_ever() {
    let (redis, guard) = guarded(&settings());
    let mut usual = usual(&redis).await;
    assert!(usual.lock("k").await.unwrap());
    // Here the process dies.
    let ttl = async |key: &[u8]| -> i64 {
        redis::cmd("PTTL").arg(key).query_async(&mut session(&redis).await).await.unwrap()
    };
    assert_eq!(ttl(setnx::lock("k").as_bytes()).await, -1, "no end");
    assert_eq!(usual.begin("k").await.unwrap(), Tried::Locked);

    tell(&redis, "FLUSHALL").await;
    permit(guard.begin(&request("k")).await);
    assert!(ttl(&only_key(&redis).await).await > 0, "value and end are one command");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_a_token_is_opened_by_who_lost_it() {
    let redis = Redis::start().unwrap();
    let (mut zombie, mut successor) = (usual(&redis).await, usual(&redis).await);
    assert_eq!(zombie.begin("k").await.unwrap(), Tried::New);
    tell(&redis, &format!("DEL {}", setnx::lock("k"))).await; // Its time is over.
    assert_eq!(successor.begin("k").await.unwrap(), Tried::New);
    zombie.unlock("k").await.unwrap();
    assert_eq!(usual(&redis).await.begin("k").await.unwrap(), Tried::New, "a third works too");

    successor.complete("k", b"successor").await.unwrap();
    zombie.complete("k", b"zombie").await.unwrap();
    assert_eq!(usual(&redis).await.begin("k").await.unwrap(), Tried::Stored(b"zombie".to_vec()));
    // The guard in the same place: `zombies`.
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_fingerprint_a_request_gets_another_ones_answer() {
    let (redis, guard) = guarded(&settings());
    let mut usual = usual(&redis).await;
    let (cheap, dear) = (asking("k", "{\"cents\":1}"), asking("k", "{\"cents\":100000}"));
    usual.begin("k").await.unwrap();
    usual.complete("k", b"charged 1 cent").await.unwrap();
    let for_the_dear_one = usual.begin("k").await.unwrap();
    assert_eq!(for_the_dear_one, Tried::Stored(b"charged 1 cent".to_vec()), "and never charged");

    let owner = permit(guard.begin(&cheap).await);
    guard.complete(&owner, &answer("charged 1 cent")).await;
    assert!(matches!(guard.begin(&dear).await, Begun::Mismatch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_as_the_truth_a_flush_doubles_the_effect() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let client = database.client().await;
    let mut usual = usual(&redis).await;
    for _ in 0..2 {
        assert_eq!(usual.begin("k").await.unwrap(), Tried::New);
        client.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
        usual.complete("k", b"done").await.unwrap();
        tell(&redis, "FLUSHALL").await;
    }
    assert_eq!(database.effects().await, 2, "two orders for one request");

    client.batch_execute("TRUNCATE effects").await.unwrap();
    for expected in [Claim::Won, Claim::Done(answer("done"))] {
        permit(guard.begin(&request("k")).await);
        assert_eq!(execute(&database).await, expected);
        tell(&redis, "FLUSHALL").await;
    }
    assert_eq!(database.effects().await, 1);
}

/// Told that all is well, the second does not come again when the first has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_acknowledged_while_the_first_works_is_lost_with_it() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut usual = usual(&redis).await;
    assert_eq!(usual.begin("k").await.unwrap(), Tried::New);
    let acknowledged = usual.begin("k").await.unwrap() == Tried::Locked;
    usual.unlock("k").await.unwrap(); // The first fails.
    assert!(acknowledged && database.effects().await == 0, "the client goes away with nothing");

    let owner = permit(guard.begin(&request("k")).await);
    assert!(matches!(guard.begin(&request("k")).await, Begun::Pending { .. }), "come again");
    guard.release(&owner).await;
    permit(guard.begin(&request("k")).await);
    assert_eq!(execute(&database).await, Claim::Won);
    assert_eq!(database.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_live_shorter_than_the_work_lets_two_work() {
    let ttl = Duration::from_secs(1);
    let (_redis, guard) = guarded(&Settings { pending_ttl: ttl, ..settings() });
    permit(guard.begin(&request("not-held")).await);
    let_pass(ttl + ttl / 10, "its time is over").await;
    permit(guard.begin(&request("not-held")).await);

    let owner = permit(guard.begin(&request("held")).await);
    guard.hold(&owner, let_pass(ttl + ttl / 10, "the same, held")).await;
    assert!(matches!(guard.begin(&request("held")).await, Begun::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completing_before_the_commit_replays_what_never_happened() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let owner = permit(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    claim(&transaction, &request("k"), &answer("done")).await.unwrap();
    transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
    guard.complete(&owner, &answer("done")).await;
    // Here the process dies, or the COMMIT fails.
    transaction.rollback().await.unwrap();
    assert_eq!(replayed(guard.begin(&request("k")).await), answer("done"));
    assert_eq!(database.effects().await, 0, "the client is told of an order that does not exist");
    // The shop in the same place: `services::orders`.
}

/// The effect of request `k`, as the guard's users write it.
async fn execute(database: &Database) -> Claim {
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, &request("k"), &answer("done")).await.unwrap();
    if claimed == Claim::Won {
        transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    claimed
}
