//! Events commit with the caller's transaction or not at all, and are numbered in commit order.

use postrider::outbox_writer::{Event, WriterError, append};
use serde_json::json;

use crate::database::{Stage, count};

fn event(aggregate: &str) -> Event {
    Event::new("account", aggregate, "AccountDebited", json!({ "cents": 990 }))
}

#[tokio::test]
async fn an_event_is_there_if_and_only_if_the_transaction_commits() {
    let (_stage, mut client) = Stage::set().await;
    let doomed = client.transaction().await.unwrap();
    assert_eq!(append(&doomed, &event("7")).await.unwrap(), 1);
    doomed.rollback().await.unwrap();
    assert_eq!(count(&client, "SELECT count(*) FROM outbox").await, 0);

    let kept = client.transaction().await.unwrap();
    // The number that was rolled back is used again: no gap.
    assert_eq!(append(&kept, &event("7")).await.unwrap(), 1);
    assert_eq!(append(&kept, &event("8")).await.unwrap(), 1);
    assert_eq!(append(&kept, &event("7")).await.unwrap(), 2);
    kept.commit().await.unwrap();
    let sql = "SELECT sequence, payload->>'cents', event_type FROM outbox \
               WHERE aggregate_id = '7' ORDER BY sequence";
    let rows = client.query(sql, &[]).await.unwrap();
    let told: Vec<(i64, &str, &str)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(told, [(1, "990", "AccountDebited"), (2, "990", "AccountDebited")]);
}

#[tokio::test]
async fn writers_of_one_aggregate_number_their_events_in_the_order_of_their_commits() {
    const WRITERS: i64 = 8;
    const EACH: i64 = 25;
    let (stage, client) = Stage::set().await;
    client
        .batch_execute(
            "CREATE TABLE committed (number serial, sequence bigint);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO committed (sequence) VALUES (NEW.sequence); RETURN NULL; END $$;
             -- At the very end of each transaction, while the counter is still locked.
             CREATE CONSTRAINT TRIGGER note AFTER INSERT ON outbox
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();",
        )
        .await
        .unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..WRITERS {
        let mut client = stage.connect().await;
        writers.spawn(async move {
            for round in 0..EACH {
                let transaction = client.transaction().await.unwrap();
                append(&transaction, &event("7")).await.unwrap();
                if (number + round) % 5 == 0 {
                    transaction.rollback().await.unwrap();
                } else {
                    transaction.commit().await.unwrap();
                }
            }
        });
    }
    writers.join_all().await;
    let committed = WRITERS * EACH * 4 / 5;
    assert_eq!(count(&client, "SELECT count(*) FROM outbox").await, committed);
    assert_eq!(count(&client, "SELECT max(sequence) FROM outbox").await, committed);
    let sql = "SELECT count(*) FROM (SELECT sequence - lag(sequence) OVER (ORDER BY number) AS step \
               FROM committed) AS steps WHERE step <> 1";
    assert_eq!(count(&client, sql).await, 0, "numbers rise by one from commit to commit");
}

/// The well-known mistake: to poll for whatever has a higher id than the last one seen. The relay reads
/// the WAL instead, in commit order.
#[tokio::test]
async fn polling_by_id_misses_rows_that_take_their_id_early_and_commit_late() {
    let (stage, poller) = Stage::set().await;
    poller.batch_execute("CREATE TABLE polled (id bigserial, what text)").await.unwrap();
    let poll = async |last: i64| -> Vec<(i64, String)> {
        let sql = "SELECT id, what FROM polled WHERE id > $1 ORDER BY id";
        let rows = poller.query(sql, &[&last]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let (mut slow, fast) = (stage.connect().await, stage.connect().await);
    let early = slow.transaction().await.unwrap();
    early.execute("INSERT INTO polled (what) VALUES ('early')", &[]).await.unwrap();
    fast.execute("INSERT INTO polled (what) VALUES ('late')", &[]).await.unwrap();
    assert_eq!(poll(0).await, [(2, "late".to_owned())]);
    early.commit().await.unwrap();
    assert_eq!(poll(2).await, [], "there are two, and one of them is never seen");
    assert_eq!(poll(0).await.len(), 2);
}

#[tokio::test]
async fn the_sql_function_serves_every_language() {
    let (_stage, client) = Stage::set().await;
    let sql = "SELECT outbox_append('order', '42', 'OrderCreated', '{\"total\": 990}')";
    assert_eq!(count(&client, sql).await, 1);
    assert_eq!(count(&client, sql).await, 2);
}

#[tokio::test]
async fn errors_name_the_situation_and_the_fix() {
    let (_stage, mut client) = Stage::set().await;
    let twice = event("7");
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &twice).await.unwrap();
    let error = append(&transaction, &twice).await.unwrap_err();
    assert!(matches!(error, WriterError::Repeated(_)), "{error:?}");
    transaction.rollback().await.unwrap();

    client.batch_execute("DROP FUNCTION outbox_append").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = append(&transaction, &twice).await.unwrap_err();
    assert!(matches!(error, WriterError::Missing(_)), "{error:?}");
    assert!(error.hint().unwrap().contains("0003_application.sql"));
    transaction.rollback().await.unwrap();
}
