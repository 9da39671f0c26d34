//! The SQL functions and the migrations, as any language uses them.
//!
//! Input: calls in transactions that compete, pieces run alone and again. Output: what each caller is told, and
//! what is stored. Invariant: of one key one claim wins; each piece of the library stands alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use postrider_patterns::migrations::{MigrateError, Piece, migrate};
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
        assert_eq!((row.get(1), row.get(3)), (Some(201), Some("made")));
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
                    2\".consumer_sequences 2\".processed_messages 3\".saga_history 3\".saga_timers 3\".sagas";
    assert_eq!(
        made.split(' ').collect::<Vec<_>>(),
        expected.split_whitespace().collect::<Vec<_>>()
    );
    // From a session that has none of the schemas in its search path.
    let marked = "SELECT \"Piece \"\"2\"\"\".inbox_mark('c', gen_random_uuid())";
    assert!(client.query_one(marked, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn a_claim_without_a_response_that_can_be_sent_is_refused() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Idempotency]).await.unwrap();
    for (status, headers) in [(201, "{}"), (0, "[]"), (600, "[]")] {
        let claim = format!("SELECT idempotency_claim('s', 'k', 'f', {status}, '{headers}', '')");
        let error = client.batch_execute(&claim).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "22023", "{error:?}");
    }
}

#[tokio::test]
async fn the_outbox_of_each_schema_is_published() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    for schema in ["team_a", "team_b", "team_a"] {
        migrate(&mut client, schema, &[Piece::Outbox]).await.unwrap();
    }
    let published = "SELECT string_agg(schemaname, ' ' ORDER BY schemaname) \
        FROM pg_publication_tables WHERE pubname = 'postrider' AND tablename = 'outbox'";
    let published: String = client.query_one(published, &[]).await.unwrap().get(0);
    assert_eq!(published, "team_a team_b");
}

#[tokio::test]
async fn what_is_there_already_is_not_locked_and_needs_no_owner() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &Piece::ALL).await.unwrap();
    client.batch_execute("CREATE ROLE app LOGIN; GRANT INSERT ON outbox TO app").await.unwrap();
    let mut writer = connect(&cluster).await;
    let writing = writer.transaction().await.unwrap();
    let write =
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', '1', 'A')";
    writing.batch_execute(write).await.unwrap();
    // Postgres refuses to wait for the writer's lock, and refuses who is not the owner.
    client.batch_execute("SET lock_timeout = '1ms'; SET ROLE app").await.unwrap();
    migrate(&mut client, "public", &Piece::ALL).await.unwrap();

    // What has to change waits for 5 s at most, and everybody behind it.
    client.batch_execute("RESET ROLE; COMMENT ON TABLE outbox_sequences IS NULL").await.unwrap();
    let error = migrate(&mut client, "public", &Piece::ALL).await.unwrap_err();
    assert!(matches!(error, MigrateError::Busy(_)), "{error:?}");
    writing.commit().await.unwrap();
    migrate(&mut client, "public", &Piece::ALL).await.unwrap();
    // What somebody dropped is made again, and a comment of one's own stays.
    client
        .batch_execute("DROP TABLE consumer_offsets; DROP FUNCTION outbox_tombstone(text, text, text, uuid, text), \
             outbox_tombstone(text, bigint, text, uuid, text), outbox_tombstone(text, uuid, text, uuid, text); \
             COMMENT ON TABLE sagas IS 'ours'")
        .await
        .unwrap();
    migrate(&mut client, "public", &Piece::ALL).await.unwrap();
    let kept =
        "SELECT to_regclass('consumer_offsets') IS NOT NULL, obj_description('sagas'::regclass)";
    let kept = client.query_one(kept, &[]).await.unwrap();
    assert_eq!((kept.get(0), kept.get(1)), (true, "ours"));
}

/// As while a new version is rolled out, and an instance of the one before is started again.
#[tokio::test]
async fn what_a_later_version_has_made_is_left_as_it_is() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Inbox]).await.unwrap();
    let body = "SELECT prosrc FROM pg_proc WHERE proname = 'inbox_mark'";
    let later = "CREATE OR REPLACE FUNCTION inbox_mark(consumer text, message_id uuid) \
        RETURNS boolean LANGUAGE sql AS 'SELECT true'";
    for (comment, is_kept) in [("postrider 999.0.0 later", true), ("postrider 0.0.1 x", false)] {
        let comment = format!("COMMENT ON TABLE processed_messages IS '{comment}'");
        client.batch_execute(&format!("{later}; {comment}")).await.unwrap();
        migrate(&mut client, "public", &[Piece::Inbox]).await.unwrap();
        let body: String = client.query_one(body, &[]).await.unwrap().get(0);
        assert_eq!(body == "SELECT true", is_kept, "{comment}");
    }
}

#[tokio::test]
async fn constraints_and_indexes_of_the_application_stay_whatever_their_names() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Outbox]).await.unwrap();
    client
        .batch_execute(
            "ALTER TABLE outbox ADD CHECK (payload <> 'null'); \
             CREATE INDEX outbox_created_at ON outbox (created_at); \
             COMMENT ON TABLE outbox_sequences IS NULL",
        )
        .await
        .unwrap();
    migrate(&mut client, "public", &[Piece::Outbox]).await.unwrap();
    let kept = "SELECT count(*) FROM (SELECT conname FROM pg_constraint \
            UNION ALL SELECT relname FROM pg_class) AS kept (name) \
        WHERE name IN ('outbox_payload_check', 'outbox_created_at')";
    assert_eq!(client.query_one(kept, &[]).await.unwrap().get::<_, i64>(0), 2);
}

#[tokio::test]
async fn functions_find_their_tables_whoever_calls_them() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let client = connect(&cluster).await;
    // By psql: the default search path has a schema named like the role first.
    let role: String = client.query_one("SELECT current_user::text", &[]).await.unwrap().get(0);
    client.batch_execute(&format!("CREATE SCHEMA \"{role}\"")).await.unwrap();
    for piece in [Piece::Outbox, Piece::Inbox, Piece::Idempotency] {
        client.batch_execute(&piece.sql()).await.unwrap();
    }
    client
        .batch_execute(&format!(
            "CREATE ROLE app LOGIN; GRANT USAGE, CREATE ON SCHEMA \"{role}\", public TO app; \
             GRANT ALL ON ALL TABLES IN SCHEMA \"{role}\" TO app; \
             SET ROLE app; \
             CREATE TEMP TABLE outbox (LIKE \"{role}\".outbox); \
             CREATE TEMP TABLE processed_messages (LIKE \"{role}\".processed_messages); \
             SELECT \"{role}\".outbox_append('a', '1', 'A', '{{}}'); \
             SELECT \"{role}\".inbox_mark('c', gen_random_uuid())"
        ))
        .await
        .unwrap();
    for table in ["outbox", "processed_messages"] {
        let rows = format!("SELECT count(*) FROM \"{role}\".{table}");
        assert_eq!(client.query_one(&rows, &[]).await.unwrap().get::<_, i64>(0), 1, "{table}");
    }
}

#[tokio::test]
async fn arrays_of_several_dimensions_have_as_many_payloads_as_events() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let mut client = connect(&cluster).await;
    migrate(&mut client, "public", &[Piece::Outbox]).await.unwrap();
    let four = "'{{a,a},{a,a}}'::text[]";
    let ids = "(SELECT array_agg(gen_random_uuid()) FROM generate_series(1, 4))";
    let append = format!(
        "SELECT outbox_append_all({four}, {four}, {four}, ARRAY['1', '2']::jsonb[], {ids})"
    );
    let error = client.batch_execute(&append).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "2202E", "{error:?}");
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
