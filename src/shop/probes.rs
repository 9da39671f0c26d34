//! Probes and metrics of a service: `/livez`, `/readyz` and `/metrics`. `/readyz` succeeds only
//! while the database accepts writes and a required consumer works.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use deadpool_postgres::{Object, Pool, PoolError};
use tokio_postgres::SimpleQueryMessage;

use super::error::is_login_refused;
use postrider_patterns::inbox::{ConsumerCounters, ConsumerSnapshot, ConsumerStatus};
use postrider_service::http::metrics_response;
use postrider_service::prometheus::{Metrics, Page};

const UNAVAILABLE: &str = "the database does not answer";
const READ_ONLY: &str = "the database is read-only";
const LOGIN_REFUSED: &str = "the database refuses the login";

/// Name (a counter's ends in `_total`), help text, value.
pub(super) type Metric = (&'static str, &'static str, u64);

#[derive(Clone)]
struct ServiceConsumer {
    counters: Arc<ConsumerCounters>,
    is_required: bool,
}

#[derive(Clone)]
pub(super) struct Probes {
    pool: Pool,
    counts: Arc<dyn Fn() -> Vec<Metric> + Send + Sync>,
    consumer: Option<ServiceConsumer>,
}

impl Probes {
    pub(super) fn new(
        pool: Pool,
        counts: impl Fn() -> Vec<Metric> + Send + Sync + 'static,
    ) -> Self {
        Self { pool, counts: Arc::new(counts), consumer: None }
    }

    pub(super) fn with_required_consumer(self, counters: Arc<ConsumerCounters>) -> Self {
        Self { consumer: Some(ServiceConsumer { counters, is_required: true }), ..self }
    }

    /// The service can be ready without it.
    pub(super) fn with_optional_consumer(self, counters: Arc<ConsumerCounters>) -> Self {
        Self { consumer: Some(ServiceConsumer { counters, is_required: false }), ..self }
    }

    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn ready(State(probes): State<Probes>) -> Response {
    let required = probes.consumer.as_ref().filter(|consumer| consumer.is_required);
    if let Some(why) = required.and_then(|consumer| consumer.counters.status().not_ready_reason()) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    }
    match not_ready_reason(&probes.pool).await {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn not_ready_reason(pool: &Pool) -> Option<&'static str> {
    let client = match pool.get().await {
        Ok(client) => client,
        Err(PoolError::Backend(error)) if is_refused(&error) => return Some(READ_ONLY),
        Err(PoolError::Backend(error)) if is_login_refused(&error) => return Some(LOGIN_REFUSED),
        Err(_) => return Some(UNAVAILABLE),
    };
    let Ok(answers) = client.simple_query("SHOW transaction_read_only").await else {
        return Some(UNAVAILABLE);
    };
    let takes_writes = answers
        .iter()
        .any(|answer| matches!(answer, SimpleQueryMessage::Row(row) if row.get(0) == Some("off")));
    if takes_writes {
        return None;
    }
    // A new session may reach another server.
    drop(Object::take(client));
    Some(READ_ONLY)
}

/// True if `target_session_attrs` refused a read-only server. Unlike an I/O error, this error has
/// no errno.
fn is_refused(error: &tokio_postgres::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| {
        cause.kind() == io::ErrorKind::PermissionDenied && cause.raw_os_error().is_none()
    })
}

async fn metrics(State(probes): State<Probes>, headers: HeaderMap) -> Response {
    let mut all = (probes.counts)();
    if let Some(ServiceConsumer { counters, .. }) = &probes.consumer {
        all.extend(counts(&counters.snapshot()));
        all.extend(gauges(&counters.status()));
    }
    metrics_response(ShopMetrics(all), &headers)
}

fn counts(consumer: &ConsumerSnapshot) -> Vec<Metric> {
    vec![
        ("shop_messages_processed_total", "messages that had their effect", consumer.processed),
        (
            "shop_messages_repeated_total",
            "messages that were processed before",
            consumer.duplicates,
        ),
        (
            "shop_dead_letters_total",
            "messages sent to the dead-letter topic",
            consumer.dead_letters,
        ),
        ("shop_retries_total", "retries after a failure", consumer.retries),
        ("shop_cache_hits_total", "messages found in the cache", consumer.cache_hits),
        ("shop_cache_misses_total", "messages not found in the cache", consumer.cache_misses),
        ("shop_cache_failures_total", "failed requests to the cache", consumer.cache_failures),
        (
            "shop_database_rewinds_total",
            "partitions of which the database was behind the group",
            consumer.rewinds,
        ),
    ]
}

fn gauges(status: &ConsumerStatus) -> Vec<Metric> {
    let &ConsumerStatus { partitions, lag_messages, waiting_messages, .. } = status;
    let lag = ("shop_consumer_lag_messages", "messages that are not handled yet", lag_messages);
    let partitions =
        ("shop_consumer_partitions", "partitions assigned to this process", Some(partitions));
    let waiting = (
        "shop_consumer_waiting_messages",
        "messages that failed and wait for another attempt, and those behind them",
        Some(waiting_messages),
    );
    let known = |(name, help, value): (_, _, Option<u64>)| Some((name, help, value?));
    [partitions, lag, waiting].into_iter().filter_map(known).collect()
}

#[derive(Debug)]
struct ShopMetrics(Vec<Metric>);

impl Metrics for ShopMetrics {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&(name, help, value)| page.single(name, help, value))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body;
    use axum::extract::State;
    use axum::http::{HeaderMap, StatusCode};
    use postrider_service::prometheus::{Format, render};

    use super::{ConsumerStatus, Probes, ShopMetrics, gauges, metrics, ready};
    use crate::settings::{database, pool};

    fn probes() -> Probes {
        let nowhere = database("postgres://nobody@127.0.0.1:1/none?sslmode=disable").unwrap();
        Probes::new(pool(&nowhere).unwrap(), Vec::new)
    }

    async fn refused(probes: Probes) -> String {
        let answer = ready(State(probes)).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let bytes = body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn readiness_depends_on_the_consumer_only_where_it_is_required() {
        assert!(
            refused(probes().with_required_consumer(Arc::default())).await.contains("not joined")
        );
        assert!(
            refused(probes().with_optional_consumer(Arc::default()))
                .await
                .contains("database does not answer")
        );
        assert!(refused(probes()).await.contains("database does not answer"));
    }

    #[tokio::test]
    async fn gauges_without_a_value_are_omitted() {
        let answer =
            metrics(State(probes().with_optional_consumer(Arc::default())), HeaderMap::default())
                .await;
        let bytes = body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let page = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(page.contains("# TYPE shop_consumer_partitions gauge\n"), "{page}");
        assert!(!page.contains("lag"), "{page}");
        let mut known = ConsumerStatus::default();
        known.lag_messages = Some(7);
        let page = render(ShopMetrics(gauges(&known)), Format::Text);
        assert!(page.contains("\nshop_consumer_lag_messages 7\n"), "{page}");
    }
}
