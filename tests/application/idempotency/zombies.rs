//! Owners that stood still for longer than their time to live, and went on.

use std::time::Duration;

use postrider::idempotency::{BeginOutcome, Claim, GuardSettings, Lease, OwnerUpdate, claim};

use crate::idempotency::fixture::{
    Database, guarded, lease, replayed, request, response, settings,
};
use support::task::let_pass;

const TTL: Duration = Duration::from_secs(5);

fn brief() -> GuardSettings {
    settings().pending_ttl(TTL)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_told_and_its_successors_response_stays() {
    let (_redis, guard) = guarded(&brief());
    let zombie = lease(guard.begin(&request("k")).await);
    let_pass(TTL + TTL / 10, "the lease expires").await;
    let successor = lease(guard.begin(&request("k")).await);
    assert_eq!(guard.complete(&successor, &response("successor")).await, OwnerUpdate::Applied);

    assert_eq!(guard.complete(&zombie, &response("zombie")).await, OwnerUpdate::Stale);
    assert_eq!(guard.renew(&zombie).await, OwnerUpdate::Stale);
    assert_eq!(guard.release(&zombie).await, OwnerUpdate::Stale);
    assert_eq!(replayed(guard.begin(&request("k")).await), response("successor"));
    assert_eq!(guard.counts().stale, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_does_not_end_its_successors_work() {
    let (_redis, guard) = guarded(&brief());
    let zombie = lease(guard.begin(&request("k")).await);
    let_pass(TTL + TTL / 10, "the lease expires").await;
    let successor = lease(guard.begin(&request("k")).await);
    let work = async {
        assert_eq!(guard.complete(&zombie, &response("zombie")).await, OwnerUpdate::Stale);
        assert_eq!(guard.release(&zombie).await, OwnerUpdate::Stale);
        assert_eq!(guard.renew(&zombie).await, OwnerUpdate::Stale);
        assert!(matches!(guard.begin(&request("k")).await, BeginOutcome::Pending { .. }));
    };
    guard.run_renewing(&successor, work).await;
    assert_eq!(guard.complete(&successor, &response("successor")).await, OwnerUpdate::Applied);
}

/// Both believe to own the key; the unique key lets one of them have its effect, whichever of them
/// comes first to the INSERT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_zombie_and_its_successor_one_has_its_effect() {
    for zombie_commits_first in [true, false] {
        let (_redis, guard) = guarded(&brief());
        let database = Database::migrated().await;
        let zombie = lease(guard.begin(&request("k")).await);
        let_pass(TTL + TTL / 10, "the lease expires").await;
        let successor = lease(guard.begin(&request("k")).await);

        let execute = async |owner: &Lease, body: &str| {
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
        let (first, second) = if zombie_commits_first {
            (execute(&zombie, "zombie").await, execute(&successor, "successor").await)
        } else {
            (execute(&successor, "successor").await, execute(&zombie, "zombie").await)
        };
        assert_eq!(first.0, second.0, "both return the same response");
        assert_eq!(database.effects().await, 1);
        let of_zombie = if zombie_commits_first { first.1 } else { second.1 };
        assert_eq!(of_zombie, OwnerUpdate::Stale);
        assert_eq!(replayed(guard.begin(&request("k")).await), first.0);
    }
}
