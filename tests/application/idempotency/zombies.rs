//! Owners that stood still for longer than their time to live, and went on.

use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Claim, Guard, Lease, OwnerUpdate, claim};
use postrider::sandbox::redis::Redis;

use crate::idempotency::dropped::{await_empty, lasting};
use crate::idempotency::fixture::{
    Database, guarded, lease, replayed, request, response, settings,
};

/// An owner whose lease has expired, its guard, and the guard of its successor, whose lease does not.
async fn zombie() -> (Redis, Guard, Lease, Guard) {
    let (redis, guard) = guarded(&settings().pending_ttl(Duration::from_millis(100)));
    let zombie = lease(guard.begin(&request("k")).await);
    await_empty(&redis).await;
    let successors = Guard::connect(&redis.url(), &lasting()).unwrap();
    (redis, guard, zombie, successors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_told_and_its_successors_response_stays() {
    let (_redis, guard, zombie, successors) = zombie().await;
    let successor = lease(successors.begin(&request("k")).await);
    assert_eq!(successors.complete(&successor, &response("successor")).await, OwnerUpdate::Applied);

    assert_eq!(guard.complete(&zombie, &response("zombie")).await, OwnerUpdate::Stale);
    assert_eq!(guard.renew(&zombie).await, OwnerUpdate::Stale);
    assert_eq!(guard.release(&zombie).await, OwnerUpdate::Stale);
    assert_eq!(replayed(guard.begin(&request("k")).await), response("successor"));
    assert_eq!(guard.counts().stale, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_does_not_end_its_successors_work() {
    let (_redis, guard, zombie, successors) = zombie().await;
    let successor = lease(successors.begin(&request("k")).await);
    let work = async {
        assert_eq!(guard.complete(&zombie, &response("zombie")).await, OwnerUpdate::Stale);
        assert_eq!(guard.release(&zombie).await, OwnerUpdate::Stale);
        assert_eq!(guard.renew(&zombie).await, OwnerUpdate::Stale);
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    };
    successors.run_renewing(&successor, work).await;
    assert_eq!(successors.complete(&successor, &response("successor")).await, OwnerUpdate::Applied);
}

/// Both believe to own the key; the unique key lets one of them have its effect, whichever of them
/// comes first to the INSERT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_zombie_and_its_successor_one_has_its_effect() {
    for zombie_commits_first in [true, false] {
        let (_redis, guard, zombie, successors) = zombie().await;
        let database = Database::migrated().await;
        let successor = lease(successors.begin(&request("k")).await);

        let execute = async |guard: &Guard, owner: &Lease, body: &str| {
            let mut client = database.client().await;
            let transaction = client.transaction().await.unwrap();
            let mine = response(body);
            let claimed = claim(&transaction, &request("k"), &mine).await.unwrap();
            let valid = match claimed {
                Claim::Won => {
                    transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
                    transaction.commit().await.unwrap();
                    mine
                }
                Claim::Done(response) => response,
                Claim::Mismatch => panic!("the same request"),
            };
            let completed = guard.complete(owner, &valid).await;
            (valid, completed)
        };
        let of_zombie = async || execute(&guard, &zombie, "zombie").await;
        let of_successor = async || execute(&successors, &successor, "successor").await;
        let (first, second) = if zombie_commits_first {
            (of_zombie().await, of_successor().await)
        } else {
            (of_successor().await, of_zombie().await)
        };
        assert_eq!(first.0, second.0, "both return the same response");
        assert_eq!(database.effects().await, 1);
        let told = if zombie_commits_first { first.1 } else { second.1 };
        assert_eq!(told, OwnerUpdate::Stale);
        assert_eq!(replayed(guard.begin(&request("k")).await), first.0);
    }
}
