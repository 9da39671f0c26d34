//! Health and metrics of a service over HTTP.
//!
//! Enters: named numbers, read when somebody asks. Leaves: `/livez`, `/readyz` and `/metrics` in
//! Prometheus's text format. What always holds: readiness asks the database. Called by every service.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use deadpool_postgres::Pool;

/// A number: its name, what it counts, and how much it is now. One that only grows is named `.._total`.
pub(super) type Count = (&'static str, &'static str, u64);

/// What a service shows of itself.
#[derive(Clone)]
pub(super) struct Face {
    pool: Pool,
    counts: Arc<dyn Fn() -> Vec<Count> + Send + Sync>,
}

impl Face {
    /// A face that reads its numbers from `counts` each time.
    pub(super) fn new(pool: Pool, counts: impl Fn() -> Vec<Count> + Send + Sync + 'static) -> Self {
        Self { pool, counts: Arc::new(counts) }
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
    let answered = async {
        let client = face.pool.get().await.ok()?;
        client.simple_query("SELECT 1").await.ok()
    };
    match answered.await {
        Some(_) => "ready\n".into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n").into_response(),
    }
}

async fn metrics(State(face): State<Face>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, text(&(face.counts)())).into_response()
}

fn text(counts: &[Count]) -> String {
    let mut page = String::new();
    for (name, help, value) in counts {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_count_is_three_lines_of_prometheus() {
        let page = text(&[("shop_orders_total", "orders placed", 7)]);
        let lines: Vec<_> = page.lines().collect();
        assert_eq!(
            lines,
            [
                "# HELP shop_orders_total orders placed",
                "# TYPE shop_orders_total counter",
                "shop_orders_total 7"
            ]
        );
    }
}
