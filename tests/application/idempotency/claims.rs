//! The claims table in Postgres: the first to commit wins.

use postrider::idempotency::{
    Claim, ExistingClaim, Fingerprint, IdempotencyError, Key, Request, StoredResponse, claim,
    find_claim,
};
use tokio_postgres::Client;

use crate::idempotency::fixture::{Database, request, request_with_body, response};

async fn claim_and_commit(client: &mut Client, request: &Request, mine: &StoredResponse) -> Claim {
    let transaction = client.transaction().await.unwrap();
    let claimed = claim(&transaction, request, mine).await.unwrap();
    transaction.commit().await.unwrap();
    claimed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_to_commit_wins_and_all_others_get_its_response() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let headers = [("location", "/orders/1"), ("x-empty", ""), ("x-quote", "\"a\\b\t{}\"")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let first = StoredResponse::new(404, headers, vec![0, 1, 0xff, 0]).unwrap();
    assert_eq!(find_claim(&client, &request("k")).await.unwrap(), None);
    assert_eq!(claim_and_commit(&mut client, &request("k"), &first).await, Claim::Won);

    let claimed = claim_and_commit(&mut client, &request("k"), &response("second")).await;
    assert_eq!(claimed, Claim::Done(first.clone()));
    assert_eq!(find_claim(&client, &request("k")).await.unwrap(), Some(ExistingClaim::Done(first)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_with_another_request_is_a_mismatch_in_postgres_too() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let claimed = claim_and_commit(&mut client, &request("k"), &response("{}")).await;
    assert_eq!(claimed, Claim::Won);
    let other = request_with_body("k", "another body");
    assert_eq!(claim_and_commit(&mut client, &other, &response("{}")).await, Claim::Mismatch);
    assert_eq!(find_claim(&client, &other).await.unwrap(), Some(ExistingClaim::Mismatch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_in_another_scope_is_another_key() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    for scope in ["tenant-7", "tenant-8"] {
        let (key, fingerprint) = (Key::parse("k").unwrap(), Fingerprint::of("POST", scope, b""));
        let request = Request::new(scope, key, fingerprint).unwrap();
        assert_eq!(claim_and_commit(&mut client, &request, &response("{}")).await, Claim::Won);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_gone_with_its_transaction() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    assert_eq!(claim(&transaction, &request("k"), &response("1")).await.unwrap(), Claim::Won);
    transaction.rollback().await.unwrap();
    assert_eq!(find_claim(&client, &request("k")).await.unwrap(), None);
    assert_eq!(claim_and_commit(&mut client, &request("k"), &response("2")).await, Claim::Won);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_claim_waits_for_the_first_to_end() {
    let database = Database::migrated().await;
    for first_commits in [true, false] {
        let key = request(if first_commits { "committed" } else { "rolled-back" });
        let (mut one, mut two) = (database.client().await, database.client().await);
        let transaction = one.transaction().await.unwrap();
        assert_eq!(claim(&transaction, &key, &response("1")).await.unwrap(), Claim::Won);
        let second = tokio::spawn({
            let key = key.clone();
            async move { claim_and_commit(&mut two, &key, &response("2")).await }
        });
        database.await_blocked(1).await;
        assert_eq!(
            find_claim(&database.client().await, &key).await.unwrap(),
            None,
            "not committed"
        );
        let expected = if first_commits {
            transaction.commit().await.unwrap();
            Claim::Done(response("1"))
        } else {
            transaction.rollback().await.unwrap();
            Claim::Won
        };
        assert_eq!(second.await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_bounded_ends_busy() {
    let database = Database::migrated().await;
    let (mut one, mut two) = (database.client().await, database.client().await);
    let first = one.transaction().await.unwrap();
    assert_eq!(claim(&first, &request("k"), &response("1")).await.unwrap(), Claim::Won);
    two.batch_execute("SET lock_timeout = '20ms'").await.unwrap();
    let second = two.transaction().await.unwrap();
    let error = claim(&second, &request("k"), &response("2")).await.unwrap_err();
    assert!(matches!(error, IdempotencyError::Busy(_)), "{error:?}");
    assert_eq!(error.database().unwrap().code().unwrap().code(), "55P03");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_without_a_valid_response_is_reported_and_not_replayed() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let claimed = claim_and_commit(&mut client, &request("k"), &response("{}")).await;
    assert_eq!(claimed, Claim::Won);
    for garbled in [
        "status = -1",
        "status = 600",
        "headers = '{}'",
        "headers = '[[\"a\"]]'",
        "headers = '[[\"a\", 1]]'",
        "headers = '[[\"a\", \"b\\r\\nset-cookie: c\"]]'",
    ] {
        let text = "UPDATE idempotency_keys SET status = 200, headers = '[]'";
        client.batch_execute(text).await.unwrap();
        assert!(matches!(
            find_claim(&client, &request("k")).await,
            Ok(Some(ExistingClaim::Done(_)))
        ));
        client.batch_execute(&format!("UPDATE idempotency_keys SET {garbled}")).await.unwrap();
        let error = find_claim(&client, &request("k")).await.unwrap_err();
        assert!(matches!(error, IdempotencyError::CorruptRow), "{garbled}: {error:?}");
    }
}
