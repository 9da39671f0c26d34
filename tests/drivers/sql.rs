//! The SQL functions and the migrations, as any language uses them.
//!
//! Input: calls in transactions that compete, pieces run alone and again. Output: what each caller is told, and
//! what is stored. Invariant: of one key one claim wins; each piece of the library stands alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use postrider_patterns::migrations::{Piece, migrate};
use postrider_sandbox::postgres::{Cluster, Options};
use tokio_postgres::{Client, NoTls, Row};

const CLAIM: &str = "SELECT outcome, stored_status, stored_headers::text, stored_body \
    FROM idempotency_claim('POST /orders', $1, $2, 201, '[[\"location\",\"/orders/7\"]]', 'made')";

async fn connect(cluster: &Cluster) -> Client {
    let (client, connection) = tokio_postgres::connect(&cluster.unix_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn outcome(row: &Row) -> String {
    row.get(0)
}

#[tokio::test]
async fn of_20_transactions_that_claim_one_key_one_wins_and_the_others_get_its_response() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Idempotency]).await.unwrap();
    let mut claims = Vec::new();
    for _ in 0..20 {
        let mut client = connect(&cluster).await;
        claims.push(tokio::spawn(async move {
            let transaction = client.transaction().await.unwrap();
            let row = transaction.query_one(CLAIM, &[&"key", &&b"one"[..]]).await.unwrap();
            // The loser has nothing to commit.
            transaction.commit().await.unwrap();
            row
        }));
    }
    let mut won = 0;
    for claim in claims {
        let row = claim.await.unwrap();
        if outcome(&row) == "won" {
            won += 1;
            continue;
        }
        assert_eq!(outcome(&row), "done");
        assert_eq!((row.get(1), row.get(3)), (Some(201), Some(b"made".to_vec())));
        assert_eq!(row.get::<_, String>(2), r#"[["location", "/orders/7"]]"#);
    }
    assert_eq!(won, 1);
    let other = client.query_one(CLAIM, &[&"key", &&b"two"[..]]).await.unwrap();
    assert_eq!(outcome(&other), "mismatch");
}

#[tokio::test]
async fn a_claim_that_is_rolled_back_leaves_the_key_to_the_next() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Idempotency]).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let row = transaction.query_one(CLAIM, &[&"key", &&b"one"[..]]).await.unwrap();
    assert_eq!(outcome(&row), "won");
    transaction.rollback().await.unwrap();
    let row = client.query_one(CLAIM, &[&"key", &&b"two"[..]]).await.unwrap();
    assert_eq!(outcome(&row), "won");
}

#[tokio::test]
async fn each_piece_stands_alone_in_a_schema_of_any_name_and_may_be_run_again() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    for (number, piece) in Piece::ALL.into_iter().enumerate() {
        let schema = format!("Piece \"{number}\"");
        for _ in 0..2 {
            migrate(&mut client, &schema, &[piece]).await.unwrap();
        }
    }
    let made = client
        .query_one(
            "SELECT string_agg(format('%s.%s', schemaname, tablename), ' ' ORDER BY 1) \
             FROM (SELECT right(schemaname, 2) AS schemaname, tablename FROM pg_tables \
                 WHERE schemaname LIKE 'Piece%' OR schemaname = 'public' ORDER BY 1, 2) AS made",
            &[],
        )
        .await
        .unwrap();
    let made: String = made.get(0);
    let expected = "0\".outbox 0\".outbox_sequences 1\".idempotency_keys 2\".consumer_offsets \
                    2\".processed_messages 3\".saga_history 3\".saga_timers 3\".sagas";
    assert_eq!(
        made.split(' ').collect::<Vec<_>>(),
        expected.split_whitespace().collect::<Vec<_>>()
    );
    // From a session that has none of the schemas in its search path.
    let marked = "SELECT \"Piece \"\"2\"\"\".inbox_mark('c', gen_random_uuid())";
    assert!(client.query_one(marked, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn services_that_start_at_once_may_all_migrate() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut starts = Vec::new();
    for _ in 0..10 {
        let mut client = connect(&cluster).await;
        starts.push(tokio::spawn(
            async move { migrate(&mut client, "messaging", &Piece::ALL).await },
        ));
    }
    for start in starts {
        start.await.unwrap().unwrap();
    }
}
