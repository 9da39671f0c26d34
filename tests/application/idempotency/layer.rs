//! The guard as a layer in front of an endpoint, over HTTP: what it refuses, replays, and lets through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use postrider::idempotency::tower::IdempotencyLayer;
use postrider::idempotency::{Attempt, Guard, StoredResponse};
use tokio::net::TcpListener;
use tokio_postgres::Transaction;

use crate::idempotency::dropped::lasting;
use crate::idempotency::execute::{Failed, Pool, record};
use crate::idempotency::fixture::{Database, command, guarded};
use support::http;

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

/// Sends a request, from a thread that may wait.
pub(crate) async fn send(address: SocketAddr, head: &str, body: &str) -> http::Response {
    let (head, body) = (head.to_owned(), body.to_owned());
    let sent = move || http::send(&address.to_string(), &head, body.as_bytes());
    tokio::task::spawn_blocking(sent).await.unwrap().unwrap()
}

#[derive(Clone)]
struct Service {
    pool: Arc<Pool>,
    /// Whether the endpoint fails.
    fails: Arc<AtomicBool>,
}

async fn place(
    State(service): State<Service>,
    Extension(attempt): Extension<Attempt>,
    body: Bytes,
) -> Result<Response, Failed> {
    if service.fails.load(Ordering::Relaxed) {
        return Err(Failed::Effect);
    }
    let mut client = service.pool.session(0).lock().await;
    let effect = async |transaction: &Transaction<'_>| -> Result<StoredResponse, Failed> {
        match attempt.request() {
            Some(request) => record(transaction, request).await?,
            None => transaction.batch_execute("INSERT INTO effects VALUES ('none')").await?,
        }
        if body == "ignored" {
            assert!(transaction.execute("SELECT 1/0", &[]).await.is_err());
        }
        Ok(StoredResponse::new(201, Vec::new(), body)?.with_header("location", "/orders/1")?)
    };
    Ok(attempt.run(&mut client, effect).await?.into_http())
}

/// Where the caller is who the client says: something before the layer has checked it.
fn caller(parts: &Parts) -> Option<String> {
    Some(parts.headers.get("account")?.to_str().ok()?.to_owned())
}

async fn serve(service: Service, guard: Guard) -> SocketAddr {
    let guarded = |operation: &str| {
        let guarded = IdempotencyLayer::new(guard.clone(), operation, caller);
        guarded.body_bytes_max(100).body_time_max(Duration::from_mins(1))
    };
    let orders = post(place).get(|| async { "nothing is guarded here" });
    // It has forgotten the attempt.
    let forgotten = post(|| async { "done" });
    // Where the layer is, both have the URI `/x`.
    let [euros, dollars] = ["POST /payments-eur/x", "POST /payments-usd/x"]
        .map(|operation| Router::new().route("/x", post(place).layer(guarded(operation))));
    // The layer is outside of it, and sees the whole URI.
    let outside = Router::new().route("/pay", post(place));
    let router = Router::new()
        .route("/orders", orders.layer(guarded("POST /orders")))
        .route("/forgotten", forgotten.layer(guarded("POST /forgotten")))
        .route("/old", post(place).layer(guarded("POST /old").key_optional()))
        .nest("/payments-eur", euros)
        .nest("/payments-usd", dollars)
        .merge(Router::new().nest("/accounts/{id}", outside).layer(guarded("POST /accounts")));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router.with_state(service)).await });
    address
}

/// The service, its database, and what must outlive both.
struct Scene {
    redis: postrider::sandbox::redis::Redis,
    database: Database,
    fails: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Scene {
    async fn set() -> Self {
        let (redis, guard) = guarded(&lasting());
        let database = Database::migrated().await;
        let service = Service { pool: Pool::of(&database, 1).await, fails: Arc::default() };
        let fails = Arc::clone(&service.fails);
        let address = serve(service, guard).await;
        Self { redis, database, fails, address }
    }

    async fn place(&self, account: &str, key: &str, body: &str) -> http::Response {
        self.place_at("/orders", account, key, body).await
    }

    async fn place_at(&self, path: &str, account: &str, key: &str, body: &str) -> http::Response {
        let head = format!(
            "POST {path} HTTP/1.1\r\ncontent-type: application/json\r\naccount: {account}\r\n\
             idempotency-key: {key}"
        );
        send(self.address, &head, body).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_gets_the_same_response_however_its_json_is_written() {
    let scene = Scene::set().await;
    let first = scene.place("ada", "k", r#"{"cents": 1.0, "sku": "tea"}"#).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
    let again = scene.place("ada", "k", r#"{"sku":"t\u0065a","cents":1.00}"#).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!((&again.body, again.header("location")), (&first.body, Some("/orders/1")));
    let other = scene.place("ada", "k", r#"{"sku":"tea","cents":1.01}"#).await;
    assert_eq!((other.status, other.json()["field"].as_str()), (422, Some("idempotency-key")));
    assert_eq!(other.header("content-type"), Some("application/problem+json"));
    assert_eq!(scene.database.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_of_another_caller_is_another_key() {
    let scene = Scene::set().await;
    for account in ["ada", "bob"] {
        let placed = scene.place(account, "k", "{}").await;
        assert_eq!((placed.status, placed.header("idempotent-replayed")), (201, None));
    }
    assert_eq!(scene.database.effects().await, 2);
}

/// A router that nests others strips their prefixes, so the layers see one URI.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_for_the_same_path_under_another_prefix_is_a_mismatch() {
    let scene = Scene::set().await;
    assert_eq!(scene.place_at("/payments-eur/x", "ada", "k", "{}").await.status, 201);
    let other = scene.place_at("/payments-usd/x", "ada", "k", "{}").await;
    assert_eq!((other.status, other.json()["field"].as_str()), (422, Some("idempotency-key")));
    let again = scene.place_at("/payments-eur/x", "ada", "k", "{}").await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(scene.database.effects().await, 1);
}

/// No name tells them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_outside_of_a_nested_router_tells_the_parameters_of_its_prefix_apart() {
    let scene = Scene::set().await;
    assert_eq!(scene.place_at("/accounts/1/pay", "ada", "k", "{}").await.status, 201);
    let other = scene.place_at("/accounts/2/pay", "ada", "k", "{}").await;
    assert_eq!((other.status, other.json()["field"].as_str()), (422, Some("idempotency-key")));
    assert_eq!(scene.database.effects().await, 1);
}

/// Whose clients do not send keys yet, nor say who they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_key_is_optional_a_request_without_one_has_its_effect_each_time() {
    let scene = Scene::set().await;
    let large = "x".repeat(101);
    for body in ["{}", "{}", &large] {
        let placed = send(scene.address, "POST /old HTTP/1.1", body).await;
        assert_eq!((placed.status, placed.body.as_str()), (201, body), "{placed:?}");
        assert_eq!(placed.header("idempotent-replayed"), None);
    }
    let count = "SELECT count(*) FROM idempotency_keys";
    let client = scene.database.client().await;
    assert_eq!(client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 0);
    assert_eq!(command(&scene.redis, "DBSIZE").await, redis::Value::Int(0));
    assert_eq!(scene.database.effects().await, 3);

    // The server would answer its COMMIT without an error, and roll it back.
    assert_eq!(send(scene.address, "POST /old HTTP/1.1", "ignored").await.status, 503);
    scene.fails.store(true, Ordering::Relaxed);
    assert_eq!(send(scene.address, "POST /old HTTP/1.1", "{}").await.status, 503);
    scene.fails.store(false, Ordering::Relaxed);
    assert_eq!(scene.database.effects().await, 3);

    let unusable = "POST /old HTTP/1.1\r\naccount: ada\r\nidempotency-key:";
    assert_eq!(send(scene.address, unusable, "{}").await.status, 400);
    for replayed in [None, Some("true")] {
        let placed = scene.place_at("/old", "ada", "k", "{}").await;
        assert_eq!((placed.status, placed.header("idempotent-replayed")), (201, replayed));
    }
    assert_eq!(scene.database.effects().await, 4);
}

/// The key is free before the failure's response is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_the_retry_is_never_told_to_wait() {
    let scene = Scene::set().await;
    for number in 0..50 {
        let key = number.to_string();
        scene.fails.store(true, Ordering::Relaxed);
        assert_eq!(scene.place("ada", &key, "{}").await.status, 503);
        scene.fails.store(false, Ordering::Relaxed);
        assert_eq!(scene.place("ada", &key, "{}").await.status, 201, "{number}");
    }
    assert_eq!(scene.database.effects().await, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_guarded_is_refused_and_what_changes_nothing_passes() {
    let scene = Scene::set().await;
    let large = "x".repeat(101);
    let cases = [
        ("POST /orders HTTP/1.1\r\naccount: ada", "", 400, Some("idempotency-key")),
        (
            "POST /orders HTTP/1.1\r\naccount: ada\r\nidempotency-key:",
            "",
            400,
            Some("idempotency-key"),
        ),
        (
            "POST /orders HTTP/1.1\r\naccount: ada\r\nidempotency-key: a\r\nidempotency-key: b",
            "",
            400,
            Some("idempotency-key"),
        ),
        ("POST /orders HTTP/1.1\r\nidempotency-key: k", "", 403, None),
        ("POST /orders HTTP/1.1\r\naccount: ada\r\nidempotency-key: k", &large, 413, Some("body")),
        ("POST /forgotten HTTP/1.1\r\naccount: ada\r\nidempotency-key: k", "", 500, None),
    ];
    for (head, body, status, field) in cases {
        let refused = send(scene.address, head, body).await;
        assert_eq!(refused.status, status, "{head}: {refused:?}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{head}");
        assert_eq!(refused.json()["field"].as_str(), field, "{head}");
    }
    assert_eq!(send(scene.address, "GET /orders HTTP/1.1", "").await.status, 200);
    assert_eq!(scene.database.effects().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_progress_is_409_with_retry_after() {
    let scene = Scene::set().await;
    let blocker = scene.database.client().await;
    blocker.batch_execute("BEGIN; LOCK TABLE effects IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let (first, second) = tokio::join!(scene.place("ada", "k", "{}"), async {
        scene.database.await_blocked(1).await;
        let second = scene.place("ada", "k", "{}").await;
        blocker.batch_execute("COMMIT").await.unwrap();
        second
    });
    assert_eq!((second.status, second.header("retry-after")), (409, Some("1")));
    assert_eq!(first.status, 201);
}
