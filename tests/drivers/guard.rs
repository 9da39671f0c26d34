//! The idempotency guard through other drivers: its layer in front of an endpoint with sqlx, and the bodies of responses
//! through each driver.
//!
//! Input: requests to a router, repeated and at once; bodies with characters that SQL and JSON escape. Output: responses.
//! Invariant: one effect for each key, and each response is replayed byte for byte.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use diesel::sql_types::{Binary, Jsonb, Nullable, Text};
use diesel::{Connection as _, PgConnection, QueryableByName, RunQueryDsl as _};
use postrider_patterns::idempotency::tower::IdempotencyLayer;
use postrider_patterns::idempotency::{Attempt, Guard, IdempotencyError, StoredResponse};
use postrider_patterns::migrations::{Piece, migrate};
use postrider_sandbox::postgres::{Cluster, Options};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, query_as, query_scalar};
use tokio_postgres::NoTls;
use tower::ServiceExt as _;

use sqlx_claim::SqlxClaim;

#[path = "../support/src/skip.rs"]
mod skip;
mod sqlx_claim;

const REQUESTS: usize = 100;

struct Failed;

impl From<sqlx::Error> for Failed {
    fn from(_: sqlx::Error) -> Self {
        Self
    }
}

impl From<IdempotencyError> for Failed {
    fn from(_: IdempotencyError) -> Self {
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

/// The endpoint of `docs/patterns/idempotency-key.md`.
async fn place(
    State(pool): State<PgPool>,
    Extension(attempt): Extension<Attempt>,
    Json(order): Json<Value>,
) -> Result<Response, Failed> {
    let transaction = SqlxClaim(pool.begin().await?);
    let effect = async |claim: &mut SqlxClaim<'_>| -> Result<_, Failed> {
        let insert = query_scalar("INSERT INTO orders (item) VALUES ($1) RETURNING id");
        let id: i64 = insert.bind(&order).fetch_one(&mut *claim.0).await?;
        Ok(StoredResponse::json(201, &json!({ "order": id }))?)
    };
    Ok(attempt.run_in(transaction, effect).await?.into_http())
}

/// The service, and its database.
struct Scene {
    _cluster: Cluster,
    pool: PgPool,
    router: Router,
}

impl Scene {
    async fn set() -> Self {
        let cluster = Cluster::start(&Options::default()).unwrap();
        let (mut client, connection) =
            tokio_postgres::connect(&cluster.unix_url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        migrate(&mut client, "public", &[Piece::Idempotency]).await.unwrap();
        let orders =
            "CREATE TABLE orders (id bigserial PRIMARY KEY, item jsonb CHECK (item <> '{}'))";
        client.batch_execute(orders).await.unwrap();
        let sessions =
            PgPoolOptions::new().max_connections(8).acquire_timeout(Duration::from_mins(2));
        let pool = sessions.connect(&cluster.url()).await.unwrap();
        // Redis is a cache; without it Postgres decides alone.
        let guard = Guard::without_redis().with_lock_timeout(Duration::from_millis(100));
        let account = |_: &Parts| Some("ada".to_owned());
        let layer = IdempotencyLayer::new(guard, "POST /orders", account);
        let optional = layer.clone().key_optional();
        let router = Router::new()
            .route("/orders", post(place).layer(layer))
            .route("/optional", post(place).layer(optional))
            .with_state(pool.clone());
        Self { _cluster: cluster, pool, router }
    }

    async fn place(&self, key: &str, body: &str) -> (u16, bool, String) {
        let request = Request::post("/orders").header("idempotency-key", key);
        send(self.router.clone(), request.header("content-type", "application/json"), body).await
    }

    async fn orders(&self) -> i64 {
        query_scalar("SELECT count(*) FROM orders").fetch_one(&self.pool).await.unwrap()
    }
}

/// Status, whether the response is a replay, and the body.
async fn send(
    router: Router,
    request: axum::http::request::Builder,
    body: &str,
) -> (u16, bool, String) {
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, is_replay, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_through_sqlx_and_the_layer_has_one_effect() {
    let scene = Scene::set().await;
    let made = |is_replay| (201, is_replay, r#"{"order":1}"#.to_owned());
    assert_eq!(scene.place("k", r#"{"sku": "tea"}"#).await, made(false));
    let mut repeats = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS {
        let request = Request::post("/orders").header("idempotency-key", "k");
        let request = request.header("content-type", "application/json");
        repeats.spawn(send(scene.router.clone(), request, r#"{ "sku":"tea" }"#));
    }
    for repeat in repeats.join_all().await {
        assert_eq!(repeat, made(true));
    }
    assert_eq!(scene.place("k", r#"{"sku": "coffee"}"#).await.0, 422);
    assert_eq!(scene.orders().await, 1);

    // A failure frees the key.
    assert_eq!(scene.place("failed", "{}").await.0, 503);
    assert_eq!(scene.place("failed", r#"{"sku": "tea"}"#).await.0, 201);

    // Another process has the key.
    let mut holder = scene.pool.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO idempotency_keys (scope, key, fingerprint, status, headers, body) \
         VALUES ('ada', 'held', 'f', 201, '[]', '')",
    )
    .execute(&mut *holder)
    .await
    .unwrap();
    assert_eq!(scene.place("held", r#"{"sku": "tea"}"#).await.0, 409);
    holder.rollback().await.unwrap();
    assert_eq!(scene.place("held", r#"{"sku": "tea"}"#).await.0, 201);
    assert_eq!(scene.orders().await, 3);

    // Where the key is optional, a request without one has its effect each time.
    for _ in 0..2 {
        let request = Request::post("/optional").header("content-type", "application/json");
        let placed = send(scene.router.clone(), request, r#"{"sku": "tea"}"#).await;
        assert_eq!((placed.0, placed.1), (201, false));
    }
    assert_eq!(scene.orders().await, 5);
}

/// Bodies that SQL, JSON or the escape format of bytea write in another way.
const BODIES: [&str; 6] = [
    r#"{"id": 7}"#,
    r#"{"path": "C:\\temp", "octal": "\\101"}"#,
    r#"{"name": "Zo\u00eb", "quotes": "\"a\" 'b'"}"#,
    "two\nlines\r\nand a tab\t",
    "Zoë, 東京, \u{1f375}",
    r"\x41",
];

/// A database with the functions.
async fn migrated() -> (Cluster, tokio_postgres::Client) {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let (mut client, connection) =
        tokio_postgres::connect(&cluster.unix_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    migrate(&mut client, "public", &[Piece::Idempotency]).await.unwrap();
    (cluster, client)
}

const CLAIM: &str = "SELECT stored_body FROM idempotency_claim('s', $1, 'f', 201, '[]', $2)";
const BEGIN: &str = "SELECT stored_body FROM idempotency_begin('s', $1, 'f')";
const FINISH: &str = "SELECT idempotency_finish('s', $1, 201, '[]', $2)";

#[tokio::test]
async fn through_tokio_postgres_a_body_is_replayed_as_it_was_given() {
    let (_cluster, client) = migrated().await;
    for (number, body) in BODIES.iter().enumerate() {
        let (claimed, finished) = (format!("claim-{number}"), format!("begin-{number}"));
        for expected in [None, Some(*body)] {
            let row = client.query_one(CLAIM, &[&claimed, body]).await.unwrap();
            assert_eq!(row.get::<_, Option<&str>>(0), expected);
            let row = client.query_one(BEGIN, &[&finished]).await.unwrap();
            assert_eq!(row.get::<_, Option<&str>>(0), expected);
            if expected.is_none() {
                client.query_one(FINISH, &[&finished, body]).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn through_sqlx_a_body_is_replayed_as_it_was_given() {
    let (cluster, _client) = migrated().await;
    let pool = PgPool::connect(&cluster.url()).await.unwrap();
    for (number, body) in BODIES.iter().enumerate() {
        let (claimed, finished) = (format!("claim-{number}"), format!("begin-{number}"));
        for expected in [None, Some((*body).to_owned())] {
            let row = query_as::<_, (Option<String>,)>(CLAIM).bind(&claimed).bind(*body);
            assert_eq!(row.fetch_one(&pool).await.unwrap().0, expected);
            let row = query_as::<_, (Option<String>,)>(BEGIN).bind(&finished);
            assert_eq!(row.fetch_one(&pool).await.unwrap().0, expected);
            if expected.is_none() {
                sqlx::query(FINISH).bind(&finished).bind(*body).execute(&pool).await.unwrap();
            }
        }
    }
}

#[derive(QueryableByName)]
struct Stored {
    #[diesel(sql_type = Nullable<Text>)]
    stored_body: Option<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_diesel_a_body_is_replayed_as_it_was_given() {
    let (cluster, _client) = migrated().await;
    let url = cluster.url();
    tokio::task::spawn_blocking(move || replay_through_diesel(&url)).await.unwrap();
}

fn replay_through_diesel(url: &str) {
    let mut connection = PgConnection::establish(url).unwrap();
    let connection = &mut connection;
    for (number, body) in BODIES.iter().enumerate() {
        let (claimed, finished) = (format!("claim-{number}"), format!("begin-{number}"));
        for expected in [None, Some((*body).to_owned())] {
            let claim = "SELECT stored_body FROM idempotency_claim('s', $1, $2, 201, $3, $4)";
            let row: Stored = diesel::sql_query(claim)
                .bind::<Text, _>(&claimed)
                .bind::<Binary, _>(b"f".as_slice())
                .bind::<Jsonb, _>(json!([]))
                .bind::<Text, _>(*body)
                .get_result(connection)
                .unwrap();
            assert_eq!(row.stored_body, expected);
            let row: Stored =
                diesel::sql_query(BEGIN).bind::<Text, _>(&finished).get_result(connection).unwrap();
            assert_eq!(row.stored_body, expected);
            if expected.is_none() {
                let finish = diesel::sql_query(FINISH).bind::<Text, _>(&finished);
                finish.bind::<Text, _>(*body).execute(connection).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn through_psycopg_a_body_is_replayed_as_it_was_given() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python: PathBuf = here.join("../../.servers/psycopg/bin/python");
    if !python.exists() {
        return skip::skip("drivers", "psycopg is not installed: tests/drivers/fetch-psycopg");
    }
    let (cluster, _client) = migrated().await;
    let mut program = Command::new(python)
        .arg(here.join("bodies_psycopg.py"))
        .env("DATABASE_URL", cluster.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    serde_json::to_writer(&mut input, &BODIES).unwrap();
    input.flush().unwrap();
    drop(input);
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success());
    let replayed: Vec<[String; 2]> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(replayed, BODIES.map(|body| [body.to_owned(), body.to_owned()]));
}
