//! Events commit with the caller's transaction or not at all, and are numbered in commit order.

use postrider::outbox_writer::{Event, WriterError, append, append_all};
use serde_json::json;

use crate::database::{Stage, client, count};

fn event(aggregate: &str) -> Event {
    Event::new("account", aggregate, "AccountDebited", json!({ "cents": 990 }))
}

#[tokio::test]
async fn an_event_is_there_if_and_only_if_the_transaction_commits() {
    let (_stage, mut client) = client().await;
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
async fn the_sql_functions_serve_every_language() {
    let (_stage, client) = client().await;
    let sql = "SELECT outbox_append('order', '42', 'OrderCreated', '{\"total\": 990}')";
    assert_eq!(count(&client, sql).await, 1);
    assert_eq!(count(&client, sql).await, 2);
    // Their tables are found from a session that looks elsewhere.
    client.batch_execute("SET search_path TO pg_catalog").await.unwrap();
    let sql = "SELECT public.outbox_tombstone('order', '42', 'OrderPaid')";
    assert_eq!(count(&client, sql).await, 3);
    let sql = "SELECT public.outbox_append_all(ARRAY['order'], ARRAY['42'], ARRAY['OrderPaid'], \
               ARRAY['{}']::jsonb[], ARRAY[gen_random_uuid()])";
    assert_eq!(count(&client, sql).await, 4);
}

#[tokio::test]
async fn an_aggregate_id_is_text_an_integer_or_a_uuid() {
    let (_stage, client) = client().await;
    for id in ["'42'", "42", "42::smallint", "42::bigint", "'42'::varchar"] {
        let append = format!("SELECT outbox_append('order', {id}, 'OrderCreated', '{{}}')");
        client.query_one(&append, &[]).await.unwrap();
        let tombstone = format!("SELECT outbox_tombstone('order', {id}, 'OrderCreated')");
        client.query_one(&tombstone, &[]).await.unwrap();
    }
    let sql = "SELECT max(sequence) FROM outbox WHERE aggregate_id = '42'";
    assert_eq!(count(&client, sql).await, 10, "all of them are one aggregate");
    let id = uuid::Uuid::now_v7();
    for id in [format!("'{id}'::uuid"), format!("'{id}'")] {
        let append = format!("SELECT outbox_append('order', {id}, 'OrderCreated', '{{}}')");
        client.query_one(&append, &[]).await.unwrap();
    }
    let sql = "SELECT outbox_append('order', $1::uuid, 'OrderCreated', '{}')";
    assert_eq!(client.query_one(sql, &[&id]).await.unwrap().get::<_, i64>(0), 3);
    // As before there were others: a parameter whose type is left to the server is text.
    let sql = "SELECT outbox_append('order', $1, 'OrderCreated', '{}')";
    assert_eq!(client.query_one(sql, &[&id.to_string()]).await.unwrap().get::<_, i64>(0), 4);
}

/// Each was taken once, and lost an event or deleted one of a compacted topic.
#[tokio::test]
async fn a_missing_payload_is_an_error_and_not_a_tombstone() {
    let (_stage, client) = client().await;
    let all = |types: &str, payloads: &str, rest: &str| {
        format!(
            "SELECT outbox_append_all({types}, ARRAY['1', '2'], ARRAY['A', 'B'], {payloads}, \
                 ARRAY[gen_random_uuid(), gen_random_uuid()]{rest})"
        )
    };
    let types = "ARRAY['order', 'order']";
    let payloads = "ARRAY['{}', NULL]::jsonb[]";
    for (call, code, part) in [
        (
            "SELECT outbox_append('order', '42', 'Paid', NULL)".to_owned(),
            "22004",
            "payload is NULL",
        ),
        ("SELECT outbox_append('order', 42, 'Paid', NULL)".to_owned(), "22004", "payload is NULL"),
        ("SELECT outbox_append_all(NULL, NULL, NULL, NULL, NULL)".to_owned(), "22004", "NULL"),
        (all("NULL", payloads, ""), "22004", "NULL"),
        (all(types, "NULL", ""), "2202E", "lengths"),
        (all(types, payloads, ""), "22023", "event 2: payload is NULL"),
        (all(types, payloads, ", NULL, ARRAY[true, true]"), "22023", "event 1: a tombstone"),
        (all(types, payloads, ", NULL, ARRAY[true]"), "2202E", "lengths"),
    ] {
        let error = client.query(&call, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{call}");
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains(part), "{call}: {message}");
    }
    assert_eq!(count(&client, "SELECT count(*) FROM outbox").await, 0);
    let none = "SELECT count(*) FROM outbox_append_all('{}', '{}', '{}', '{}', '{}')";
    assert_eq!(count(&client, none).await, 0, "no events are no mistake");
    let both = all(types, payloads, ", NULL, ARRAY[NULL, true]");
    assert_eq!(client.query(&both, &[]).await.unwrap().len(), 2);
    assert_eq!(count(&client, "SELECT count(*) FROM outbox WHERE payload IS NULL").await, 1);
}

#[tokio::test]
async fn values_that_no_consumer_could_use_are_refused() {
    let (_stage, mut client) = client().await;
    for (arguments, part) in [
        ("'', '42', 'Paid', '{}'", "aggregate_type"),
        (r"E'or\nder', '42', 'Paid', '{}'", "aggregate_type"),
        ("'order', '', 'Paid', '{}'", "aggregate_id"),
        ("'order', '42', '', '{}'", "event_type"),
        (r"'order', '42', E'Paid\t', '{}'", "event_type"),
        (r"'order', '42', 'Paid', '{}', traceparent => E'00-1\r\nx: y'", "traceparent"),
    ] {
        let call = format!("SELECT outbox_append({arguments})");
        let error = client.query(&call, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "22023", "{call}");
        assert!(error.as_db_error().unwrap().message().contains(part), "{call}: {error:?}");
    }
    let empty = Event::new("account", "", "AccountDebited", json!({}));
    let transaction = client.transaction().await.unwrap();
    let error = append_all(&transaction, &[event("7"), empty.clone()]).await.unwrap_err();
    assert!(matches!(error, WriterError::Invalid(_)), "{error:?}");
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = append(&transaction, &empty).await.unwrap_err();
    assert!(matches!(error, WriterError::Invalid(_)), "{error:?}");
}

#[tokio::test]
async fn a_database_of_an_earlier_version_is_brought_up_to_date() {
    let (_stage, client) = client().await;
    // As it was before events had traces.
    client
        .batch_execute(
            "DROP FUNCTION outbox_append(text, text, text, jsonb, uuid, text); 
             DROP FUNCTION outbox_append_all(text[], text[], text[], jsonb[], uuid[], text[]);
             DROP FUNCTION outbox_append_all(text[], text[], text[], jsonb[], uuid[], text[], boolean[]);
             DROP FUNCTION outbox_append(text, bigint, text, jsonb, uuid, text);
             DROP FUNCTION outbox_append(text, uuid, text, jsonb, uuid, text); DROP FUNCTION outbox_tombstone(text, text, text, uuid, text);
             ALTER TABLE outbox DROP COLUMN traceparent;
             CREATE FUNCTION outbox_append(aggregate_type text, aggregate_id text, event_type text,
                 payload jsonb, id uuid DEFAULT gen_random_uuid())
             RETURNS bigint LANGUAGE sql AS 'SELECT 17::bigint';
             CREATE FUNCTION outbox_append_all(text[], text[], text[], jsonb[], uuid[], text[] DEFAULT NULL)
             RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 17::bigint'",
        )
        .await
        .unwrap();
    let sql = "SELECT outbox_append('order', '42', 'OrderCreated', '{}')";
    assert_eq!(count(&client, sql).await, 17);
    client.batch_execute(include_str!("../../migrations/0003_application.sql")).await.unwrap();
    assert_eq!(count(&client, sql).await, 1, "what was there is not ambiguous");
    let sql = "SELECT outbox_append('order', '42', 'OrderCreated', '[]', traceparent => '00-1')";
    assert_eq!(count(&client, sql).await, 2);
    let sql = "SELECT outbox_append_all(ARRAY['order'], ARRAY['42'], ARRAY['OrderCreated'], \
               ARRAY['{}']::jsonb[], ARRAY[gen_random_uuid()])";
    assert_eq!(count(&client, sql).await, 3, "neither is this");
    let sql = "SELECT count(*) FROM outbox WHERE payload = '[]' AND traceparent = '00-1'";
    assert_eq!(count(&client, sql).await, 1);
}

#[tokio::test]
async fn json_that_is_written_already_keeps_the_digits_of_its_numbers() {
    let (_stage, mut client) = client().await;
    let written = r#"{"cents": 1.50, "total": 12345678901234567890123}"#;
    let exact = || event("7").with_json(serde_json::from_str(written).unwrap());
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &exact()).await.unwrap();
    append_all(&transaction, &[exact(), exact()]).await.unwrap();
    transaction.commit().await.unwrap();
    let sql = format!("SELECT count(*) FROM outbox WHERE payload::text = '{written}'");
    assert_eq!(count(&client, &sql).await, 3);
}

#[tokio::test]
async fn a_schema_that_is_not_in_the_search_path_is_what_the_hint_names() {
    let (_stage, mut client) = client().await;
    client.batch_execute("SET search_path TO pg_catalog").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = append(&transaction, &event("7")).await.unwrap_err();
    assert!(matches!(error, WriterError::Missing(_)), "{error:?}");
    assert!(error.hint().unwrap().contains("search_path"));
}

#[tokio::test]
async fn a_tombstone_is_null_and_a_json_null_is_not() {
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &null_of("7")).await.unwrap();
    append(&transaction, &Event::tombstone("account", "7", "AccountClosed")).await.unwrap();
    append_all(&transaction, &[null_of("8"), Event::tombstone("account", "8", "AccountClosed")])
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let sql = "SELECT sequence FROM outbox WHERE payload IS NULL ORDER BY aggregate_id";
    let rows = client.query(sql, &[]).await.unwrap();
    let tombstones: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(tombstones, [2, 2]);
    assert_eq!(count(&client, "SELECT count(*) FROM outbox WHERE payload = 'null'").await, 2);
}

fn null_of(aggregate: &str) -> Event {
    Event::new("account", aggregate, "AccountClosed", serde_json::Value::Null)
}

#[tokio::test]
async fn several_events_are_appended_by_one_call_in_their_order() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let (_stage, mut client) = client().await;
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &event("8")).await.unwrap();
    let traced = event("7").with_traceparent(Some(TRACE.parse().unwrap()));
    let all = [event("8"), traced, event("8"), event("7"), event("9")];
    let numbers = append_all(&transaction, &all).await.unwrap();
    assert_eq!(numbers, [2, 1, 3, 2, 1]);
    assert_eq!(append_all(&transaction, &[]).await.unwrap(), [0_i64; 0]);
    assert_eq!(append(&transaction, &event("8")).await.unwrap(), 4);
    transaction.commit().await.unwrap();
    // Rows of one transaction are delivered in the order of their insertion.
    let sql = "SELECT aggregate_id, sequence, traceparent, id FROM outbox ORDER BY ctid";
    let rows = client.query(sql, &[]).await.unwrap();
    let appended = rows.iter().skip(1).take(5);
    let rows: Vec<(&str, i64, uuid::Uuid)> =
        appended.map(|row| (row.get(0), row.get(1), row.get(3))).collect();
    let wanted = all.iter().zip(&numbers);
    let wanted: Vec<_> =
        wanted.map(|(event, &number)| (&*event.aggregate_id, number, event.id)).collect();
    assert_eq!(rows, wanted);
    let sql = format!("SELECT count(*) FROM outbox WHERE traceparent = '{TRACE}' AND id = $1");
    let found = client.query_one(&sql, &[&wanted[1].2]).await.unwrap();
    assert_eq!(found.get::<_, i64>(0), 1);

    // All or none, and what an array lacks is no tombstone.
    let transaction = client.transaction().await.unwrap();
    let twice = append_all(&transaction, &[event("5"), all[0].clone()]).await.unwrap_err();
    assert!(matches!(twice, WriterError::Repeated(_)), "{twice:?}");
    transaction.rollback().await.unwrap();
    let sql = "SELECT outbox_append_all(ARRAY['a', 'a'], ARRAY['1', '1'], ARRAY['X', 'X'], \
               ARRAY['{}']::jsonb[], ARRAY[gen_random_uuid(), gen_random_uuid()])";
    let short = client.query(sql, &[]).await.unwrap_err();
    assert_eq!(short.code().unwrap().code(), "2202E");
}

/// Each of one pair locks the counters that the other has in the other order.
#[tokio::test]
async fn calls_with_the_same_aggregates_in_another_order_do_not_deadlock() {
    const ROUNDS: usize = 50;
    let (stage, client) = Stage::set().await;
    let mut writers = tokio::task::JoinSet::new();
    for names in [["1", "2", "3", "4"], ["4", "3", "2", "1"]] {
        let mut client = stage.connect().await;
        writers.spawn(async move {
            for _ in 0..ROUNDS {
                let transaction = client.transaction().await.unwrap();
                append_all(&transaction, &names.map(event)).await.unwrap();
                transaction.commit().await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let sql = "SELECT count(*) FROM outbox_sequences WHERE last = 100";
    assert_eq!(count(&client, sql).await, 4);
}

#[tokio::test]
async fn errors_name_the_situation_and_the_fix() {
    let (_stage, mut client) = client().await;
    let twice = event("7");
    let transaction = client.transaction().await.unwrap();
    append(&transaction, &twice).await.unwrap();
    let error = append(&transaction, &twice).await.unwrap_err();
    assert!(matches!(error, WriterError::Repeated(_)), "{error:?}");
    transaction.rollback().await.unwrap();

    let drop = "DROP FUNCTION outbox_append(text, text, text, jsonb, uuid, text)";
    client.batch_execute(drop).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let error = append(&transaction, &twice).await.unwrap_err();
    assert!(matches!(error, WriterError::Missing(_)), "{error:?}");
    assert!(error.hint().unwrap().contains("0003_application.sql"));
    transaction.rollback().await.unwrap();
}
