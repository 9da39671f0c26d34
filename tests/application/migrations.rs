//! `migrate()` where a role has few rights, and where sessions have another isolation level.

use postrider_patterns::migrations::{MigrateError, Piece, migrate};

use crate::database::Stage;
use support::unique;

/// The functions of the version before, with the parameters that they had.
const FORMER_FUNCTIONS: &str = "
    CREATE OR REPLACE FUNCTION outbox_append(aggregate_type text, aggregate_id text, event_type text,
        payload jsonb, id uuid DEFAULT gen_random_uuid(), traceparent text DEFAULT NULL)
    RETURNS bigint LANGUAGE sql AS 'SELECT 17::bigint';
    CREATE OR REPLACE FUNCTION outbox_append_all(aggregate_types text[], aggregate_ids text[],
        event_types text[], payloads jsonb[], ids uuid[], traceparents text[] DEFAULT NULL)
    RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 17::bigint';
    CREATE OR REPLACE FUNCTION idempotency_claim(scope text, key text, fingerprint bytea, status integer,
        headers jsonb, body bytea, OUT outcome text, OUT stored_status integer,
        OUT stored_headers jsonb, OUT stored_body bytea)
    LANGUAGE sql AS 'SELECT ''won'', NULL::integer, NULL::jsonb, NULL::bytea'";

/// Calls of each function, also with as few parameters as it takes.
const CALLS: [&str; 13] = [
    "outbox_append('order', '1', 'Paid', '{}')",
    "outbox_append('order', 1, 'Paid', '{}')",
    "outbox_append('order', gen_random_uuid(), 'Paid', '{}')",
    "outbox_tombstone('order', '1', 'Paid')",
    "outbox_tombstone('order', 1, 'Paid')",
    "outbox_tombstone('order', gen_random_uuid(), 'Paid')",
    "outbox_append_all('{order}', '{1}', '{Paid}', '{\"{}\"}', ARRAY[gen_random_uuid()])",
    "outbox_append_all('{order}', '{1}', '{Paid}', '{\"{}\"}', ARRAY[gen_random_uuid()], NULL)",
    "outbox_append_all('{order}', '{1}', '{Paid}', '{NULL}', ARRAY[gen_random_uuid()], NULL, '{t}')",
    "idempotency_begin('tenant', 'a', 'request')",
    "idempotency_finish('tenant', 'a', 201, '[]', '{}')",
    "idempotency_claim('tenant', 'b', 'request', 201, '[]', '{}')",
    "idempotency_claim('tenant', 'c', 'request', 201, '[]', '{}'::bytea)",
];

/// As after an update of the library, when the publication is there already.
#[tokio::test]
async fn a_piece_is_made_anew_by_a_role_that_owns_it_and_nothing_else() {
    let (stage, mut client) = Stage::empty().await;
    let [team_a, team_b] = ["team_a", "team_b"].map(unique);
    client
        .batch_execute(&format!(
            "CREATE ROLE {team_a}; CREATE ROLE {team_b};
             GRANT CREATE ON DATABASE {} TO {team_a}, {team_b}; SET ROLE {team_a}",
            stage.name()
        ))
        .await
        .unwrap();
    migrate(&mut client, "a", &Piece::ALL).await.unwrap();
    client.batch_execute("COMMENT ON TABLE a.outbox_sequences IS NULL").await.unwrap();
    migrate(&mut client, "a", &Piece::ALL).await.unwrap();

    // Another one's outbox is published by a third: it may not look into the first one's schema.
    client.batch_execute("RESET ROLE").await.unwrap();
    migrate(&mut client, "b", &[Piece::Outbox]).await.unwrap();
    client
        .batch_execute(&format!(
            "ALTER SCHEMA b OWNER TO {team_b}; ALTER TABLE b.outbox OWNER TO {team_b};
             ALTER TABLE b.outbox_sequences OWNER TO {team_b};
             DO $$ DECLARE function regprocedure; BEGIN
                 FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = 'b'::regnamespace LOOP
                     EXECUTE format('ALTER FUNCTION %s OWNER TO {team_b}', function);
                 END LOOP;
             END $$;
             COMMENT ON TABLE b.outbox_sequences IS NULL; SET ROLE {team_b}"
        ))
        .await
        .unwrap();
    migrate(&mut client, "b", &[Piece::Outbox]).await.unwrap();
}

#[tokio::test]
async fn an_error_of_migrate_names_the_situation_and_the_fix() {
    let (_stage, mut client) = Stage::empty().await;
    let app = unique("app");
    client.batch_execute(&format!("CREATE ROLE {app}; SET ROLE {app}")).await.unwrap();
    let error = migrate(&mut client, "public", &[Piece::Inbox]).await.unwrap_err();
    assert!(matches!(error, MigrateError::Forbidden(_)), "{error:?}");
    assert!(error.hint().unwrap().contains("GRANT CREATE ON SCHEMA"), "{error:?}");
    assert_eq!(error.database().code().unwrap().code(), "42501");
}

#[tokio::test]
async fn an_update_keeps_and_extends_the_grants_of_functions() {
    let (_stage, mut client) = Stage::empty().await;
    let [app, other] = ["The App", "other"].map(unique);
    client.batch_execute(&format!("CREATE ROLE \"{app}\"; CREATE ROLE {other}")).await.unwrap();
    // The second time, no new function is granted to PUBLIC.
    for (schema, before) in
        [("a", ""), ("b", "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")]
    {
        client
            .batch_execute(&format!(
                "{before}; CREATE SCHEMA {schema}; SET search_path TO {schema}; {FORMER_FUNCTIONS};
                 REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
                 GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO \"{app}\""
            ))
            .await
            .unwrap();
        migrate(&mut client, schema, &Piece::ALL).await.unwrap();
        client
            .batch_execute(&format!(
                "GRANT USAGE ON SCHEMA {schema} TO \"{app}\", {other};
                 GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO \"{app}\", {other}"
            ))
            .await
            .unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(&format!("SET LOCAL ROLE \"{app}\"")).await.unwrap();
        for call in CALLS {
            transaction.batch_execute(&format!("SELECT {call}")).await.unwrap();
        }
        transaction.commit().await.unwrap();
        client.batch_execute(&format!("SET ROLE {other}")).await.unwrap();
        for call in CALLS {
            let error = client.batch_execute(&format!("SELECT {call}")).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "42501", "{call}");
        }
        client.batch_execute("RESET ROLE").await.unwrap();
    }
}

/// As where a build with the same version number starts again while another one is rolled out.
#[tokio::test]
async fn functions_that_the_version_before_puts_back_make_no_call_ambiguous() {
    let (_stage, mut client) = Stage::empty().await;
    migrate(&mut client, "public", &Piece::ALL).await.unwrap();
    client.batch_execute(FORMER_FUNCTIONS).await.unwrap();
    for anew in [false, true] {
        let transaction = client.transaction().await.unwrap();
        for call in CALLS {
            transaction.batch_execute(&format!("SELECT {call}")).await.unwrap();
        }
        transaction.rollback().await.unwrap();
        if !anew {
            client.batch_execute("COMMENT ON TABLE outbox_sequences IS NULL").await.unwrap();
            migrate(&mut client, "public", &Piece::ALL).await.unwrap();
        }
    }
}

/// Their snapshots are of the time before they had the lock.
#[tokio::test]
async fn services_of_any_isolation_level_may_all_migrate_at_once() {
    let (stage, _) = Stage::empty().await;
    let mut starts = Vec::new();
    for level in ["read committed", "repeatable read", "serializable"].repeat(3) {
        let mut client = stage.connect().await;
        let level = format!("SET default_transaction_isolation = '{level}'");
        client.batch_execute(&level).await.unwrap();
        starts.push(tokio::spawn(
            async move { migrate(&mut client, "messaging", &Piece::ALL).await },
        ));
    }
    for start in starts {
        start.await.unwrap().unwrap();
    }
}
