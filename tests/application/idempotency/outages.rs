//! A Redis that forgets, hangs, is full, refuses, dies and comes back: no request fails by it.

use std::time::Duration;

use postrider::idempotency::{Begun, Claim, Completed, Guard, Known, Settings, claim, look_up};
use postrider::sandbox::password::Password;
use postrider::sandbox::redis::Redis;

use crate::idempotency::fixture::{
    Database, answer, begin_when_sure, calls, guarded, permit, replayed, request, settings, tell,
};
use support::task::let_pass;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_loaded_again_after_script_flush() {
    let (redis, guard) = guarded(&settings());
    let flush = async || drop(tell(&redis, "SCRIPT FLUSH").await);
    flush().await;
    let owner = permit(guard.begin(&request("k")).await);
    flush().await;
    assert_eq!(guard.renew(&owner).await, Completed::Done);
    flush().await;
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Done);
    flush().await;
    assert_eq!(replayed(guard.begin(&request("k")).await), answer("{}"));
    let other = permit(guard.begin(&request("other")).await);
    flush().await;
    assert_eq!(guard.release(&other).await, Completed::Done);
    assert_eq!(guard.counts().unsure, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_flush_postgres_still_knows_the_answer() {
    let (redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let owner = permit(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(claim(&transaction, &request("k"), &answer("1")).await.unwrap(), Claim::Won);
    tell(&redis, "FLUSHALL").await;
    transaction.commit().await.unwrap();
    assert_eq!(guard.complete(&owner, &answer("1")).await, Completed::Stale);

    let second = permit(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, &request("k"), &answer("2")).await.unwrap();
    assert_eq!(claimed, Claim::Done(answer("1")));
    assert_eq!(guard.complete(&second, &answer("1")).await, Completed::Done);
    assert_eq!(replayed(guard.begin(&request("k")).await), answer("1"), "in front again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_half_way_makes_the_guard_unsure_until_it_is_back() {
    let (mut redis, guard) = guarded(&settings());
    let owner = permit(guard.begin(&request("k")).await);
    redis.kill().unwrap();
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Unsure);
    for _ in 0..20 {
        assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    }
    redis.restart().unwrap();
    permit(begin_when_sure(&guard, &request("k")).await);
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Stale);
    assert!(guard.counts().unsure >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_made_while_its_redis_is_away() {
    let mut redis = Redis::start().unwrap();
    redis.kill().unwrap();
    let guard = Guard::connect(&redis.url(), &settings()).unwrap();
    assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    redis.restart().unwrap();
    permit(begin_when_sure(&guard, &request("k")).await);
}

/// Were each of them to ask, the server would run all of their scripts when it wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_costs_one_request_its_time_and_the_others_none() {
    let (redis, patient) = guarded(&settings());
    // Both connected before the pause.
    let impatient = Settings {
        response_timeout: Duration::from_millis(200),
        pass_over: Duration::from_hours(1),
        ..settings()
    };
    permit(patient.begin(&request("before")).await);
    let guard = Guard::connect(&redis.url(), &impatient).unwrap();
    permit(guard.begin(&request("also-before")).await);
    let before = calls(&redis, "evalsha").await;

    tell(&redis, "CLIENT PAUSE 1000 ALL").await;
    for _ in 0..100 {
        assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    }
    // Also waits for the end of the pause.
    assert_eq!(calls(&redis, "evalsha").await, before + 1);
    // What the one left behind has an end.
    assert!(matches!(patient.begin(&request("k")).await, Begun::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_makes_the_guard_unsure_until_there_is_room() {
    let (redis, guard) = guarded(&settings());
    permit(guard.begin(&request("before")).await);
    tell(&redis, "CONFIG SET maxmemory 1").await;
    assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    tell(&redis, "CONFIG SET maxmemory 0").await;
    permit(begin_when_sure(&guard, &request("k")).await);
}

/// The client's keeper of connections repeats such a refusal for ever; the guard does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_was_refused_is_tried_again() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let (_, place) = url.split_once('@').unwrap();
    let later = Password::draw().unwrap();
    let later = later.as_str();
    let guard = Guard::connect(&format!("redis://:{later}@{place}"), &settings()).unwrap();
    for _ in 0..5 {
        assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
        let_pass(settings().pass_over, "Redis is passed over for so long").await;
    }
    tell(&redis, &format!("CONFIG SET requirepass {later}")).await;
    permit(begin_when_sure(&guard, &request("k")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_is_replayed_from_postgres() {
    let (_redis, guard) = guarded(&settings());
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let large = answer(&"x".repeat(1_000_000));
    let owner = permit(guard.begin(&request("k")).await);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(claim(&transaction, &request("k"), &large).await.unwrap(), Claim::Won);
    transaction.commit().await.unwrap();
    assert_eq!(guard.complete(&owner, &large).await, Completed::Done);
    assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    assert_eq!(look_up(&client, &request("k")).await.unwrap(), Some(Known::Done(large)));
}
