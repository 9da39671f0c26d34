//! Errors of Postgres: those of the guard's own statements say what to do, those of the effect's say nothing
//! of the guard's table.

use postrider::idempotency::{
    Attempt, Guard, IdempotencyError, Outcome, Request, StoredResponse, find_claim,
};
use tokio_postgres::{Client, Transaction};

use crate::idempotency::fixture::{Database, request, response};

/// Executes the request with these statements for its effect.
async fn execute(
    mut client: Client,
    request: &Request,
    statements: &'static str,
) -> Result<Outcome, IdempotencyError> {
    let work = |attempt: Attempt| async move {
        let effect =
            async |transaction: &Transaction<'_>| -> Result<StoredResponse, IdempotencyError> {
                transaction.batch_execute(statements).await?;
                Ok(response("{}"))
            };
        attempt.run(&mut client, effect).await
    };
    Guard::without_redis().execute(request, work).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_the_situation_and_the_remedy() {
    let empty = Database::empty().await;
    let error = find_claim(&empty.client().await, &request("k")).await.unwrap_err();
    let executed = execute(empty.client().await, &request("k"), "SELECT").await.unwrap_err();
    for error in [error, executed] {
        assert!(matches!(error, IdempotencyError::Missing(_)), "{error:?}");
        let hint = error.hint().unwrap();
        for part in ["migrations::migrate", "Piece::Idempotency", "search_path", "USAGE"] {
            assert!(hint.contains(part), "{part}: {hint}");
        }
    }

    let database = Database::migrated().await;
    let client = database.client().await;
    client.batch_execute("SET ROLE pg_monitor").await.unwrap();
    let error = find_claim(&client, &request("k")).await.unwrap_err();
    let executed = execute(client, &request("k"), "SELECT").await.unwrap_err();
    for error in [error, executed] {
        assert!(matches!(error, IdempotencyError::Forbidden(_)), "{error:?}");
        let hint = error.hint().unwrap();
        for part in ["GRANT USAGE ON SCHEMA", "GRANT SELECT, INSERT, UPDATE"] {
            assert!(hint.contains(part), "{part}: {hint}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_effects_own_statements_is_not_taken_for_one_of_the_guards() {
    let database = Database::migrated().await;
    let other = database.client().await;
    other.batch_execute("BEGIN; LOCK TABLE effects IN ACCESS EXCLUSIVE MODE").await.unwrap();
    for (statements, code) in [
        ("INSERT INTO a_table_of_mine VALUES (1)", "42P01"),
        ("SET LOCAL ROLE pg_monitor; SELECT pg_reload_conf()", "42501"),
        ("LOCK TABLE effects NOWAIT", "55P03"),
    ] {
        let error = execute(database.client().await, &request("k"), statements).await.unwrap_err();
        assert!(matches!(error, IdempotencyError::Database(_)), "{code}: {error:?}");
        assert_eq!(error.database().unwrap().code().unwrap().code(), code);
        assert_eq!(error.hint(), None, "{code}");
        assert!(!error.to_string().contains("key"), "{code}: {error}");
    }
}
