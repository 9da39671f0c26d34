//! What a service deletes by the library: old markers and old claims.

use std::time::Duration;

use postrider::idempotency::{IdempotencyError, clean_claims};
use postrider::marker::{MarkError, clean_markers};

use crate::database::{Stage, client, count};
use support::unique;

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn old_markers_of_one_consumer_are_deleted_and_locked_ones_are_left() {
    let (stage, client) = Stage::set().await;
    let insert = "INSERT INTO processed_messages SELECT consumer, gen_random_uuid(), now() - age \
        FROM unnest(ARRAY['mine', 'other']) AS consumer, \
        unnest(ARRAY[interval '9 days', '8 days', '7 days 1 minute', '6 days']) AS age";
    client.batch_execute(insert).await.unwrap();
    let mut other = stage.connect().await;
    let lock = other.transaction().await.unwrap();
    let oldest = "SELECT FROM processed_messages WHERE consumer = 'mine' \
        ORDER BY processed_at LIMIT 1 FOR UPDATE";
    lock.execute(oldest, &[]).await.unwrap();
    let mut deleted = Vec::new();
    for _ in 0..3 {
        deleted.push(clean_markers(&client, "mine", 7 * DAY, 1).await.unwrap());
    }
    assert_eq!(deleted, [1, 1, 0]);
    lock.rollback().await.unwrap();
    assert_eq!(clean_markers(&client, "mine", 7 * DAY, 10).await.unwrap(), 1);
    let left = "SELECT count(*) FROM processed_messages WHERE consumer = ";
    assert_eq!(count(&client, &format!("{left}'mine'")).await, 1);
    assert_eq!(count(&client, &format!("{left}'other'")).await, 4);
}

#[tokio::test]
async fn old_claims_are_deleted_and_young_ones_are_not() {
    let (_stage, client) = client().await;
    let insert = "INSERT INTO idempotency_keys \
        (scope, key, fingerprint, status, headers, body, created_at) \
        SELECT 'tenant', age::text, '', 200, '[]', '', now() - age \
        FROM unnest(ARRAY[interval '9 days', '8 days', '7 days 1 minute', '6 days']) AS age";
    client.batch_execute(insert).await.unwrap();
    let mut deleted = Vec::new();
    for _ in 0..3 {
        deleted.push(clean_claims(&client, 7 * DAY, 2).await.unwrap());
    }
    assert_eq!(deleted, [2, 1, 0]);
    assert_eq!(count(&client, "SELECT count(*) FROM idempotency_keys").await, 1);
}

#[tokio::test]
async fn who_may_not_delete_is_told_what_to_grant() {
    let (_stage, client) = client().await;
    let service = unique("service");
    client.batch_execute(&format!("CREATE ROLE {service}; SET ROLE {service}")).await.unwrap();
    let refused = clean_markers(&client, "mine", DAY, 10).await.unwrap_err();
    assert!(matches!(refused, MarkError::Forbidden(_)), "{refused}");
    assert!(refused.hint().unwrap().contains("DELETE"), "{:?}", refused.hint());
    let refused = clean_claims(&client, DAY, 10).await.unwrap_err();
    assert!(matches!(refused, IdempotencyError::Forbidden(_)), "{refused}");
    assert!(refused.hint().unwrap().contains("DELETE"), "{:?}", refused.hint());
}
