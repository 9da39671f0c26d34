//! Futures and leases that are dropped half-way: none of them keeps its key.
//!
//! A lease lives for an hour here, so what is free was freed and has not expired.

use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Guard, GuardSettings, OwnerUpdate, StoredResponse};
use postrider::sandbox::redis::Redis;

use crate::idempotency::fixture::{
    begin_when_redis_is_back, calls, command, guarded, lease, request, response, settings,
};
use support::task::{let_pass, wait_for};

pub(crate) fn lasting() -> GuardSettings {
    settings().pending_ttl(Duration::from_hours(1))
}

/// Redis may take as long as it takes on a busy machine, and less than a pause.
fn hasty() -> GuardSettings {
    lasting().response_timeout(Duration::from_secs(1))
}

/// Redis answers nothing for a while, so what is sent now is waited for.
async fn pause(redis: &Redis) {
    command(redis, "CLIENT PAUSE 4000 ALL").await;
}

async fn replay(guard: &Guard, key: &str) -> StoredResponse {
    wait_for("the stored response", async || match guard.begin(&request(key)).await {
        BeginOutcome::Replay(response) => Some(response),
        _ => None,
    })
    .await
}

pub(crate) async fn await_empty(redis: &Redis) {
    wait_for("an empty Redis", async || {
        (command(redis, "DBSIZE").await == redis::Value::Int(0)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_dropped_frees_its_key() {
    let (redis, guard) = guarded(&lasting());
    drop(lease(guard.begin(&request("k")).await));
    await_empty(&redis).await;

    let task = tokio::spawn({
        let guard = guard.clone();
        async move {
            let _owner = lease(guard.begin(&request("k")).await);
            panic!("in the midst of the work");
        }
    });
    assert!(task.await.unwrap_err().is_panic());
    await_empty(&redis).await;
}

/// A dropped lease frees its own key, and not that of a successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_dropped_late_does_not_free_its_successors_key() {
    let (redis, guard) = guarded(&lasting());
    let former = lease(guard.begin(&request("k")).await);
    command(&redis, "FLUSHALL").await;
    let _successor = lease(guard.begin(&request("k")).await);
    let before = calls(&redis, "evalsha").await;
    drop(former);
    wait_for("the release", async || (calls(&redis, "evalsha").await > before).then_some(())).await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_left_to_expire_keeps_its_key() {
    let (redis, guard) = guarded(&lasting());
    let owner = lease(guard.begin(&request("k")).await);
    owner.leave_to_expire();
    let before = calls(&redis, "evalsha").await;
    drop(owner);
    // On the same connection: what the drop had sent would come first.
    let_pass(Duration::from_millis(50), "a release, were there one, is sent").await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    assert_eq!(calls(&redis, "evalsha").await, before, "a release is a script");
}

async fn begins_and_releases(redis: &Redis) -> u64 {
    calls(redis, "set").await + calls(redis, "evalsha").await
}

/// The client hangs up while Redis decides; its command runs all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_is_dropped_half_way_leaves_no_key_pending() {
    let (redis, guard) = guarded(&lasting());
    // The script is known from here on.
    let owner = lease(guard.begin(&request("before")).await);
    guard.release(&owner).await;
    let before = begins_and_releases(&redis).await;
    pause(&redis).await;
    let begin = tokio::time::timeout(Duration::from_millis(50), async {
        drop(guard.begin(&request("k")).await);
    });
    assert!(begin.await.is_err(), "Redis is paused");
    // Waits for the end of the pause.
    wait_for("begin and release", async || {
        (begins_and_releases(&redis).await >= before + 2).then_some(())
    })
    .await;
    assert_eq!(command(&redis, "DBSIZE").await, redis::Value::Int(0));
}

/// As on a busy machine: the request is executed by way of Postgres, and its command runs all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_redis_answers_too_late_leaves_no_key_pending() {
    let (redis, guard) = guarded(&hasty());
    let owner = lease(begin_when_redis_is_back(&guard, &request("before")).await);
    guard.release(&owner).await;
    let before = begins_and_releases(&redis).await;
    pause(&redis).await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    // Waits for the end of the pause.
    wait_for("begin and release", async || {
        (begins_and_releases(&redis).await >= before + 2).then_some(())
    })
    .await;
    await_empty(&redis).await;
}

/// It is not even sent: Redis is bypassed, since it was late for another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_redis_is_not_asked_for_follows_when_it_is_asked_again() {
    let (redis, guard) = guarded(&hasty().bypass(Duration::from_secs(2)));
    let owner = lease(begin_when_redis_is_back(&guard, &request("k")).await);
    pause(&redis).await;
    assert!(matches!(guard.begin(&request("other")).await, BeginOutcome::Unsure));
    assert_eq!(guard.release(&owner).await, OwnerUpdate::Unsure);
    drop(owner);
    await_empty(&redis).await;
}

/// The client hangs up after the COMMIT, while the response is cached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_is_dropped_half_way_is_completed() {
    let (redis, guard) = guarded(&lasting());
    let owner = lease(guard.begin(&request("k")).await);
    pause(&redis).await;
    let mine = response("{}");
    let complete = tokio::time::timeout(Duration::from_millis(50), async {
        guard.complete(&owner, &mine).await
    });
    assert!(complete.await.is_err(), "Redis is paused");
    drop(owner);
    assert_eq!(replay(&guard, "k").await, mine);
}

/// The handler is cancelled while it releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_dropped_half_way_frees_the_key() {
    let (redis, guard) = guarded(&lasting());
    let owner = lease(guard.begin(&request("k")).await);
    pause(&redis).await;
    let release = tokio::time::timeout(Duration::from_millis(50), guard.release(&owner));
    assert!(release.await.is_err(), "Redis is paused");
    drop(owner);
    await_empty(&redis).await;
}

/// Postgres has the response; the key's time to live is an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_a_full_redis_refuses_leaves_no_key_pending() {
    let (redis, guard) = guarded(&lasting());
    let owner = lease(guard.begin(&request("k")).await);
    command(&redis, "CONFIG SET maxmemory 1").await;
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Unsure);
    drop(owner);
    await_empty(&redis).await;
}
