//! A Redis that forgets, hangs, is full, refuses, dies and comes back: no request fails by it.

use std::time::Duration;

use postrider::idempotency::{
    BeginOutcome, Claim, ExistingClaim, Guard, OwnerUpdate, claim, find_claim,
};
use postrider::sandbox::password::RandomPassword;
use postrider::sandbox::redis::Redis;

use crate::idempotency::fixture::{
    Database, begin_when_redis_is_back, calls, command, guarded, lease, replayed, request,
    response, settings,
};
use support::task::let_pass;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_loaded_again_after_script_flush() {
    let (redis, guard) = guarded(&settings());
    let flush = async || drop(command(&redis, "SCRIPT FLUSH").await);
    flush().await;
    let owner = lease(guard.begin(&request("k")).await);
    flush().await;
    assert_eq!(guard.renew(&owner).await, OwnerUpdate::Applied);
    flush().await;
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
    flush().await;
    assert_eq!(replayed(guard.begin(&request("k")).await), response("{}"));
    let other = lease(guard.begin(&request("other")).await);
    flush().await;
    assert_eq!(guard.release(&other).await, OwnerUpdate::Applied);
    assert_eq!(guard.counts().unsure, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_flush_postgres_still_knows_the_answer() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let owner = lease(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(claim(&transaction, &request("k"), &response("1")).await.unwrap(), Claim::Won);
    command(&redis, "FLUSHALL").await;
    transaction.commit().await.unwrap();
    assert_eq!(guard.complete(&owner, &response("1")).await, OwnerUpdate::Stale);

    let second = lease(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, &request("k"), &response("2")).await.unwrap();
    assert_eq!(claimed, Claim::Done(response("1")));
    assert_eq!(guard.complete(&second, &response("1")).await, OwnerUpdate::Applied);
    assert_eq!(replayed(guard.begin(&request("k")).await), response("1"), "in front again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_half_way_makes_the_guard_unsure_until_it_is_back() {
    let (mut redis, guard) = guarded(&settings());
    let owner = lease(guard.begin(&request("k")).await);
    redis.kill().unwrap();
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Unsure);
    for _ in 0..20 {
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    }
    redis.restart().unwrap();
    let _owner = lease(begin_when_redis_is_back(&guard, &request("k")).await);
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Stale);
    assert!(guard.counts().unsure >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_made_while_its_redis_is_away() {
    let mut redis = Redis::start().unwrap();
    redis.kill().unwrap();
    let guard = Guard::connect(&redis.url(), &settings()).unwrap();
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    redis.restart().unwrap();
    let _owner = lease(begin_when_redis_is_back(&guard, &request("k")).await);
}

/// Were each of them to ask, the server would run all of their scripts when it wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_costs_one_request_its_time_and_the_others_none() {
    let (redis, patient) = guarded(&settings());
    // Both connected before the pause.
    let impatient = settings().response_timeout(Duration::from_secs(1));
    let impatient = impatient.bypass(Duration::from_hours(1));
    let _owner = lease(patient.begin(&request("before")).await);
    let guard = Guard::connect(&redis.url(), &impatient).unwrap();
    let _owner = lease(guard.begin(&request("also-before")).await);
    let before = calls(&redis, "set").await;

    command(&redis, "CLIENT PAUSE 5000 ALL").await;
    for _ in 0..100 {
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    }
    // Also waits for the end of the pause.
    assert_eq!(calls(&redis, "set").await, before + 1);
    // What the one left behind has an end.
    assert!(matches!(patient.begin(&request("k")).await, BeginOutcome::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_makes_the_guard_unsure_until_there_is_room() {
    let (redis, guard) = guarded(&settings());
    let _owner = lease(guard.begin(&request("before")).await);
    command(&redis, "CONFIG SET maxmemory 1").await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    command(&redis, "CONFIG SET maxmemory 0").await;
    let _owner = lease(begin_when_redis_is_back(&guard, &request("k")).await);
}

/// The client's keeper of connections repeats such a refusal for ever; the guard does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_was_refused_is_tried_again() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let (_, place) = url.split_once('@').unwrap();
    let later = RandomPassword::draw().unwrap();
    let later = later.as_str();
    let guard = Guard::connect(&format!("redis://:{later}@{place}"), &settings()).unwrap();
    for _ in 0..5 {
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
        let_pass(settings().bypass, "Redis is bypassed for so long").await;
    }
    command(&redis, &format!("CONFIG SET requirepass {later}")).await;
    let _owner = lease(begin_when_redis_is_back(&guard, &request("k")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_is_replayed_from_postgres() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let large = response(&"x".repeat(1_000_000));
    let owner = lease(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(claim(&transaction, &request("k"), &large).await.unwrap(), Claim::Won);
    transaction.commit().await.unwrap();
    assert_eq!(guard.complete(&owner, &large).await, OwnerUpdate::Applied);
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    assert_eq!(find_claim(&client, &request("k")).await.unwrap(), Some(ExistingClaim::Done(large)));
}
