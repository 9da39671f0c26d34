//! A server with `SET .. IFEQ ..` completes and renews by it, and not by a script.

use postrider::idempotency::{BeginOutcome, Guard, OwnerUpdate};

use crate::idempotency::fixture::{
    calls, command, lease, only_key, replayed, request, response, session, settings,
};
use support::valkey;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_ifeq_runs_a_script_for_release_alone() {
    let Some(valkey) = valkey::start() else { return };
    let guard = Guard::connect(&valkey.url(), &settings()).unwrap();
    let owner = lease(guard.begin(&request("k")).await);
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    let ttl = async || -> i64 {
        let key = only_key(&valkey).await;
        redis::cmd("PTTL").arg(key).query_async(&mut session(&valkey).await).await.unwrap()
    };
    let () = redis::cmd("PEXPIRE")
        .arg(only_key(&valkey).await)
        .arg(5_000)
        .query_async(&mut session(&valkey).await)
        .await
        .unwrap();
    assert_eq!(guard.renew(&owner).await, OwnerUpdate::Applied);
    assert!((5_001..=30_000).contains(&ttl().await), "renewed");
    assert_eq!(guard.complete(&owner, &response("{}")).await, OwnerUpdate::Applied);
    assert!((30_001..=86_400_000).contains(&ttl().await));
    assert_eq!(replayed(guard.begin(&request("k")).await), response("{}"));
    assert_eq!(calls(&valkey, "evalsha").await, 0);

    let owner = lease(guard.begin(&request("released")).await);
    assert_eq!(guard.release(&owner).await, OwnerUpdate::Applied);
    assert!(matches!(guard.begin(&request("released")).await, BeginOutcome::New(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ifeq_leaves_what_is_not_the_owners() {
    let Some(valkey) = valkey::start() else { return };
    let guard = Guard::connect(&valkey.url(), &settings()).unwrap();
    let zombie = lease(guard.begin(&request("k")).await);
    let stale = async |state: &str| {
        assert_eq!(
            guard.complete(&zombie, &response("zombie")).await,
            OwnerUpdate::Stale,
            "{state}"
        );
        assert_eq!(guard.renew(&zombie).await, OwnerUpdate::Stale, "{state}");
        assert_eq!(guard.release(&zombie).await, OwnerUpdate::Stale, "{state}");
    };
    let key = only_key(&valkey).await;
    command(&valkey, "FLUSHALL").await;
    stale("the key is gone").await;
    assert_eq!(command(&valkey, "DBSIZE").await, redis::Value::Int(0));

    let () = redis::cmd("RPUSH")
        .arg(&key)
        .arg("x")
        .query_async(&mut session(&valkey).await)
        .await
        .unwrap();
    stale("a list").await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Unsure));

    command(&valkey, "FLUSHALL").await;
    let successor = lease(guard.begin(&request("k")).await);
    stale("another's").await;
    assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    assert_eq!(guard.complete(&successor, &response("successor")).await, OwnerUpdate::Applied);
    stale("completed").await;
    assert_eq!(replayed(guard.begin(&request("k")).await), response("successor"));
    assert_eq!(guard.counts().unsure, 1, "a key of another type is no outage");
}
