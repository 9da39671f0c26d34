//! Each edge of the state machine, as Redis and the guard see it.

use std::time::Duration;

use postrider::idempotency::{Answer, Begun, Completed, Counts, Guard, Settings};

use crate::idempotency::fixture::{
    answer, asking, calls, guarded, only_key, permit, replayed, request, session, settings, tell,
};
use support::task::{let_pass, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_new_then_pending_then_replayed() {
    let chosen = Settings { retry_after: Duration::from_secs(7), ..settings() };
    let (redis, guard) = guarded(&chosen);
    let request = request("one");
    let owner = permit(guard.begin(&request).await);
    for _ in 0..2 {
        let Begun::Pending { retry_after } = guard.begin(&request).await else { panic!() };
        assert_eq!(retry_after, chosen.retry_after);
    }
    let headers = vec![("location".to_owned(), "/orders/1".to_owned())];
    let first = Answer::new(422, headers, vec![0, 0xff, b'\r', b'\n']).unwrap();
    assert_eq!(guard.complete(&owner, &first).await, Completed::Done);
    for _ in 0..3 {
        assert_eq!(replayed(guard.begin(&request).await), first);
    }
    assert_eq!(only_key(&redis).await, b"idem:tenant-7 POST /orders one", "no second key");
    let counts = Counts { new: 1, pending: 2, replayed: 3, ..Counts::default() };
    assert_eq!(guard.counts(), counts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_state_ends_by_itself() {
    let (redis, guard) = guarded(&settings());
    let ttl = async || -> i64 {
        let key = only_key(&redis).await;
        redis::cmd("PTTL").arg(key).query_async(&mut session(&redis).await).await.unwrap()
    };
    let owner = permit(guard.begin(&request("k")).await);
    assert!((1..=30_000).contains(&ttl().await), "a crash after `begin` locks nobody out");
    let () = redis::cmd("PEXPIRE")
        .arg(only_key(&redis).await)
        .arg(5_000)
        .query_async(&mut session(&redis).await)
        .await
        .unwrap();
    assert!((1..=5_000).contains(&ttl().await));
    assert_eq!(guard.renew(&owner).await, Completed::Done);
    assert!((5_001..=30_000).contains(&ttl().await), "renewed");
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Done);
    assert!((30_001..=86_400_000).contains(&ttl().await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_key_is_free_at_once() {
    let (redis, guard) = guarded(&settings());
    let first = permit(guard.begin(&request("k")).await);
    assert_eq!(guard.release(&first).await, Completed::Done);
    assert_eq!(tell(&redis, "DBSIZE").await, redis::Value::Int(0));
    let second = permit(guard.begin(&request("k")).await);
    assert!(second.token() > first.token());
    assert_eq!(guard.release(&first).await, Completed::Stale, "twice is once too often");
    assert!(matches!(guard.begin(&request("k")).await, Begun::Pending { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_time_is_over_is_free() {
    let brief = Duration::from_millis(30);
    let (_redis, guard) =
        guarded(&Settings { pending_ttl: brief, completed_ttl: brief, ..settings() });
    let dead = permit(guard.begin(&request("k")).await);
    let_pass(brief * 2, "its time is over").await;
    let owner = permit(guard.begin(&request("k")).await);
    assert!(owner.token() > dead.token());
    // On a busy machine its own time may be over before it completes.
    if guard.complete(&owner, &answer("{}")).await == Completed::Done {
        let_pass(brief * 2, "the answer's time is over").await;
    }
    permit(guard.begin(&request("k")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_with_another_request_is_a_mismatch_in_every_state() {
    let (_redis, guard) = guarded(&Settings { stored_bytes_max: 100, ..settings() });
    let (first, other) = (asking("k", "{\"cents\":1}"), asking("k", "{\"cents\":100}"));
    let owner = permit(guard.begin(&first).await);
    assert!(matches!(guard.begin(&other).await, Begun::Mismatch), "pending");
    guard.complete(&owner, &answer("{}")).await;
    assert!(matches!(guard.begin(&other).await, Begun::Mismatch), "completed");
    let (first, other) = (asking("large", "{\"cents\":1}"), asking("large", "{}"));
    let owner = permit(guard.begin(&first).await);
    guard.complete(&owner, &answer(&"x".repeat(200))).await;
    assert!(matches!(guard.begin(&other).await, Begun::Mismatch), "by pointer");
    assert_eq!(guard.counts().mismatched, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_is_a_pointer_to_postgres() {
    let (redis, guard) = guarded(&settings());
    let owner = permit(guard.begin(&request("k")).await);
    let large = answer(&"x".repeat(16 * 1024));
    assert_eq!(guard.complete(&owner, &large).await, Completed::Done);
    let value: Vec<u8> = redis::cmd("GET")
        .arg(only_key(&redis).await)
        .query_async(&mut session(&redis).await)
        .await
        .unwrap();
    assert_eq!(value.len(), 33, "state and fingerprint");
    assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    assert_eq!(guard.complete(&owner, &large).await, Completed::Stale, "it is completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_transition_is_one_command() {
    let (redis, guard) = guarded(&settings());
    let (a, b) = (request("a"), request("b"));
    let run = async || {
        let owner = permit(guard.begin(&a).await);
        assert_eq!(guard.renew(&owner).await, Completed::Done);
        assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Done);
        replayed(guard.begin(&a).await);
        let owner = permit(guard.begin(&b).await);
        assert_eq!(guard.release(&owner).await, Completed::Done);
    };
    run().await;
    tell(&redis, "FLUSHALL").await;
    tell(&redis, "CONFIG RESETSTAT").await;
    run().await;
    assert_eq!(calls(&redis, "evalsha").await, 6);
    assert_eq!((calls(&redis, "eval").await, calls(&redis, "script|load").await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_redis_forgets() {
    let (redis, guard) = guarded(&settings());
    let mut last = 0;
    for round in 0..50 {
        let owner = permit(guard.begin(&request("k")).await);
        assert!(owner.token() > last, "round {round}");
        last = owner.token();
        if round % 2 == 0 {
            tell(&redis, "FLUSHALL").await;
        } else {
            guard.release(&owner).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_held_outlives_the_time_to_live() {
    let ttl = Duration::from_secs(1);
    let (_redis, guard) = guarded(&Settings { pending_ttl: ttl, ..settings() });
    let owner = permit(guard.begin(&request("k")).await);
    let work = async {
        for _ in 0..5 {
            let_pass(ttl / 2, "work that takes longer than the key lives").await;
            let begun = guard.begin(&request("k")).await;
            assert!(matches!(begun, Begun::Pending { .. }), "{begun:?}");
        }
        "done"
    };
    assert_eq!(guard.hold(&owner, work).await, "done");
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_was_overtaken_is_held_to_its_end() {
    let ttl = Duration::from_millis(60);
    let (redis, guard) = guarded(&Settings { pending_ttl: ttl, ..settings() });
    let owner = permit(guard.begin(&request("k")).await);
    tell(&redis, "FLUSHALL").await;
    let work = async {
        wait_for("the guard to be told", async || (guard.counts().stale > 0).then_some(())).await;
        let_pass(ttl * 2, "it would ask again meanwhile").await;
        "done"
    };
    assert_eq!(guard.hold(&owner, work).await, "done");
    assert_eq!(guard.counts().stale, 1, "it asked no more once it knew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_without_redis_leaves_all_to_postgres() {
    let (_redis, other) = guarded(&settings());
    let owner = permit(other.begin(&request("k")).await);
    let guard = Guard::without_redis();
    assert!(matches!(guard.begin(&request("k")).await, Begun::Unsure));
    assert_eq!(guard.complete(&owner, &answer("{}")).await, Completed::Unsure);
    assert_eq!(guard.renew(&owner).await, Completed::Unsure);
    assert_eq!(guard.release(&owner).await, Completed::Unsure);
    assert_eq!(guard.hold(&owner, async { 1 }).await, 1);
    assert_eq!(guard.counts(), Counts { unsure: 1, ..Counts::default() });
}
