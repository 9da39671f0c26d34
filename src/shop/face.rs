//! Health and metrics of a service over HTTP.
//!
//! Enters: named numbers, read when somebody asks, and the consumer of the service, if it has one.
//! Leaves: `/livez`, `/readyz` and `/metrics` in Prometheus's text format. What always holds: readiness
//! asks the database whether it takes writes, and the consumer where the service is no use without it.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use deadpool_postgres::{Object, Pool, PoolError};
use tokio_postgres::SimpleQueryMessage;

use super::error::is_login_refused;
use postrider_patterns::inbox::{Counters, Snapshot, Standing};
use postrider_service::prometheus::{CONTENT_TYPE, Page};

const SILENT: &str = "the database does not answer";
const NO_WRITES: &str = "the database takes no writes";
const REFUSED: &str = "the database refuses the login";

/// A number: its name, what it counts, and how much it is now. One that only grows is named `.._total`.
pub(super) type Count = (&'static str, &'static str, u64);

/// The consumer of a service, and whether the service is not ready while that cannot work.
#[derive(Clone)]
struct Watched {
    counters: Arc<Counters>,
    is_vital: bool,
}

/// What a service shows of itself.
#[derive(Clone)]
pub(super) struct Face {
    pool: Pool,
    counts: Arc<dyn Fn() -> Vec<Count> + Send + Sync>,
    consumer: Option<Watched>,
}

impl Face {
    /// A face that reads its numbers from `counts` each time.
    pub(super) fn new(pool: Pool, counts: impl Fn() -> Vec<Count> + Send + Sync + 'static) -> Self {
        Self { pool, counts: Arc::new(counts), consumer: None }
    }

    /// Shows this consumer, without which the service is of no use.
    pub(super) fn needing(self, counters: Arc<Counters>) -> Self {
        Self { consumer: Some(Watched { counters, is_vital: true }), ..self }
    }

    /// Shows this consumer, without which the service can be ready.
    pub(super) fn beside(self, counters: Arc<Counters>) -> Self {
        Self { consumer: Some(Watched { counters, is_vital: false }), ..self }
    }

    /// Its routes.
    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn ready(State(face): State<Face>) -> Response {
    let vital = face.consumer.as_ref().filter(|consumer| consumer.is_vital);
    if let Some(why) = vital.and_then(|consumer| consumer.counters.standing().obstacle()) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    }
    match obstacle(&face.pool).await {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// Why the database is of no use.
async fn obstacle(pool: &Pool) -> Option<&'static str> {
    let client = match pool.get().await {
        Ok(client) => client,
        Err(PoolError::Backend(error)) if is_refused(&error) => return Some(NO_WRITES),
        Err(PoolError::Backend(error)) if is_login_refused(&error) => return Some(REFUSED),
        Err(_) => return Some(SILENT),
    };
    let Ok(answers) = client.simple_query("SHOW transaction_read_only").await else {
        return Some(SILENT);
    };
    let takes_writes = answers
        .iter()
        .any(|answer| matches!(answer, SimpleQueryMessage::Row(row) if row.get(0) == Some("off")));
    if takes_writes {
        return None;
    }
    // The next session may lead to another server.
    drop(Object::take(client));
    Some(NO_WRITES)
}

/// Whether the client refused the server for taking no writes, which is what `target_session_attrs`
/// asks for. An error of the system has a number of its own.
fn is_refused(error: &tokio_postgres::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| {
        cause.kind() == io::ErrorKind::PermissionDenied && cause.raw_os_error().is_none()
    })
}

async fn metrics(State(face): State<Face>) -> Response {
    let mut all = (face.counts)();
    if let Some(Watched { counters, .. }) = &face.consumer {
        all.extend(counts(&counters.snapshot()));
        all.extend(gauges(&counters.standing()));
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(&all)).into_response()
}

/// What a consumer has done.
fn counts(consumer: &Snapshot) -> Vec<Count> {
    vec![
        ("shop_messages_processed_total", "messages that had their effect", consumer.processed),
        ("shop_messages_repeated_total", "messages that had had it", consumer.duplicates),
        ("shop_dead_letters_total", "messages set aside", consumer.dead_letters),
        ("shop_retries_total", "attempts after a failure", consumer.retries),
        ("shop_cache_hits_total", "repeats that Redis knew", consumer.cache_hits),
        ("shop_cache_misses_total", "questions to the database", consumer.cache_misses),
        ("shop_cache_failures_total", "questions Redis did not answer", consumer.cache_failures),
    ]
}

/// What is not known is not shown.
fn gauges(standing: &Standing) -> Vec<Count> {
    let Standing { partitions, lag_messages, .. } = *standing;
    let lag = ("shop_consumer_lag_messages", "messages that are not settled yet", lag_messages);
    let partitions = ("shop_consumer_partitions", "partitions it holds", Some(partitions));
    let known = |(name, help, value): (_, _, Option<u64>)| Some((name, help, value?));
    [partitions, lag].into_iter().filter_map(known).collect()
}

fn text(counts: &[Count]) -> String {
    let mut page = Page::new("");
    for (name, help, value) in counts {
        page.single(name, help, value);
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body;
    use axum::extract::State;
    use axum::http::StatusCode;

    use super::{Face, Standing, gauges, metrics, ready, text};
    use crate::settings::{database, pool};

    /// Its database is nowhere.
    fn face() -> Face {
        let nowhere = database("postgres://nobody@127.0.0.1:1/none?sslmode=disable").unwrap();
        Face::new(pool(&nowhere).unwrap(), Vec::new)
    }

    async fn refused(face: Face) -> String {
        let answer = ready(State(face)).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let bytes = body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_service_is_ready_with_its_consumer_only_where_that_is_vital() {
        assert!(refused(face().needing(Arc::default())).await.contains("not joined"));
        assert!(refused(face().beside(Arc::default())).await.contains("database does not answer"));
        assert!(refused(face()).await.contains("database does not answer"));
    }

    #[tokio::test]
    async fn a_consumer_shows_its_gauges_and_not_what_it_does_not_know() {
        let answer = metrics(State(face().beside(Arc::default()))).await;
        let bytes = body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let page = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(page.contains("# TYPE shop_consumer_partitions gauge\n"), "{page}");
        assert!(!page.contains("lag"), "{page}");
        let known = Standing { lag_messages: Some(7), ..Standing::default() };
        let page = text(&gauges(&known));
        assert!(page.contains("\nshop_consumer_lag_messages 7\n"), "{page}");
    }
}
