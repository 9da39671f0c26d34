//! The SQL functions, as a service of any language calls them.
//!
//! Input: calls with literals, and with parameters whose types a driver names or leaves to the server; the calls of the
//! page. Output: what each caller gets, and what is stored. Invariant: a response is replayed byte for byte.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row, Transaction};

use crate::idempotency::fixture::Database;

/// Each was stored as other bytes, or was an error, when the body was a bytea: a literal of that type has escapes.
const BODIES: [&str; 8] = [
    r#"{"id": 7}"#,
    r#"{"path": "C:\\temp"}"#,
    r#"{"name": "Zo\u00eb"}"#,
    r#"{"name": "a \"b\" 'c'"}"#,
    r#"{"octal": "\\101"}"#,
    "two\nlines\r\nand a tab\t",
    "Zoë, 東京, \u{1f375}",
    r"\x41",
];

const BEGIN: &str = "SELECT outcome, stored_status, stored_headers::text, stored_body \
    FROM idempotency_begin('tenant-7', $1, 'fingerprint')";

fn outcome(row: &Row) -> &str {
    row.get(0)
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().unwrap().code()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Calls it twice, each time with the body written into the statement.
async fn claim_twice(client: &Client, key: &str, body: &str) -> String {
    let claim = format!(
        "SELECT outcome, stored_body FROM idempotency_claim('tenant-7', '{key}', sha256('x'), 201, '[]', {body})"
    );
    let rows = client.query(&claim, &[]).await.unwrap();
    assert_eq!(outcome(&rows[0]), "won");
    let rows = client.query(&claim, &[]).await.unwrap();
    assert_eq!(outcome(&rows[0]), "done");
    rows[0].get(1)
}

#[tokio::test]
async fn a_body_is_replayed_byte_for_byte() {
    let database = Database::migrated().await;
    let client = database.client().await;
    for (number, body) in BODIES.iter().enumerate() {
        let literal = quoted(body);
        for (how, written) in [("literal", literal.clone()), ("text", format!("{literal}::text"))] {
            let key = format!("{how}-{number}");
            assert_eq!(claim_twice(&client, &key, &written).await, *body, "{how}");
        }
        // The types of parameters are the server's to say.
        let claim = "SELECT outcome, stored_body FROM idempotency_claim($1, $2, $3, $4, $5::text::jsonb, $6)";
        let claim = client.prepare(claim).await.unwrap();
        assert_eq!(claim.params()[5], Type::TEXT);
        for expected in [None, Some(*body)] {
            let key = format!("parameter-{number}");
            let values = client
                .query_one(&claim, &[&"tenant-7", &key, &&b"x"[..], &201, &"[]", body])
                .await
                .unwrap();
            assert_eq!(values.get::<_, Option<&str>>(1), expected);
        }
        let key = format!("in-order-{number}");
        assert_eq!(outcome(&client.query_one(BEGIN, &[&key]).await.unwrap()), "won");
        let finish = "SELECT idempotency_finish('tenant-7', $1, 201, '[]', $2)";
        client.execute(finish, &[&key, body]).await.unwrap();
        let again = client.query_one(BEGIN, &[&key]).await.unwrap();
        assert_eq!((outcome(&again), again.get::<_, &str>(3)), ("done", *body));
        // As bytes, for a caller that says so.
        let bytes = "SELECT stored_body FROM idempotency_claim('tenant-7', $1, 'fingerprint', 201, '[]', $2::bytea)";
        let row = client.query_one(bytes, &[&key, &body.as_bytes()]).await.unwrap();
        assert_eq!(row.get::<_, &[u8]>(0), body.as_bytes());
    }
}

#[tokio::test]
async fn a_stored_body_that_is_not_text_is_returned_as_bytes_only() {
    const BODY: &[u8] = b"\x1f\x8b\xff";
    let database = Database::migrated().await;
    let client = database.client().await;
    let claim = |body: &str| {
        format!(
            "SELECT stored_body FROM idempotency_claim('tenant-7', 'k', 'fingerprint', 201, '[]', {body})"
        )
    };
    client.query_one(&claim("$1::bytea"), &[&BODY]).await.unwrap();
    for call in [claim("'made'"), BEGIN.replace("$1", "'k'")] {
        let error = client.query_one(&call, &[]).await.unwrap_err();
        assert_eq!(code(&error), "22021", "{call}: {error:?}");
        let hint = error.as_db_error().unwrap().hint().unwrap();
        assert!(hint.contains("idempotency_claim with body::bytea"), "{hint}");
    }
    let row = client.query_one(&claim("''::bytea"), &[]).await.unwrap();
    assert_eq!(row.get::<_, &[u8]>(0), BODY);
}

/// The block of the page that is marked as SQL and calls this function.
fn block_of_page(function: &str) -> String {
    let page = include_str!("../../../docs/patterns/idempotency-key.md");
    let blocks = page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let found = blocks.filter(|block| block.contains(function)).collect::<Vec<_>>();
    assert_eq!(found.len(), 1, "one block calls {function}");
    found[0].to_owned()
}

#[tokio::test]
async fn the_calls_of_the_page_store_the_response_that_they_show() {
    const SHOWN: &str = r#"{"id": 7}"#;
    let database = Database::migrated().await;
    let client = database.client().await;
    let orders = "DROP TABLE orders; CREATE TABLE orders (id bigint, sku text)";
    client.batch_execute(orders).await.unwrap();
    let block = block_of_page("idempotency_finish");
    assert_eq!(block.matches(SHOWN).count(), 1, "{block}");
    for (number, body) in BODIES.iter().enumerate() {
        let key = format!("8e03978e-40d5-43dd-bc93-{number:012}");
        let call = block.replace("8e03978e-40d5-43dd-bc93-6894a57f9324", &key);
        client.batch_execute(&call.replace(SHOWN, &body.replace('\'', "''"))).await.unwrap();
        let stored = "SELECT convert_from(body, 'UTF8') FROM idempotency_keys WHERE key = $1";
        let stored = client.query_one(stored, &[&key]).await.unwrap();
        assert_eq!(stored.get::<_, &str>(0), *body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_20_transactions_wins_a_key_and_others_get_its_response() {
    let database = Database::migrated().await;
    let mut attempts = Vec::new();
    for _ in 0..20 {
        let mut client = database.client().await;
        attempts.push(tokio::spawn(async move {
            let transaction = client.transaction().await.unwrap();
            let row = transaction.query_one(BEGIN, &[&"k"]).await.unwrap();
            if outcome(&row) == "won" {
                transaction.execute("INSERT INTO effects VALUES ('k')", &[]).await.unwrap();
                let finish = "SELECT idempotency_finish('tenant-7', 'k', 201, \
                    '[[\"location\", \"/orders/7\"]]', 'made')";
                transaction.execute(finish, &[]).await.unwrap();
                transaction.commit().await.unwrap();
            }
            row
        }));
    }
    let mut won = 0;
    for attempt in attempts {
        let row = attempt.await.unwrap();
        if outcome(&row) == "won" {
            won += 1;
            continue;
        }
        assert_eq!((outcome(&row), row.get(1), row.get(3)), ("done", Some(201), Some("made")));
        assert_eq!(row.get::<_, &str>(2), r#"[["location", "/orders/7"]]"#);
    }
    assert_eq!((won, database.effects().await), (1, 1));
    let other = BEGIN.replace("'fingerprint'", "'another'");
    let other = database.client().await.query_one(&other, &[&"k"]).await.unwrap();
    assert_eq!(outcome(&other), "mismatch");
}

#[tokio::test]
async fn a_rollback_frees_the_key_that_its_transaction_began() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let finish = "SELECT idempotency_finish('tenant-7', 'k', 201, '[]', 'made')";
    let error = client.execute(finish, &[]).await.unwrap_err();
    assert_eq!(code(&error), "55000", "{error:?}");
    for _ in 0..2 {
        let transaction = client.transaction().await.unwrap();
        assert_eq!(outcome(&transaction.query_one(BEGIN, &[&"k"]).await.unwrap()), "won");
        transaction.execute(finish, &[]).await.unwrap();
        transaction.rollback().await.unwrap();
    }
    // Committed without a response: nobody can be told that the request is done.
    assert_eq!(outcome(&client.query_one(BEGIN, &[&"k"]).await.unwrap()), "won");
    let error = client.query_one(BEGIN, &[&"k"]).await.unwrap_err();
    assert_eq!(code(&error), "55000", "{error:?}");
    assert!(error.as_db_error().unwrap().hint().unwrap().contains("one transaction"));
}

async fn settings(transaction: &Transaction<'_>) -> (String, String) {
    let shown = "SELECT current_setting('lock_timeout'), \
        current_setting('idle_in_transaction_session_timeout')";
    let row = transaction.query_one(shown, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_max_bounds_the_wait_and_the_idle_transaction() {
    let database = Database::migrated().await;
    let (mut holder, mut client) = (database.client().await, database.client().await);
    let held = holder.transaction().await.unwrap();
    let bounded = BEGIN.replace("'fingerprint'", "'fingerprint', wait_max => '20 ms'");
    assert_eq!(outcome(&held.query_one(&bounded, &[&"k"]).await.unwrap()), "won");
    let of_effect = ("0".to_owned(), "30s".to_owned());
    assert_eq!(settings(&held).await, of_effect);
    let unlimited = client.transaction().await.unwrap();
    let endless = BEGIN.replace("'fingerprint'", "'fingerprint', wait_max => '0 s'");
    assert_eq!(outcome(&unlimited.query_one(&endless, &[&"free"]).await.unwrap()), "won");
    assert_eq!(settings(&unlimited).await, of_effect);
    unlimited.rollback().await.unwrap();
    let second = client.transaction().await.unwrap();
    let error = second.query_one(&bounded, &[&"k"]).await.unwrap_err();
    assert_eq!(code(&error), "55P03", "{error:?}");
    second.rollback().await.unwrap();

    // The session's own limits stay, and a shorter one counts.
    let own = "SET lock_timeout = '10ms'; SET idle_in_transaction_session_timeout = '7s'";
    client.batch_execute(own).await.unwrap();
    let own = ("10ms".to_owned(), "7s".to_owned());
    let third = client.transaction().await.unwrap();
    let patient = BEGIN.replace("'fingerprint'", "'fingerprint', wait_max => '1 hour'");
    assert_eq!(outcome(&third.query_one(&patient, &[&"other"]).await.unwrap()), "won");
    assert_eq!(settings(&third).await, own);
    let error = third.query_one(&patient, &[&"k"]).await.unwrap_err();
    assert_eq!(code(&error), "55P03", "{error:?}");
}

/// The guard in Rust would call such a row corrupt, for ever.
#[tokio::test]
async fn a_response_that_cannot_be_sent_is_refused() {
    let database = Database::migrated().await;
    let client = database.client().await;
    client.query_one(BEGIN, &[&"begun"]).await.unwrap();
    for (status, headers) in [
        ("0", "[]"),
        ("100", "[]"),
        ("199", "[]"),
        ("600", "[]"),
        ("NULL", "[]"),
        ("201", "{}"),
        ("201", r#"{"a": "b"}"#),
        ("201", r#"["a"]"#),
        ("201", r#"[["a"]]"#),
        ("201", r#"[["a", 1]]"#),
        ("201", r#"[["a", "b", "c"]]"#),
        ("201", r#"[["a b", "c"]]"#),
        ("201", r#"[["", "c"]]"#),
        ("201", r#"[["x", "y"], ["a", "b\r\nset-cookie: c"]]"#),
        ("201", r#"[["a", "b\n"]]"#),
        ("201", r#"[["a", "é"]]"#),
    ] {
        for call in [
            format!("idempotency_claim('s', 'k', 'f', {status}, '{headers}', '')"),
            format!("idempotency_claim('s', 'k', 'f', {status}, '{headers}', ''::bytea)"),
            format!("idempotency_finish('tenant-7', 'begun', {status}, '{headers}', '')"),
        ] {
            let error = client.query(&format!("SELECT {call}"), &[]).await.unwrap_err();
            assert_eq!(code(&error), "22023", "{call}: {error:?}");
        }
    }
    for call in [
        "idempotency_claim('s', 'k', '', 201, '[]', '')",
        "idempotency_claim('', 'k', 'f', 201, '[]', '')",
        "idempotency_claim('s', '', 'f', 201, '[]', '')",
        "idempotency_begin('s', 'k', '')",
        "idempotency_begin('', 'k', 'f')",
        "idempotency_begin('s', '', 'f')",
    ] {
        let error = client.query(&format!("SELECT {call}"), &[]).await.unwrap_err();
        assert_eq!(code(&error), "22023", "{call}: {error:?}");
    }
    let headers = r#"[["location", "/a?b=c\td"], ["X-a_~!", ""], ["x-quote", "\"'\\"]]"#;
    let finish = "SELECT idempotency_finish('tenant-7', 'begun', 404, $1::text::jsonb, '')";
    client.execute(finish, &[&headers]).await.unwrap();
}
