//! Each edge of the state machine, as Redis and the guard see it.

use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Guard, OwnerUpdate, StoredResponse};

use crate::idempotency::fixture::{
    calls, command, guarded, lease, only_key, replayed, request, request_with_body, response,
    session, settings,
};
use support::task::{let_pass, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_new_then_pending_then_replayed() {
    let chosen = settings().retry_after(Duration::from_secs(7));
    let (redis, guard) = guarded(&chosen);
    let request = request("one");
    let owner = lease(guard.begin(&request).await);
    for _ in 0..2 {
        let BeginOutcome::Pending { retry_after } = guard.begin(&request).await else { panic!() };
        assert_eq!(retry_after, chosen.retry_after);
    }
    let headers = vec![("location".to_owned(), "/orders/1".to_owned())];
    let first = StoredResponse::new(422, headers, vec![0, 0xff, b'\r', b'\n']).unwrap();
    assert_eq!(guard.complete(&owner, &first).await, OwnerUpdate::Applied);
    for _ in 0..3 {
        assert_eq!(replayed(guard.begin(&request).await), first);
    }
    assert_eq!(only_key(&redis).await, b"idem:tenant-7 one", "no second key");
    let counts = guard.counts();
    assert_eq!((counts.new, counts.pending, counts.replayed, counts.unsure), (1, 2, 3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_state_ends_by_itself() {
    let (redis, guard) = guarded(&settings());
    let ttl = async || -> i64 {
        let key = only_key(&redis).await;
        redis::cmd("PTTL").arg(key).query_async(&mut session(&redis).await).await.unwrap()
    };
    let owner = lease(guard.begin(&request("k")).await);
    assert!((1..=30_000).contains(&ttl().await), "a crash after `begin` locks nobody out");
    let () = redis::cmd("PEXPIRE")
        .arg(only_key(&redis).await)
        .arg(5_000)
        .query_async(&mut session(&redis).await)
        .await
        .unwrap();
    assert!((1..=5_000).contains(&ttl().await));
    assert_eq!(guard.renew(&owner).await, OwnerUpdate::Applied);
    assert!((5_001..=30_000).contains(&ttl().await), "renewed");
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
    assert!((30_001..=86_400_000).contains(&ttl().await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_key_is_free_at_once() {
    let (redis, guard) = guarded(&settings());
    let first = lease(guard.begin(&request("k")).await);
    assert_eq!(guard.release(&first).await, OwnerUpdate::Applied);
    assert_eq!(command(&redis, "DBSIZE").await, redis::Value::Int(0));
    let _owner = lease(guard.begin(&request("k")).await);
    assert_eq!(guard.release(&first).await, OwnerUpdate::Stale, "twice is once too often");
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_time_is_over_is_free() {
    let brief = Duration::from_millis(30);
    let (_redis, guard) = guarded(&settings().pending_ttl(brief).completed_ttl(brief));
    let dead = lease(guard.begin(&request("k")).await);
    let_pass(brief * 2, "the lease expires").await;
    let owner = lease(guard.begin(&request("k")).await);
    assert_eq!(guard.complete(&dead, &response("{}")).await, OwnerUpdate::Stale);
    // On a busy machine its own time may be over before it completes.
    if guard.complete(&owner, &response("{}")).await == OwnerUpdate::Applied {
        let_pass(brief * 2, "the response expires").await;
    }
    let _owner = lease(guard.begin(&request("k")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_with_another_request_is_a_mismatch_in_every_state() {
    let (_redis, guard) = guarded(&settings().stored_bytes_max(100));
    let (first, other) =
        (request_with_body("k", "{\"cents\":1}"), request_with_body("k", "{\"cents\":100}"));
    let owner = lease(guard.begin(&first).await);
    assert!(matches!(guard.begin(&other).await, BeginOutcome::Mismatch), "pending");
    guard.complete(&owner, &response("{}")).await;
    assert!(matches!(guard.begin(&other).await, BeginOutcome::Mismatch), "completed");
    let (first, other) =
        (request_with_body("large", "{\"cents\":1}"), request_with_body("large", "{}"));
    let owner = lease(guard.begin(&first).await);
    guard.complete(&owner, &response(&"x".repeat(200))).await;
    assert!(matches!(guard.begin(&other).await, BeginOutcome::Mismatch), "by pointer");
    assert_eq!(guard.counts().mismatched, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_response_is_a_pointer_to_postgres() {
    let (redis, guard) = guarded(&settings());
    let owner = lease(guard.begin(&request("k")).await);
    let large = response(&"x".repeat(16 * 1024));
    assert_eq!(guard.complete(&owner, &large).await, OwnerUpdate::Applied);
    let value: Vec<u8> = redis::cmd("GET")
        .arg(only_key(&redis).await)
        .query_async(&mut session(&redis).await)
        .await
        .unwrap();
    assert_eq!(value.len(), 33, "state and fingerprint");
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    assert_eq!(guard.complete(&owner, &large).await, OwnerUpdate::Stale, "it is completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_transition_is_one_command() {
    let (redis, guard) = guarded(&settings());
    let (a, b) = (request("a"), request("b"));
    let run = async || {
        let owner = lease(guard.begin(&a).await);
        assert_eq!(guard.renew(&owner).await, OwnerUpdate::Applied);
        assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
        replayed(guard.begin(&a).await);
        let owner = lease(guard.begin(&b).await);
        assert_eq!(guard.release(&owner).await, OwnerUpdate::Applied);
    };
    run().await;
    command(&redis, "FLUSHALL").await;
    command(&redis, "CONFIG RESETSTAT").await;
    run().await;
    assert_eq!((calls(&redis, "set").await, calls(&redis, "evalsha").await), (3, 3));
    assert_eq!((calls(&redis, "eval").await, calls(&redis, "script|load").await), (0, 0));
}

/// Whatever Redis forgets: no owner is taken for another of the same request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_owner_has_a_token_of_its_own() {
    let (redis, guard) = guarded(&settings());
    let mut former = Vec::new();
    for round in 0..50 {
        let owner = lease(guard.begin(&request("k")).await);
        for former in &former {
            assert_eq!(guard.release(former).await, OwnerUpdate::Stale, "round {round}");
        }
        if round % 2 == 0 {
            command(&redis, "FLUSHALL").await;
        } else {
            assert_eq!(guard.release(&owner).await, OwnerUpdate::Applied);
        }
        former.push(owner);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_with_renewal_outlives_the_time_to_live() {
    let ttl = Duration::from_secs(4);
    let (_redis, guard) = guarded(&settings().pending_ttl(ttl));
    let owner = lease(guard.begin(&request("k")).await);
    let work = async {
        for _ in 0..3 {
            let_pass(ttl / 2, "work that takes longer than the key lives").await;
            let begin = guard.begin(&request("k")).await;
            assert!(matches!(begin, BeginOutcome::Pending { .. }), "{begin:?}");
        }
        "done"
    };
    assert_eq!(guard.run_renewing(&owner, work).await, "done");
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_lease_was_lost_runs_to_its_end() {
    let ttl = Duration::from_millis(60);
    let (redis, guard) = guarded(&settings().pending_ttl(ttl));
    let owner = lease(guard.begin(&request("k")).await);
    command(&redis, "FLUSHALL").await;
    let work = async {
        wait_for("a renewal to find the lease expired", async || {
            (guard.counts().stale > 0).then_some(())
        })
        .await;
        let_pass(ttl * 2, "long enough for another renewal").await;
        "done"
    };
    assert_eq!(guard.run_renewing(&owner, work).await, "done");
    assert_eq!(guard.counts().stale, 1, "it does not renew an expired lease again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_without_redis_leaves_all_to_postgres() {
    let (_redis, other) = guarded(&settings());
    let owner = lease(other.begin(&request("k")).await);
    let guard = Guard::without_redis();
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Unsure);
    assert_eq!(guard.renew(&owner).await, OwnerUpdate::Unsure);
    assert_eq!(guard.release(&owner).await, OwnerUpdate::Unsure);
    assert_eq!(guard.run_renewing(&owner, async { 1 }).await, 1);
    let counts = guard.counts();
    assert_eq!((counts.new, counts.unsure, counts.stale), (0, 1, 0));
}
